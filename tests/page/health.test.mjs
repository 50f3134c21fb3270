/* What is said of many rollouts, and how often it is looked again: capture/page/health.js, live.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { bustle, findingsIn, findingsOf, levelOf, rewardWords, signs, unread, verdict } from "../../capture/page/health.js";
import { paced } from "../../capture/page/live.js";

const overview = (more = {}) => ({
  rollouts: 100, open: 4, closed: 96, running: 1, no_calls: 0, incomplete: 0, graded: 90, trouble: 0, findings: [], reward: { n: 0, mean: null, min: null, max: null }, calls: 5, sampled_tokens: 50, ...more,
});
const found = (code, severity, rollouts) => ({ code, severity, rollouts, n: rollouts });

test("all is well, and said so, only where it is", () => {
  assert.deepEqual(verdict(overview()), { level: "good", text: "All is well with 100 rollouts." });
  assert.equal(verdict(overview({ findings: [found("subagents", "info", 9)] })).level, "good");
  assert.deepEqual(verdict(overview({ rollouts: 0 })), { level: "none", text: "No rollouts yet." });
  // A filter that nothing fits says nothing of whether there are any.
  assert.deepEqual(verdict(overview({ rollouts: 0 }), { filtered: true }), { level: "none", text: "No rollout fits." });
});

test("while some are still to be read nothing is said to be well", () => {
  const { level, text } = verdict(overview({ stale: 1200 }));
  assert.equal(level, "none");
  assert.equal(text, "100 rollouts: nothing wrong so far.");
  assert.equal(unread(overview({ stale: 1200 })), "1,200 rollouts are still to be read");
  assert.equal(unread(overview({ stale: 0 })), null);
});

test("trouble is counted, and as bad as its worst", () => {
  assert.deepEqual(verdict(overview({ trouble: 1, findings: [found("weights_changed", "warn", 1)] })), { level: "warn", text: "1 of 100 rollouts needs a look." });
  assert.deepEqual(verdict(overview({ trouble: 100, findings: [found("no_calls", "error", 1)] })), { level: "error", text: "All 100 rollouts need a look." });
});

test("flat rewards are pointed out", () => {
  assert.deepEqual(rewardWords({ n: 90, mean: 0, min: 0, max: 0 }), { level: "warn", text: "All 90 rewards are 0: there is nothing to learn from" });
  assert.equal(rewardWords({ n: 2, mean: 0.5, min: 0, max: 1 }).level, null);
  assert.equal(rewardWords({ n: 1, mean: 0.5, min: 0.5, max: 0.5 }).text, "One reward: 0.5");
  assert.equal(rewardWords(null).text, "No reward yet");
});

test("the worst come first, then the commonest, then as the table has them", () => {
  const order = findingsIn(overview({ findings: [found("subagents", "info", 99), found("drift_over_threshold", "warn", 1), found("graded_without_calls", "error", 1), found("no_calls", "error", 1), found("time_limit", "warning", 3)] }));
  assert.deepEqual(order.map((each) => each.code), ["no_calls", "graded_without_calls", "time_limit", "drift_over_threshold", "subagents"]);
  assert.deepEqual(findingsOf({ health: { findings: { drift: 2, no_calls: 1 } } }).map((each) => [each.code, each.n]), [["no_calls", 1], ["drift", 2]]);
  assert.deepEqual(findingsOf({}), []);
});

test("a level is the server's, else the table's, for the rollout's tier", () => {
  assert.equal(levelOf("no_token_ids"), "error");
  assert.equal(levelOf("no_token_ids", { tier: "eval" }), "info");
  assert.equal(levelOf("no_token_ids", { severity: "warn" }), "warn");
  assert.equal(levelOf("of_a_newer_version"), "info");
});

test("signs keep their order, and count what they lead to", () => {
  const told = signs(overview({ trouble: 3, ungraded: 6, findings: [found("no_calls", "error", 2)] }));
  assert.deepEqual(told.map((each) => [each.key, each.n]), [["trouble", 3], ["no_calls", 2], ["drift", 0], ["capture_incomplete", 0], ["limit_stop", 0], ["ungraded", 6]]);
  // By the names that docs/findings.md has, and the lists that they lead to.
  for (const { label, patch } of told.filter((each) => each.patch.finding)) assert.equal(label, patch.finding);
  for (const { title } of told) assert.ok(!title.includes("`"), title);
  assert.deepEqual(told.at(-1).patch, { graded: "0" });
  // A server that can't list them has a number, and no button.
  assert.deepEqual([signs(overview()).at(-1).n, signs(overview()).at(-1).patch], [6, null]);
});

test("what goes on is said with its units", () => {
  assert.equal(bustle(overview(), String), "4 open · 1 call runs now · 5 calls · 50 tokens sampled");
});

/* A clock that stands until it is told to go on. */
class Clock {
  at = 0;
  timers = [];
  now = () => this.at;
  later = (work, wait) => this.timers.push({ work, at: this.at + wait });

  async go(ms) {
    this.at += ms;
    const due = this.timers.filter((each) => each.at <= this.at);
    this.timers = this.timers.filter((each) => each.at > this.at);
    for (const each of due) await each.work();
  }
}

test("many events are one look", async () => {
  const clock = new Clock();
  let looks = 0;
  const pace = paced(async () => { looks += 1; }, { least: 1000, clock, later: clock.later, hidden: () => false });
  for (let n = 0; n < 50; n += 1) pace.ask();
  await clock.go(1000);
  assert.equal(looks, 1);
  await clock.go(5000);
  assert.equal(looks, 1);
});

test("a look that takes long is taken less often", async () => {
  const clock = new Clock();
  const starts = [];
  const pace = paced(async () => { starts.push(clock.at); clock.at += 400; pace.ask(); }, { least: 1000, clock, later: clock.later, hidden: () => false });
  pace.ask();
  for (let n = 0; n < 120; n += 1) await clock.go(100);
  for (let n = 1; n < starts.length; n += 1) assert.ok(starts[n] - starts[n - 1] >= 8 * 400, String(starts));
});

test("what nobody sees isn't looked at, until it is", async () => {
  const clock = new Clock();
  let seen = false;
  let looks = 0;
  const pace = paced(async () => { looks += 1; }, { least: 10, clock, later: clock.later, hidden: () => !seen });
  pace.ask();
  await clock.go(1000);
  assert.equal(looks, 0);
  seen = true;
  pace.awake();
  await clock.go(0);
  assert.equal(looks, 1);
});

test("a look that fails is told, and the next is taken all the same", async () => {
  const clock = new Clock();
  const told = [];
  let looks = 0;
  const pace = paced(async () => { looks += 1; if (looks === 1) throw new Error("down"); }, { least: 10, failed: (error) => told.push(error.message), clock, later: clock.later, hidden: () => false });
  pace.ask();
  await clock.go(10);
  pace.ask();
  await clock.go(1000);
  assert.deepEqual([looks, told], [2, ["down"]]);
  pace.stop();
  pace.ask();
  await clock.go(100000);
  assert.equal(looks, 2);
});
