/* How two rollouts are compared: capture/page/compare-words.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { aligned, changes, differing, fields, findings, first, goingOn, parting, repliesAlike, requestsDiffer, rulings, samplingWords, settings } from "../../capture/page/compare-words.js";

const call = (n, more = {}) => ({
  n, conversation: 0, link: n ? "exact" : "root", n_prompt: 10 * (n + 1), n_sampled: 5, status: "complete", finish_reason: "stop", dialect: "openai.chat", model_asked: "m",
  constrained: false, drift: null, discarded: false, weights: { start: "1", end: "1" }, sampling: { asked: { temperature: null }, sent: { temperature: 1, seed: n } }, ...more,
});
const graph = (calls, more = {}) => ({
  rollout: { group: "g", state: "closed", reward: 1, labels: {}, stopped: null, n_calls: calls.length },
  calls, conversations: [{ n: 0, role: "main", kind: null, calls: calls.filter((each) => each.conversation === 0).map((each) => each.n) }], findings: [], ...more,
});
const ask = (messages, more = {}) => ({ model: "m", messages, ...more });
const user = (content) => ({ role: "user", content });
const assistant = (content) => ({ role: "assistant", content });
const tool = (content, id = "1") => ({ role: "tool", tool_call_id: id, content });
const names = ["a", "b"];

test("fields that differ come first", () => {
  const a = graph([call(0)]);
  const b = graph([call(0), call(1)], {});
  b.rollout.labels = { env: "x" };
  assert.deepEqual(fields(a, b).filter((row) => !row.same).map((row) => [row.name, row.a, row.b]), [["calls", 1, 2], ["label env", null, "x"]]);
  assert.equal(fields(a, b)[0].name, "calls");
});

test("calls that went on are aligned, the discarded stand alone", () => {
  const [main] = aligned(graph([call(0), call(1, { discarded: true }), call(2)]), graph([call(0), call(1)]));
  assert.deepEqual(main.rows.map(({ a, b }) => [a?.n ?? null, b?.n ?? null]), [[0, 0], [1, null], [2, 1]]);
});

test("conversations stand beside their like, calls of none last", () => {
  const a = graph([call(0), call(1, { conversation: 1 }), call(2, { conversation: null, status: "error" })]);
  a.conversations.push({ n: 1, role: "auxiliary", kind: "title", calls: [1] });
  const b = graph([call(0), call(1, { conversation: 1 })]);
  b.conversations.push({ n: 1, role: "subagent", kind: null, calls: [1] });
  const told = aligned(a, b).map(({ role, kind, rows }) => [role, kind, rows.map((row) => [row.a?.n ?? null, row.b?.n ?? null])]);
  assert.deepEqual(told, [["main", null, [[0, 0]]], ["subagent", null, [[null, 1]]], ["auxiliary", "title", [[1, null]]], ["none", null, [[2, null]]]]);
});

test("a pair of calls says in what it differs; a seed is chance", () => {
  assert.deepEqual(differing({ a: call(0), b: call(0, { sampling: { asked: { temperature: null }, sent: { temperature: 1, seed: 99 } } }) }), []);
  assert.deepEqual(differing({ a: call(0), b: call(0, { n_sampled: 9, finish_reason: "length" }) }), ["n_sampled", "finish_reason"]);
  assert.deepEqual(differing({ a: call(0), b: null }), ["alone"]);
});

test("sampling is told with what was asked and what was sent", () => {
  const rows = [{ a: call(0), b: call(0, { sampling: { asked: { temperature: 0.2 }, sent: { temperature: 0.7, seed: 0 } } }) }];
  assert.deepEqual(settings(rows)[0], { name: "temperature", asked: [null, 0.2], sent: [1, 0.7], same: false });
  assert.equal(samplingWords(rows, names), "From call 0 of a and 0 of b on, they were sampled otherwise: temperature was 1 in a and 0.7 in b.");
  assert.equal(samplingWords([{ a: call(0), b: call(0) }], names), null);
});

test("the first place that differs is found with few questions", async () => {
  for (const n of [0, 1, 2, 3, 7, 64, 200]) {
    for (let at = 0; at <= n; at += 1) {
      const asked = new Set();
      const found = await first(n, async (k) => {
        assert.ok(k >= 0 && k < n);
        asked.add(k);
        return k >= at;
      });
      assert.equal(found, at, `${at} of ${n}`);
      assert.ok(asked.size <= 2 * Math.ceil(Math.log2(n + 2)) + 2, `${asked.size} questions for ${at} of ${n}`);
    }
  }
});

test("requests of one form differ in messages, tools and settings; ids of tools don't count", () => {
  const mine = ask([user("hi"), assistant("ok"), tool("1", "x")], { temperature: 1 });
  assert.deepEqual(changes(mine, ask([user("hi"), assistant("ok"), tool("1", "y")], { temperature: 1, seed: 4 })).filter((each) => !each.natural), []);
  assert.equal(requestsDiffer(mine, { ...mine, user: "someone", temperature: 0.2 }), false);
  assert.equal(requestsDiffer(mine, { ...mine, max_tokens: 5 }), true);
  const [message, setting] = changes(mine, ask([user("hi"), assistant("ok"), tool("2")], { temperature: 1, max_tokens: 5 }));
  assert.deepEqual([message.kind, message.at, message.was, message.is], ["message", 2, "1", "2"]);
  assert.deepEqual([setting.kind, setting.name, setting.was, setting.is], ["setting", "max_tokens", "–", "5"]);
  const [longer] = changes(ask([user("hi")]), ask([user("hi"), user("again")]));
  assert.deepEqual([longer.kind, longer.at, longer.lengths], ["length", 1, [1, 2]]);
  const [tools] = changes(ask([], { tools: [{ function: { name: "run" } }] }), ask([], { tools: [{ function: { name: "look" } }] }));
  assert.deepEqual([tools.missing, tools.added], [["run"], ["look"]]);
});

test("other dialects' requests are read alike", () => {
  const mine = { instructions: "You help.", input: [{ role: "user", content: [{ type: "input_text", text: "one" }] }] };
  const [message] = changes(mine, { ...mine, input: [{ role: "user", content: [{ type: "input_text", text: "two" }] }] });
  assert.deepEqual([message.kind, message.roles[0]], ["message", "user"]);
});

test("where they part is said in words", () => {
  const found = (mine, theirs) => changes(ask(mine), ask(theirs));
  const words = (k, n, changed, more = {}) => parting({ k, n, found: changed, known: null, names, ...more });
  assert.match(words(0, 3, found([user("x")], [user("y")]))[1], /not given the same task/);
  assert.match(words(0, 3, found([{ role: "system", content: "x" }], [{ role: "system", content: "y" }]))[1], /set up otherwise/);
  assert.match(words(1, 3, found([user("x"), assistant("p")], [user("x"), assistant("q")]), { known: 1 })[1], /the model answered otherwise/);
  assert.match(words(1, 3, found([user("x"), assistant("p"), tool("1")], [user("x"), assistant("p"), tool("2")]), { known: 1 })[1], /a tool's result/);
  assert.match(words(1, 3, found([user("x"), assistant("p")], [user("x"), assistant("q")]), { known: 1, answeredAlike: true })[1], /written the reply anew/);
  assert.match(words(2, 3, found([user("x"), user("p")], [user("z"), user("p")]), { known: 2 })[1], /rewritten its history/);
  assert.deepEqual(words(3, 3, null), ["All 3 requests that both made are alike."]);
  assert.match(words(0, 0, null)[0], /nothing to compare/);
});

test("findings of one alone come first", () => {
  const rank = (level) => ["error", "warn", "info"].indexOf(level);
  const a = { findings: [{ code: "x", level: "error" }, { code: "y", level: "info" }, { code: "y", level: "info" }] };
  const b = { findings: [{ code: "x", level: "error" }, { code: "z", level: "warn" }] };
  assert.deepEqual(findings(a, b, rank).map((each) => [each.code, Boolean(each.a), Boolean(each.b)]), [["z", false, true], ["y", true, false], ["x", true, true]]);
});

test("replies are alike whatever their ids", () => {
  const reply = (id, args) => ({ id, choices: [{ index: 0, message: { role: "assistant", content: null, tool_calls: [{ id, function: { name: "run", arguments: args } }] } }] });
  assert.ok(repliesAlike(reply("1", "{}"), reply("2", "{}")));
  assert.ok(!repliesAlike(reply("1", "{}"), reply("1", "{ }")));
});

test("what one did alone is said of it", () => {
  const a = graph([call(0)]);
  const b = graph([call(0), call(1)]);
  a.rollout.stopped = { limit: "max_calls" };
  const rows = aligned(a, b)[0].rows;
  assert.deepEqual(goingOn([a, b], names, rows), ["a was stopped by its limit max_calls.", "b has 1 call of main that the other has not."]);
  assert.deepEqual(goingOn([graph([]), b], names, []), ["a made no call at all."]);
});

/* A title and a task of two calls; `ruled` is what somebody ruled of the title. */
const titled = (ruled = null) => graph([call(0, { conversation: 0 }), call(1, { conversation: 1, link: "root" }), call(2, { conversation: 1 })], {
  conversations: [{ n: 0, role: ruled ?? "auxiliary", kind: ruled ? null : "title", calls: [0] }, { n: 1, role: "main", kind: null, calls: [1, 2] }],
  findings: ruled ? [{ code: "role_overruled", level: "warn", calls: [0], data: { conversation: 0, role: ruled, judged: "title", tokens: 1033 } }] : [],
});

test("a title that was ruled main stands beside the other's title, and the task beside the task", () => {
  const told = (a, b) => aligned(a, b).map(({ role, kind, rows }) => [role, kind, rows.map((row) => [row.a?.n ?? null, row.b?.n ?? null])]);
  const alike = [["main", null, [[1, 1], [2, 2]]], ["auxiliary", "title", [[0, 0]]]];
  assert.deepEqual(told(titled("main"), titled()), alike);
  assert.deepEqual(told(titled(), titled("main")), alike);
  assert.deepEqual(told(titled("main"), titled("main")), alike);
  assert.deepEqual(told(titled("subagent"), titled()), alike);
});

test("a ruling is said of the one of whom it is", () => {
  assert.deepEqual(rulings([titled("main"), titled()], names), ["In a conversation 0, by what it did a title, is taken for main because somebody ruled so: 1,033 of its tokens are trained as the task's; in b nobody did."]);
  assert.match(rulings([titled("main"), titled("main")], names)[0], /; so it is in b\.$/);
  assert.deepEqual(rulings([titled(), titled()], names), []);
});
