/* The list's arithmetic, its words, and its rows: capture/page/list-window.js, list-query.js, list-pages.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { Pages } from "../../capture/page/list-pages.js";
import { address, emptiness, filterOf, isEmpty, listPath, narrowed, overviewPath, said, sequencesQuery, totalOf } from "../../capture/page/list-query.js";
import { poolSize, reveal, step, windowOf } from "../../capture/page/list-window.js";

/* A server with rollouts r0 (oldest) … r{n-1}, newest first, cursors by place in time. */
class Server {
  constructor(n) {
    this.all = Array.from({ length: n }, (_, at) => ({ id: `r${at}`, seen: 0, at }));
    this.asked = [];
  }

  read = async ({ after, limit }) => {
    this.asked.push({ after, limit });
    const below = after === null ? Infinity : Number(after);
    const rest = this.all.filter((each) => each.at < below).sort((a, b) => b.at - a.at);
    const rollouts = rest.slice(0, limit).map((each) => ({ ...each }));
    return { rollouts, next: rest.length > limit ? String(rollouts.at(-1).at) : null };
  };

  add() {
    const at = this.all.length;
    this.all.push({ id: `r${at}`, seen: 0, at });
  }
}

test("a window holds what is seen and a little more, and never more than the pool", () => {
  const shape = { height: 600, rowHeight: 36, count: 10000 };
  const pool = poolSize(shape);
  for (let top = 0; top <= 10000 * 36 - 600; top += 977) {
    const { first, last } = windowOf({ top, ...shape });
    assert.ok(first * 36 <= top && Math.min(10000, last) * 36 >= Math.min(top + 600, 360000));
    assert.ok(last - first <= pool);
  }
  assert.deepEqual(windowOf({ top: 0, height: 600, rowHeight: 36, count: 0 }), { first: 0, last: 0 });
  assert.deepEqual(windowOf({ top: 0, height: 600, rowHeight: 36, count: 3 }), { first: 0, last: 3 });
  // The list has become shorter than where it was scrolled to.
  const { first, last } = windowOf({ top: 9000, height: 600, rowHeight: 36, count: 10 });
  assert.ok(first <= last && last <= 10);
});

test("a row that is seen isn't scrolled to", () => {
  const at = { top: 360, height: 360, rowHeight: 36 };
  assert.equal(reveal({ index: 12, ...at }), 360);
  assert.equal(reveal({ index: 2, ...at }), 72);
  assert.equal(reveal({ index: 20, ...at }), 396);
});

test("keys lead to rows and stop at the ends", () => {
  const list = { active: 5, count: 10, rowsSeen: 4 };
  assert.equal(step("j", list), 6);
  assert.equal(step("ArrowUp", list), 4);
  assert.equal(step("PageDown", list), 8);
  assert.equal(step("End", list), 9);
  assert.equal(step("j", { ...list, active: 9 }), 9);
  assert.equal(step("k", { ...list, active: -1 }), 0);
  assert.equal(step("q", list), null);
  assert.equal(step("j", { ...list, count: 0 }), null);
});

test("a filter comes back from its address", () => {
  const query = new URLSearchParams("state=closed&group=g 7&label=split:train&label=env:a&finding=drift&trouble=1&q= opus &graded=0&other=1");
  const filter = filterOf(query);
  assert.deepEqual(filterOf(new URLSearchParams(address(filter).split("?")[1])), filter);
  assert.equal(filter.q, "opus");
  assert.equal(said(filter), "closed, in group g 7, labelled split:train, labelled env:a, with drift, ungraded, that need a look, matching “opus”");
});

test("an empty filter has the plain address, and nonsense is no filter", () => {
  const filter = filterOf(new URLSearchParams("state=odd&label=x&graded=7"));
  assert.ok(isEmpty(filter));
  assert.equal(address(filter), "#/");
  assert.equal(listPath(filter, { limit: 5 }), "rollouts?order=-created&limit=5");
  assert.equal(overviewPath(filter), "overview");
});

test("the strip's own choices don't narrow the strip", () => {
  const filter = filterOf(new URLSearchParams("group=g&finding=drift&trouble=1"));
  assert.equal(overviewPath(filter), "overview?group=g");
  assert.match(listPath(filter), /group=g&finding=drift&trouble=1/);
});

test("the list's length is the overview's, as far as that tells", () => {
  const overview = { rollouts: 100, graded: 60, trouble: 7, findings: [{ code: "drift", rollouts: 9 }] };
  const total = (text) => totalOf(filterOf(new URLSearchParams(text)), overview);
  assert.equal(total(""), 100);
  assert.equal(total("finding=drift"), 9);
  assert.equal(total("finding=forks"), 0);
  assert.equal(total("trouble=1"), 7);
  assert.equal(total("graded=1"), 60);
  assert.equal(total("graded=0"), null);
  assert.equal(total("finding=drift&trouble=1"), null);
  assert.equal(totalOf(filterOf(new URLSearchParams()), null), null);
});

test("a list is downloaded by one question where the server has its filters", () => {
  assert.deepEqual(sequencesQuery(filterOf(new URLSearchParams("group=g&label=a:b"))), { state: null, group: "g", label: ["a:b"] });
  assert.equal(sequencesQuery(filterOf(new URLSearchParams("q=x"))), null);
});

test("rows are read as far as they are wanted, in order, each once", async () => {
  const server = new Server(2500);
  const pages = new Pages(server.read);
  await pages.ensure(20);
  assert.equal(pages.rows.length, 100);
  assert.equal(pages.count(2500), 2500);
  await Promise.all([pages.ensure(150), pages.ensure(2400)]);
  assert.ok(pages.rows.length >= 2400);
  assert.ok(server.asked.length <= 6, `${server.asked.length} questions`);
  await pages.ensure(9999);
  assert.ok(pages.ended);
  assert.equal(pages.count(9999), 2500);
  assert.deepEqual(pages.rows.map((row) => row.id), server.all.map((row) => row.id).reverse());
  assert.equal(pages.index("r0"), 2499);
});

test("what is new is counted and moves nothing", async () => {
  const server = new Server(300);
  const pages = new Pages(server.read);
  await pages.ensure(20);
  for (let n = 0; n < 3; n += 1) server.add();
  server.all[299].seen = 1;
  await pages.refresh(0, 20);
  assert.equal(pages.fresh, 3);
  assert.equal(pages.freshIsMore, false);
  assert.equal(pages.rows[0].id, "r299");
  assert.equal(pages.rows[0].seen, 1);
  assert.ok(pages.rows.every((row) => !row.absent));
});

test("more news than an answer holds is “or more”", async () => {
  const server = new Server(300);
  const pages = new Pages(server.read);
  await pages.ensure(20);
  for (let n = 0; n < 200; n += 1) server.add();
  await pages.refresh(0, 20);
  assert.ok(pages.freshIsMore && pages.fresh > 3);
  assert.ok(pages.rows.every((row) => !row.absent));
});

test("rows deep down are read anew from their own page", async () => {
  const server = new Server(2000);
  const pages = new Pages(server.read);
  await pages.ensure(1500);
  server.asked.length = 0;
  server.all[2000 - 1 - 700].seen = 1;
  await pages.refresh(690, 720);
  assert.equal(server.asked.length, 1);
  assert.notEqual(server.asked[0].after, null);
  assert.equal(pages.rows[700].seen, 1);
});

test("what is gone keeps its place and is marked", async () => {
  const server = new Server(50);
  const pages = new Pages(server.read);
  await pages.ensure(20);
  server.all = server.all.filter((each) => each.id !== "r40");
  await pages.refresh(0, 50);
  assert.equal(pages.rows[9].id, "r40");
  assert.equal(pages.rows[9].absent, true);
  assert.equal(pages.rows.filter((row) => row.absent).length, 1);
});

test("a question that failed can be asked again", async () => {
  const server = new Server(10);
  let down = true;
  const pages = new Pages(async (asked) => {
    if (down) throw new Error("down");
    return server.read(asked);
  });
  await assert.rejects(pages.ensure(5));
  down = false;
  await pages.ensure(5);
  assert.equal(pages.rows.length, 10);
});

test("an empty list says what was looked for, and what each part of the filter is", () => {
  const of = (text) => emptiness(filterOf(new URLSearchParams(text)));
  const { text, clears } = of("q=nosuch");
  assert.equal(text, "“nosuch” stands in no id, group, label's value, model or task.");
  assert.deepEqual(clears, [["the search for “nosuch”", { q: null }]]);
  const several = of("q=nosuch&state=open&label=a:b&trouble=1");
  assert.equal(several.text, "“nosuch” stands in no id, group, label's value, model or task (narrowed to: open, labelled a:b, that need a look).");
  assert.deepEqual(several.clears.map(([what]) => what), ["the search for “nosuch”", "state open", "label a:b", "need a look"]);
  assert.deepEqual(Object.assign({}, ...several.clears.map(([, patch]) => patch)), { q: null, state: null, labels: [], trouble: false });
  assert.equal(of("state=open").text, "No rollout fits: open.");
  // The strip's own buttons narrow the rows, and not the numbers above them.
  assert.equal(narrowed(filterOf(new URLSearchParams("finding=drift&trouble=1"))), "");
  assert.equal(narrowed(filterOf(new URLSearchParams("q=x"))), "matching “x”");
});
