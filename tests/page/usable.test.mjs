/* Whether rows and reward can be used, states, and rulings as commands: capture/page/usable.js, states.js, ruling.js, words.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { CODES } from "../../capture/page/codes.js";
import { flat } from "../../capture/page/flat.js";
import { remedy, ruling } from "../../capture/page/ruling.js";
import { amount, statesOf } from "../../capture/page/states.js";
import { USE, causeOf, usable } from "../../capture/page/usable.js";
import { STATUS, TONE, isRuled, notesOf, roleOf, straddles, versionsOf } from "../../capture/page/words.js";

const rollout = (more = {}) => ({ state: "closed", tier: "train", reward: 1, n_calls: 3, incomplete: false, stopped: null, limits: {}, ...more });
const finding = (code, calls = [], data = {}) => ({ code, level: CODES[code]?.level ?? "info", calls, data });
const told = (findings, more) => usable({ rollout: rollout(more), findings });

test("every finding that somebody is to look at says something of rows and reward, or nothing on purpose", () => {
  const looked = Object.entries(CODES).filter(([, row]) => row.level !== "info").map(([code]) => code);
  assert.deepEqual(Object.keys(USE).sort(), looked.sort());
});

test("a sound rollout is usable, and says no more", () => {
  assert.deepEqual(told([]), { rows: { level: "good", text: "usable" }, reward: { level: "good", text: "usable" } });
  assert.equal(told([finding("drift", [1])]).rows.text, "usable");
});

test("the worst is told of each", () => {
  const cut = told([finding("aborted_calls", [4]), finding("limit_stop", [2])]);
  assert.equal(cut.rows.text, "usable: call #4 is in none of them; the last turn says that a limit cut it");
  assert.deepEqual(cut.reward, { level: "warn", text: "usable with care: it grades work that a limit cut" });
  const none = told([finding("nothing_trainable", [0, 1]), finding("time_limit", [0, 1])]);
  assert.deepEqual([none.rows.level, none.reward.level], ["bad", "bad"]);
  assert.equal(none.rows.text, "not usable: no token passes every condition");
  const mixed = told([finding("weights_changed", [1, 5]), finding("truncated_reply", [5])]);
  assert.equal(mixed.rows.text, "usable with care: tokens of calls #1 and #5 are of two versions of the weights");
});

test("many calls are named shortly", () => {
  const { text } = told([finding("weights_changed", [0, 1, 2, 3, 4, 5, 6, 7])]).rows;
  assert.match(text, /calls #0, #1, #2, #3, #4, #5 and 2 more are/);
});

test("a ruling is said to be what the rows follow", () => {
  const { rows, reward } = told([finding("role_overruled", [0], { conversation: 0, role: "main", judged: "title" })]);
  assert.equal(rows.text, "usable with care: a title is trained in them as part of the task, because somebody ruled so");
  assert.equal(reward.text, "usable with care: it goes to a title too");
});

test("what is not there is not usable, and not yet is not never", () => {
  assert.equal(told([], { reward: null }).reward.text, "none was given");
  assert.equal(told([], { reward: null, state: "open" }).reward.text, "none yet");
  assert.equal(told([], { state: "open", n_calls: 0 }), null);
  assert.equal(told([], { tier: "eval" }).rows.level, "bad");
  assert.equal(told([], { incomplete: true }).rows.level, "bad");
});

test("what came of something is told with it", () => {
  const findings = [finding("nothing_trainable"), finding("aborted_calls"), finding("time_limit")];
  assert.equal(causeOf(findings[0], findings).code, "time_limit");
  assert.equal(causeOf(findings[1], findings), null);
  assert.equal(causeOf(finding("no_calls"), [finding("unknown_secret_calls")]).code, "unknown_secret_calls");
});

test("a state has one word and one colour, whatever ended it", () => {
  const words = (more) => statesOf(rollout(more)).map(({ word, tone }) => [word, tone]);
  assert.deepEqual(words({ state: "open" }), [["open", "info"]]);
  assert.deepEqual(words({}), [["closed", null]]);
  const stopped = { stopped: { limit: "max_calls", at_call: 2, stops: 1 }, limits: { max_calls: 2 } };
  assert.deepEqual(words(stopped), [["closed", null], ["stopped", "warning"]]);
  assert.equal(statesOf(rollout(stopped))[1].title, "By its limit max_calls of 2 calls, at call 2");
  // A row that an older version kept says no limits.
  assert.equal(statesOf(rollout({ ...stopped, limits: undefined }))[1].title, "By its limit max_calls, at call 2");
  assert.deepEqual(words({ incomplete: true })[1], ["incomplete", "error"]);
});

test("a limit is told with what it counts", () => {
  assert.deepEqual([amount("max_calls", 1), amount("max_total_tokens", 120000), amount("deadline_s", 0.5)], ["1 call", "120,000 tokens", "0.5 seconds"]);
});

test("every status has a colour of its meaning", () => {
  assert.deepEqual(Object.keys(TONE).sort(), Object.keys(STATUS).sort());
  assert.equal(TONE.stopped, "warning");
});

test("a call across a change of weights is known by the versions that are told", () => {
  const weights = (start, end, spans = []) => ({ start, end, spans });
  assert.deepEqual(versionsOf(weights("1", "2")), ["1", "2"]);
  assert.ok(straddles({ status: "complete", weights: weights("1", "2") }));
  assert.ok(straddles({ status: "complete", weights: weights("1", "1", [{ version: "1" }, { version: "2" }]) }));
  // SGLang tells the one at the end alone.
  assert.ok(!straddles({ status: "complete", weights: weights(null, "2") }));
  assert.ok(!straddles({ status: "error", weights: weights("1", "2") }));
  assert.deepEqual(notesOf({ n: 1, carries: [], repairs: [], status: "complete", weights: weights("1", "2"), fork: "retry" }, null, new Set()), ["weights 1 → 2", "retry"]);
});

test("a ruled role is told as ruled", () => {
  const ruled = { n: 0, role: "main", kind: null, evidence: [{ rule: "overruled" }] };
  assert.ok(isRuled(ruled));
  assert.deepEqual(roleOf({ conversation: 0 }, new Map([[0, ruled]])), ["main", "main, ruled"]);
  assert.deepEqual(roleOf({ conversation: 0 }, new Map([[0, { ...ruled, evidence: [] }]])), ["main", "main"]);
});

test("the body that would rule is the one that the control plane takes", () => {
  assert.equal(ruling(3, "title"), '{"conversation": 3, "role": "title"}');
  assert.deepEqual(remedy(finding("role_overruled", [0], { conversation: 3, role: "main", judged: "title" })), [3, "title"]);
  assert.deepEqual(remedy(finding("role_hint_disagrees", [0], { conversation: 1, hinted: "subagent" })), [1, "subagent"]);
  assert.equal(remedy(finding("drift")), null);
});

test("a title has no marks of code", () => {
  assert.equal(flat("See `--limits`."), "See --limits.");
});
