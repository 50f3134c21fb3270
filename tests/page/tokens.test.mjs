/* Rows as bars, masks by position, and windows of tokens: capture/page/bars.js, windows.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { laid, maskOf, stretches, within } from "../../capture/page/bars.js";
import { Windows, classOf, columnsIn, visible, windowsOf } from "../../capture/page/windows.js";

const span = (call, kind, start, end) => ({ call, kind, start, end, weights: null });

test("a row is cut at spans and at the mask's borders, without gaps", () => {
  const row = { n_ids: 30, trained: [[10, 14], [22, 30]], spans: [span(0, "prompt", 0, 10), span(0, "sampled", 10, 16), span(1, "prompt", 16, 22), span(1, "sampled", 22, 30)] };
  assert.deepEqual(stretches(row).map(({ start, end, kind }) => [start, end, kind]), [
    [0, 10, "context"], [10, 14, "trained"], [14, 16, "sampled"], [16, 22, "context"], [22, 30, "trained"],
  ]);
});

test("a row in which nothing is trained", () => {
  const row = { n_ids: 5, trained: [], spans: [span(0, "prompt", 0, 3), span(0, "sampled", 3, 5)] };
  assert.deepEqual(stretches(row).map(({ kind }) => kind), ["context", "sampled"]);
});

test("ten trained tokens behind a hundred thousand can be seen, and stay within the bar", () => {
  const parts = laid([{ start: 0, end: 100000, kind: "context" }, { start: 100000, end: 100010, kind: "trained" }], 100010, 1000);
  assert.equal(parts[1].w, 2);
  assert.ok(parts[1].x + parts[1].w <= 1000);
});

test("a call's mask is its row's, up to its own end", () => {
  const made = { sequences: [{ row: 3, drift_crossed: 0, trained: [[10, 16], [22, 30]], spans: [span(0, "prompt", 0, 10), span(0, "sampled", 10, 16), span(1, "prompt", 16, 22), span(1, "sampled", 22, 30)] }], left_out: [{ call: 7, reason: "role" }] };
  assert.deepEqual(maskOf(made, 0), { row: 3, runs: [[10, 16]], why: null, shifted: false });
  assert.deepEqual(maskOf(made, 1).runs, [[10, 16], [22, 30]]);
  assert.equal(maskOf(made, 7).why, "role");
  assert.deepEqual(maskOf(null, 7), { row: null, runs: [], why: null, shifted: false });
});

test("within finds by halving what a walk finds", () => {
  const runs = [[2, 4], [7, 8], [10, 20]];
  for (let at = 0; at < 25; at += 1) assert.equal(within(runs, at), runs.some(([start, end]) => start <= at && at < end), String(at));
  assert.equal(within([], 0), false);
});

test("the windows of what is in view", () => {
  assert.deepEqual(windowsOf(0, 10, 200000), [0]);
  assert.deepEqual(windowsOf(1000, 1100, 200000), [0, 1]);
  assert.deepEqual(windowsOf(199990, 200100, 200000), [195]);
  assert.deepEqual(windowsOf(-5, 3, 200000), [0]);
  assert.deepEqual(windowsOf(10, 10, 5), []);
});

test("what is in view is asked for, at most two at once, and what has gone by is not", async () => {
  const asked = [];
  const windows = new Windows(100, (start, end) => new Promise((resolve) => { asked.push([start, end]); pending.push(() => resolve({ start, ids: Array.from({ length: end - start }, (_, i) => start + i), pieces: [], logprobs: [] })); }), () => {}, 10);
  const pending = [];
  windows.want(0, 45);
  assert.deepEqual(asked, [[0, 10], [10, 20]]);
  windows.want(90, 100);
  pending.shift()();
  await new Promise(setImmediate);
  assert.deepEqual(asked, [[0, 10], [10, 20], [90, 100]], "20 to 45 is out of view");
  assert.equal(windows.at(3).id, 3);
  assert.equal(windows.at(95), undefined);
  while (pending.length) pending.shift()();
  await new Promise(setImmediate);
  assert.equal(windows.at(95).id, 95);
  windows.want(90, 100);
  assert.equal(asked.length, 3, "what is held isn't asked for again");
});

test("a window that can't be had is asked for once, and again on retry", async () => {
  let asked = 0;
  const windows = new Windows(10, async () => { asked += 1; throw new Error("no"); }, () => {}, 10);
  windows.want(0, 10);
  await new Promise(setImmediate);
  windows.want(0, 10);
  assert.equal(asked, 1);
  assert.equal(windows.error(3).message, "no");
  windows.retry();
  windows.want(0, 10);
  assert.equal(asked, 2);
});

test("windows that were not seen for long are let go", async () => {
  const windows = new Windows(1000, async (start, end) => ({ start, ids: new Array(end - start).fill(1), pieces: [], logprobs: [] }), () => {}, 10);
  for (let k = 0; k < 80; k += 1) {
    windows.want(k * 10, k * 10 + 10);
    await new Promise(setImmediate);
  }
  assert.equal(windows.at(0), undefined);
  assert.ok(windows.at(795));
  assert.ok(windows.held.size <= 64);
});

test("columns are numbers that are easy to count by", () => {
  assert.equal(columnsIn(1200, 84), 12);
  assert.equal(columnsIn(84, 84), 1);
  assert.equal(columnsIn(0, 84), 1);
  assert.equal(columnsIn(5000, 84), 32);
});

test("classes of a logprob", () => {
  assert.deepEqual([0, Math.log(0.95), Math.log(0.6), Math.log(0.2), Math.log(0.05), Math.log(0.001), -9999].map(classOf), [0, 0, 1, 2, 3, 4, 4]);
});

test("what can't be seen is a sign", () => {
  assert.equal(visible(" a\n\tb\r\u0007"), "·a⏎⇥b␍�");
  assert.equal(visible(null), "");
});
