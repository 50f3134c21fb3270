/* Lanes, ties and words of the forest: capture/page/lanes.js, words.js. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { lanes, ties } from "../../capture/page/lanes.js";
import { REASON, notesOf, roleOf } from "../../capture/page/words.js";

const call = (n, parent = null, more = {}) => ({ n, parent, link: parent === null ? "root" : "exact", status: "complete", conversation: 0, choice: 0, fork: null, discarded: false, carries: [], pinned: null, constrained: false, repairs: [], ...more });
const lanesOf = (calls, kept = []) => lanes(calls, new Set(kept)).rows.map((row) => row.lane);

test("a path of continuations is one lane", () => {
  assert.deepEqual(lanesOf([call(0), call(1, 0), call(2, 1)]), [0, 0, 0]);
});

test("another conversation beside it takes the next lane, and frees it", () => {
  assert.deepEqual(lanesOf([call(0), call(1), call(2, 0), call(3), call(4, 2)]), [0, 0, 0, 0, 0].map((_, i) => [0, 1, 0, 1, 0][i]));
});

test("the child that was kept goes on in the lane; the other leaves it", () => {
  const calls = [call(0), call(1, 0, { discarded: true }), call(2, 0), call(3, 2)];
  assert.deepEqual(lanesOf(calls, [2]), [0, 1, 0, 0]);
  assert.deepEqual(lanesOf(calls), [0, 1, 0, 0], "without a word on it, the first that isn't discarded");
  assert.deepEqual(lanesOf([call(0), call(1, 0), call(2, 0)]), [0, 0, 1], "and the first of equals");
});

test("a lane is held until the child's row comes, and nothing else stands in it", () => {
  /* The picture in the terminal: 3 forks into 6 and 7, a subagent comes between. */
  const calls = [call(3), call(4), call(5, 4), call(6, 3, { discarded: true }), call(7, 3)];
  assert.deepEqual(lanesOf(calls, [7]), [0, 2, 2, 1, 0]);
});

test("sixty-four draws of one prompt stand in sixty-four lanes", () => {
  const calls = [call(0), ...Array.from({ length: 64 }, (_, i) => call(i + 1, 0))];
  const drawn = lanes(calls, new Set());
  assert.equal(drawn.width, 64);
  assert.equal(new Set(drawn.rows.slice(1).map((row) => row.lane)).size, 64);
  assert.equal(drawn.edges.length, 64);
});

test("a parent that isn't among the calls is no edge", () => {
  assert.deepEqual(lanes([call(5, 2)], new Set()).edges, []);
});

test("no two calls of forests drawn at random meet in one cell of a lane", () => {
  let seed = 7;
  const random = (n) => { seed = (seed * 1103515245 + 12345) & 0x7fffffff; return seed % n; };
  for (let round = 0; round < 200; round += 1) {
    const calls = Array.from({ length: 30 }, (_, n) => call(n, n && random(4) ? random(n) : null));
    const { rows, edges } = lanes(calls, new Set());
    const at = new Map(rows.map((row, i) => [row.n, { ...row, i }]));
    for (const { from, to } of edges) {
      const [a, b] = [at.get(from), at.get(to)];
      assert.ok(a.i < b.i);
      /* Below the parent the edge runs down in the child's lane: no other call stands there. */
      for (let i = a.i + 1; i < b.i; i += 1) assert.notEqual(rows[i].lane, b.lane, `${from} → ${to} runs through ${rows[i].n}`);
    }
  }
});

test("what a tool call started and what a summary carries hang by ties", () => {
  const graph = {
    calls: [call(0), call(1), call(2), call(3, 0, { carries: [2], link: "compaction" })],
    conversations: [{ root: 1, parent_call: 0 }, { root: 0, parent_call: null }, { root: 9, parent_call: 0 }],
  };
  assert.deepEqual(ties(graph), [{ from: 0, to: 1, kind: "started" }, { from: 2, to: 3, kind: "carried" }]);
});

test("roles and notes are the terminal's", () => {
  const conversations = new Map([[0, { role: "auxiliary", kind: "title", root: 0, parent_call: null }]]);
  assert.deepEqual(roleOf(call(0), conversations), ["auxiliary", "auxiliary: title"]);
  assert.deepEqual(roleOf(call(0, null, { conversation: null }), conversations), ["unknown", "none"]);
  const noted = call(4, 3, { choice: 1, fork: "retry", discarded: true, carries: [1, 2] });
  assert.deepEqual(notesOf(noted, { root: 4, parent_call: 3 }, new Set([4])), ["choice 1", "retry, kept", "discarded", "carries 1, 2", "started by 3"]);
});

test("every reason of docs/findings.md has its words, and no other has", () => {
  const page = readFileSync(new URL("../../docs/findings.md", import.meta.url), "utf8");
  const table = page.slice(page.indexOf("## Reasons"));
  const codes = [...table.matchAll(/^\| `([a-z_]+)` \|/gm)].map((found) => found[1]);
  assert.ok(codes.length > 10, "the table is found");
  assert.deepEqual(Object.keys(REASON).filter((code) => !codes.includes(code)), []);
  const reasons = codes.slice(0, codes.indexOf("role") + 1);
  assert.deepEqual(reasons.filter((code) => !(code in REASON)), []);
});
