/* What an overview says of the health of many rollouts, in words and in a fixed order. No DOM here: node tests it. */

import { CODES } from "./codes.js";
import { flat } from "./flat.js";

const RANK = { error: 0, warn: 1, info: 2 };
/* The class of `.tag` that a level has. */
export const TAG = { error: "error", warn: "warning", info: "info" };
/* A level's mark, so that colour is never alone. */
export const MARK = { error: "✕", warn: "!", info: "·" };

/* A code's level: as the server says (an overview's severity), else as the table has it. */
export function levelOf(code, { severity = null, tier = null } = {}) {
  const told = severity === "warning" ? "warn" : severity;
  if (told in RANK) return told;
  const row = CODES[code];
  return (tier === "eval" && row?.evalLevel) || row?.level || "info";
}

export const rankOf = (level) => RANK[level] ?? 3;

const PLACES = new Map(Object.keys(CODES).map((code, at) => [code, at]));
/* The table's order: what came first in a rollout's life comes first. */
const place = (code) => PLACES.get(code) ?? PLACES.size;
export const byTable = (a, b) => place(a) - place(b) || a.localeCompare(b);

/* A row's findings, the worst first: [{code, level, n}]. */
export function findingsOf(row) {
  const all = Object.entries(row.health?.findings ?? {}).map(([code, n]) => ({ code, n, level: levelOf(code, { tier: row.tier }) }));
  return all.sort((a, b) => rankOf(a.level) - rankOf(b.level) || byTable(a.code, b.code));
}

/* An overview's findings, the worst first, then those that most rollouts have: [{code, level, rollouts, n}]. */
export function findingsIn(overview) {
  const all = overview.findings.map((each) => ({ ...each, level: levelOf(each.code, each) }));
  return all.sort((a, b) => rankOf(a.level) - rankOf(b.level) || b.rollouts - a.rollouts || byTable(a.code, b.code));
}

const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en-GB")} ${n === 1 ? one : many}`;
const plain = (x) => String(Number(Number(x).toFixed(4)));

/* Rewards in a sentence, and whether to worry: {level: null | "warn", text}. */
export function rewardWords(reward) {
  if (!reward || reward.n === 0) return { level: null, text: "No reward yet" };
  if (reward.n > 1 && reward.min === reward.max) {
    return { level: "warn", text: `All ${count(reward.n, "reward")} are ${plain(reward.min)}: there is nothing to learn from` };
  }
  if (reward.n === 1) return { level: null, text: `One reward: ${plain(reward.mean)}` };
  return { level: null, text: `${count(reward.n, "reward")}, mean ${plain(reward.mean)}, from ${plain(reward.min)} to ${plain(reward.max)}` };
}

/* The strip's first line: {level: "none" | "good" | "warn" | "error", text}. */
export function verdict(overview, { filtered = false } = {}) {
  if (overview.rollouts === 0) return { level: "none", text: filtered ? "No rollout fits." : "No rollouts yet." };
  const worst = findingsIn(overview)[0]?.level;
  const bad = overview.trouble ?? 0;
  const stale = overview.stale ?? 0;
  const all = count(overview.rollouts, "rollout");
  if (bad === 0 && worst !== "error" && worst !== "warn") return stale ? { level: "none", text: `${all}: nothing wrong so far.` } : { level: "good", text: `All is well with ${all}.` };
  const level = worst === "error" || overview.no_calls > 0 || overview.incomplete > 0 ? "error" : "warn";
  if (bad === 0) return { level, text: `${all}; see what was found.` };
  if (bad === overview.rollouts) return { level, text: bad === 1 ? "The only rollout needs a look." : `All ${all} need a look.` };
  return { level, text: `${bad.toLocaleString("en-GB")} of ${all} ${bad === 1 ? "needs" : "need"} a look.` };
}

/* Signs that are always there, each with what it filters by: [{key, label, n, level, title, patch}]. `patch` is null
   where the server can't filter by it. Their numbers are those of the lists that they lead to. */
export function signs(overview) {
  const of = (code) => overview.findings.find((each) => each.code === code)?.rollouts ?? 0;
  const finding = (code) => ({ key: code, label: code, n: of(code), level: of(code) ? levelOf(code) : "good", title: flat(`${CODES[code].means} ${CODES[code].todo}`), patch: { finding: code } });
  const ungraded = overview.ungraded ?? Math.max(0, overview.closed - overview.graded);
  return [
    { key: "trouble", label: "need a look", n: overview.trouble ?? 0, level: overview.trouble ? "warn" : "good", title: "An error or a warning, drift, no call, or a record with a hole in it", patch: { trouble: true } },
    ...SIGNS.map(finding),
    { key: "ungraded", label: "ungraded", n: ungraded, level: ungraded ? "warn" : "good", title: "Closed, and nobody has given a reward", patch: overview.ungraded === undefined ? null : { graded: "0" } },
  ];
}

/* Codes that have a sign of their own, by the name that they have everywhere (docs/findings.md). */
const SIGNS = ["no_calls", "drift", "capture_incomplete", "limit_stop"];
export const SIGNED = new Set(SIGNS);

/* How many rollouts are not yet in the numbers; null where all are. */
export const unread = (overview) => (overview.stale ? `${count(overview.stale, "rollout is", "rollouts are")} still to be read` : null);

/* "3 open, 2 calls running, 1,204 calls, 56k tokens sampled": what goes on. */
export function bustle(overview, short) {
  return [`${count(overview.open, "open", "open")}`, `${count(overview.running, "call runs", "calls run")} now`,
    `${short(overview.calls)} ${overview.calls === 1 ? "call" : "calls"}`, `${short(overview.sampled_tokens)} tokens sampled`].join(" · ");
}
