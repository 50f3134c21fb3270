/* What is said of a group: capture/page/group-words.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { differences, median, names, outliers, settingsOf, shortNames, sideBySide, spread, statements } from "../../capture/page/group-words.js";

const row = (id, more = {}) => ({
  id, state: "closed", tier: "train", incomplete: false, reward: 0.5, n_calls: 5, n_main_calls: 5, n_sampled_tokens: 100, health: { findings: {} }, ...more,
});
const group = (...mores) => mores.map((more, at) => row(`g-${at}`, more));
const texts = (rows) => statements(rows).map((each) => each.text);

test("equal rewards have no advantage, and it is said", () => {
  assert.ok(texts(group({}, {}, {})).includes("All rewards are equal (0.5): the advantage is zero everywhere."));
  assert.ok(texts(group({}, {}, { reward: null })).includes("All 2 rewards are equal (0.5): the advantage is zero everywhere."));
});

test("rewards that differ are told with their spread", () => {
  const [first] = statements(group({ reward: 0 }, { reward: 1 }));
  assert.deepEqual(first, { level: "good", text: "Rewards run from 0 to 1, mean 0.5, standard deviation 0.5." });
});

test("rewards that differ by a rollout of which nothing can be learnt are no good sign", () => {
  const said = statements(group({ reward: 0, n_calls: 0 }, { reward: 1 }));
  assert.ok(said.some((each) => each.level === "warn" && each.text === "Rewards run from 0 to 1, but without g-0, of which nothing can be learnt, no difference is left."));
  assert.ok(!said.some((each) => each.level === "good"));
  const more = statements(group({ reward: 0, n_calls: 0 }, { reward: 1 }, { reward: 0.5 }));
  assert.ok(more.some((each) => each.level === "good"));
});

test("missing rewards are counted and named", () => {
  assert.ok(texts(group({ reward: 0 }, { reward: 1 }, { reward: null })).includes("1 of 3 has no reward: g-2."));
  assert.ok(texts(group({ reward: null }, { reward: null })).includes("Neither has a reward."));
  assert.ok(texts(group({ reward: 1 }, { reward: null })).some((text) => text.startsWith("Only one has a reward, 1")));
  assert.match(texts(group({}))[0], /group of one/);
});

test("rollouts without a call come first", () => {
  const said = statements(group({ n_calls: 0, n_main_calls: 0 }, { reward: 1 }, { reward: 0 }));
  assert.deepEqual([said[0].level, said[0].text], ["error", "1 of 3 made no call: g-0. Its reward would say nothing about the policy."]);
  // One that is open may call yet.
  assert.ok(!texts(group({ n_calls: 0, state: "open" }, {})).some((text) => text.includes("no call")));
});

test("what trains nothing is said once it is known", () => {
  assert.ok(!texts(group({}, {})).some((text) => text.includes("no token")));
  assert.ok(texts(group({ trained: { rows: 0, tokens: 0 } }, { trained: { rows: 1, tokens: 9 } })).includes("1 of 2 trains no token: g-0."));
});

test("lengths far from the median are named, of four or more", () => {
  const rows = group({ n_main_calls: 10 }, { n_main_calls: 11 }, { n_main_calls: 9 }, { n_main_calls: 40 }, { n_main_calls: 2 });
  assert.deepEqual(outliers(rows, (each) => each.n_main_calls).map((each) => [each.id, each.value]), [["g-4", 2], ["g-3", 40]]);
  assert.deepEqual(outliers(rows.slice(1, 4), (each) => each.n_main_calls), []);
  assert.ok(texts(rows).includes("g-3 has 40 calls of main; the median is 10."));
  rows[3].n_sampled_tokens = 900;
  assert.ok(texts(rows).includes("g-3 has 40 calls of main and 900 sampled tokens; the medians are 10 and 100."));
});

test("arithmetic", () => {
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(median([4, 1, 2, 3]), 2.5);
  assert.equal(median([]), null);
  assert.equal(spread([]), null);
  assert.deepEqual(spread([1, 3]), { n: 2, mean: 2, deviation: 1, least: 1, most: 3 });
});

test("names are few, and short where they begin alike", () => {
  assert.equal(names(["a"]), "a");
  assert.equal(names(["a", "b", "c"]), "a, b and c");
  assert.equal(names(["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
  assert.deepEqual(shortNames(["g7-0", "g7-10"]), ["0", "10"]);
  assert.deepEqual(shortNames(["alpha", "beta"]), ["alpha", "beta"]);
  assert.deepEqual(shortNames(["run1", "run12"]), ["run1", "run12"]);
});

test("findings stand side by side, the worst first", () => {
  const rows = group({ health: { findings: { drift: 2 } } }, { health: { findings: { drift: 1, no_calls: 1 } } });
  const found = sideBySide(rows);
  assert.deepEqual(found.map((each) => [each.code, each.counts]), [["no_calls", [0, 1]], ["drift", [2, 1]]]);
});

const graph = (more = {}, sent = { temperature: 1, seed: 1 }, calls = 1) => ({
  rollout: { model: "tiny", tier: "train", logprobs_mode: "raw", ...more },
  conversations: [{ n: 0, role: "main" }],
  calls: Array.from({ length: calls }, () => ({
    conversation: 0, engine: "e", dialect: "openai.chat", model_asked: "m", weights: { start: "1", end: "1" }, pinned: null, sampling: { asked: { temperature: null }, sent },
  })),
});

test("what differs between rollouts is told apart from what is meant to", () => {
  const all = [["a", settingsOf(graph())], ["b", settingsOf(graph({ model: "big" }, { temperature: 0.7, seed: 2 }))], ["c", settingsOf(graph({}, { temperature: 1, seed: 3 }))]];
  const { differing, common } = differences(all);
  assert.deepEqual(differing.map((each) => each.name), ["model", "temperature, sent", "seed, sent"]);
  assert.deepEqual(differing[1].values, [{ value: "1", ids: ["a", "c"] }, { value: "0.7", ids: ["b"] }]);
  assert.ok(differing[2].natural);
  assert.ok(common.some((each) => each.name === "weights" && each.value === "1"));
});

test("a rollout without calls differs in nothing that calls say", () => {
  const { differing } = differences([["a", settingsOf(graph())], ["b", settingsOf(graph({}, {}, 0))]]);
  assert.deepEqual(differing, []);
});

test("limits are settings, and one that a rollout has alone is a difference", () => {
  const of = (limits) => settingsOf({ rollout: { model: "m", tier: "train", logprobs_mode: "raw", limits }, conversations: [], calls: [] });
  assert.equal(of({ max_calls: 2 }).get("limit max_calls"), "2 calls");
  const { differing, common } = differences([["a", of({ max_calls: 2, deadline_s: 60 })], ["b", of({ deadline_s: 60 })]]);
  assert.deepEqual(differing.map(({ name, natural }) => [name, natural]), [["limit max_calls", false]]);
  assert.deepEqual(differing[0].values, [{ value: "2 calls", ids: ["a"] }, { value: "none", ids: ["b"] }]);
  // Of one without a call nothing is known but that.
  const called = new Map([...of({ max_calls: 2 }), ["engine", "e"]]);
  assert.deepEqual(differences([["a", called], ["b", of({ max_calls: 2 })]]).differing, []);
  assert.ok(common.some(({ name, value }) => name === "limit deadline_s" && value === "60 seconds"));
});
