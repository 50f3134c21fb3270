/* What there is to say of a group: spread, outliers, and what its rollouts don't have in common. No DOM here.

   A row is a rollout's summary with its health; `trained` ({rows, tokens}) is there once it was asked for. */

import { amount } from "./states.js";
import { byTable, findingsOf, rankOf } from "./health.js";

/* How many times its median a length must be (or a part of it) to be named. */
const FAR = 3;
/* Names in one sentence, and codes with one of their own; the tables have them all. */
const NAMED = 4;
const CODES_NAMED = 5;
/* What other sentences say. */
const SPOKEN = new Set(["no_calls", "capture_incomplete", "nothing_trainable"]);

const whole = (n) => n.toLocaleString("en-GB");
const plain = (x) => String(Number(Number(x).toFixed(4)));

export function median(values) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const at = sorted.length >> 1;
  return sorted.length % 2 ? sorted[at] : (sorted[at - 1] + sorted[at]) / 2;
}

/* {n, mean, deviation (of the whole group, as GRPO divides by), least, most}; null of nothing. */
export function spread(values) {
  if (values.length === 0) return null;
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length;
  const deviation = Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / values.length);
  return { n: values.length, mean, deviation, least: Math.min(...values), most: Math.max(...values) };
}

/* "a, b and c"; of many "a, b, c and 5 more". */
export function names(ids) {
  const shown = ids.length > NAMED + 1 ? [...ids.slice(0, NAMED), `${ids.length - NAMED} more`] : ids;
  return shown.length === 1 ? shown[0] : `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
}

/* What all ids begin with is left away, up to a border: "g7-0", "g7-1" → "0", "1". */
export function shortNames(ids) {
  if (ids.length < 2) return ids;
  let n = 0;
  while (ids.every((id) => n < id.length && id[n] === ids[0][n])) n += 1;
  while (n > 0 && !/[-_./:]/.test(ids[0][n - 1])) n -= 1;
  return ids.map((id) => id.slice(n) || id);
}

/* Sentences, the worst first: [{level: "error" | "warn" | "info" | "good", text}]. */
export function statements(rows) {
  const all = rows.length;
  if (all === 0) return [];
  const said = [];
  const say = (level, text) => said.push({ level, text });
  const of = (some) => (some.length === all ? (all === 1 ? "The only rollout" : all === 2 ? "Both" : `All ${whole(all)}`) : `${whole(some.length)} of ${whole(all)}`);
  const ids = (some) => (some.length === all ? "" : `: ${names(some.map((row) => row.id))}`);
  const verb = (some, one, many) => (some.length === 1 ? one : many);

  const silent = rows.filter((row) => row.n_calls === 0 && row.state === "closed");
  if (silent.length) say("error", `${of(silent)} made no call${ids(silent)}. ${silent.length === 1 ? "Its reward would say" : "Their rewards would say"} nothing about the policy.`);
  const incomplete = rows.filter((row) => row.incomplete);
  if (incomplete.length) say("error", `${of(incomplete)} ${verb(incomplete, "is", "are")} incomplete${ids(incomplete)}. Don't train on ${incomplete.length === 1 ? "it" : "them"}.`);
  const barren = rows.filter((row) => row.trained && row.trained.tokens === 0 && row.n_calls > 0);
  if (barren.length) say("error", `${of(barren)} ${verb(barren, "trains", "train")} no token${ids(barren)}.`);

  for (const { code, level, counts } of sideBySide(rows).filter((each) => each.level !== "info" && !SPOKEN.has(each.code)).slice(0, CODES_NAMED)) {
    const some = rows.filter((_, at) => counts[at] > 0);
    say(level, `${of(some)} ${verb(some, "has", "have")} ${code}${ids(some)}.`);
  }

  const graded = rows.filter((row) => row.reward !== null);
  const useless = new Set([...silent, ...incomplete, ...barren].map((row) => row.id));
  const left = spread(graded.filter((row) => !useless.has(row.id)).map((row) => row.reward));
  const numbers = spread(graded.map((row) => row.reward));
  if (numbers === null) say(rows.some((row) => row.state === "closed") ? "warn" : "info", all === 1 ? "It has no reward." : all === 2 ? "Neither has a reward." : `None of the ${whole(all)} has a reward.`);
  else {
    const ungraded = rows.filter((row) => row.reward === null);
    if (ungraded.length) say(ungraded.some((row) => row.state === "closed") ? "warn" : "info", `${of(ungraded)} ${verb(ungraded, "has", "have")} no reward${ids(ungraded)}.`);
    if (numbers.n === 1) say("warn", all === 1 ? `A group of one: its reward of ${plain(numbers.mean)} has no advantage over itself.` : `Only one has a reward, ${plain(numbers.mean)}: there is nothing to compare it with.`);
    else if (numbers.least === numbers.most) say("warn", `All ${numbers.n === all ? "" : `${numbers.n} `}rewards are equal (${plain(numbers.least)}): the advantage is zero everywhere.`);
    else if (graded.some((row) => useless.has(row.id)) && (left === null || left.least === left.most)) {
      const out = graded.filter((row) => useless.has(row.id));
      say("warn", `Rewards run from ${plain(numbers.least)} to ${plain(numbers.most)}, but without ${names(out.map((row) => row.id))}, of which nothing can be learnt, no difference is left.`);
    } else say("good", `Rewards run from ${plain(numbers.least)} to ${plain(numbers.most)}, mean ${plain(numbers.mean)}, standard deviation ${plain(numbers.deviation)}.`);
  }

  const open = rows.filter((row) => row.state === "open");
  if (open.length) say("info", `${of(open)} ${verb(open, "is", "are")} still open.`);
  for (const { id, calls, tokens } of strays(rows)) {
    const parts = [calls && [`${whole(calls.value)} ${calls.value === 1 ? "call" : "calls"} of main`, calls.median], tokens && [`${whole(tokens.value)} sampled ${tokens.value === 1 ? "token" : "tokens"}`, tokens.median]].filter(Boolean);
    say("info", `${id} has ${parts.map(([text]) => text).join(" and ")}; ${parts.length === 1 ? "the median is" : "the medians are"} ${parts.map(([, middle]) => whole(middle)).join(" and ")}.`);
  }
  const order = ["error", "warn", "good", "info"];
  return said.sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
}

/* Rollouts far from the others in calls, in tokens or in both, at most three. */
function strays(rows) {
  const found = new Map();
  for (const [name, read] of [["calls", (row) => row.n_main_calls], ["tokens", (row) => row.n_sampled_tokens]]) {
    for (const each of outliers(rows, read)) found.set(each.id, { ...found.get(each.id), id: each.id, [name]: each });
  }
  return [...found.values()].slice(0, 3);
}

/* Closed rollouts whose length is far from the others': [{id, value, median}], at most three. */
export function outliers(rows, read) {
  const counted = rows.filter((row) => row.state === "closed" && row.n_calls > 0 && read(row) !== null).map((row) => ({ id: row.id, value: read(row) }));
  if (counted.length < 4) return [];
  const middle = median(counted.map((each) => each.value));
  if (!middle) return [];
  const far = (value) => Math.max(value / middle, middle / Math.max(value, 1e-9));
  return counted.filter((each) => far(each.value) >= FAR).sort((a, b) => far(b.value) - far(a.value)).slice(0, 3).map((each) => ({ ...each, median: middle }));
}

/* Codes against rollouts: {codes: [{code, level, counts: [n, …], rollouts}]}, the worst first. */
export function sideBySide(rows) {
  const found = new Map();
  rows.forEach((row, at) => {
    for (const { code, level, n } of findingsOf(row)) {
      const held = found.get(code) ?? { code, level, counts: rows.map(() => 0), rollouts: 0 };
      held.counts[at] = n;
      held.rollouts += 1;
      if (rankOf(level) < rankOf(held.level)) held.level = level;
      found.set(code, held);
    }
  });
  return [...found.values()].sort((a, b) => rankOf(a.level) - rankOf(b.level) || b.rollouts - a.rollouts || byTable(a.code, b.code));
}

const shown = (value) => (value === null || value === undefined ? "not said" : typeof value === "string" ? value : JSON.stringify(value));
const several = (values) => [...new Set(values)].sort().join(", ") || "not said";

/* What a rollout's graph says of how it was run: a Map of name → value in words. */
export function settingsOf(graph) {
  const { rollout } = graph;
  const main = new Set(graph.conversations.filter((each) => each.role === "main").map((each) => each.n));
  const calls = graph.calls.filter((call) => main.has(call.conversation));
  const out = new Map([["model", shown(rollout.model)], ["tier", rollout.tier], ["logprobs", rollout.logprobs_mode]]);
  for (const [name, value] of Object.entries(rollout.limits ?? {})) if (value !== null) out.set(`limit ${name}`, amount(name, value));
  if (calls.length === 0) return out;
  out.set("engine", several(calls.map((call) => shown(call.engine))));
  out.set("dialect", several(calls.map((call) => shown(call.dialect))));
  out.set("model asked for", several(calls.map((call) => shown(call.model_asked))));
  out.set("weights", several(calls.flatMap((call) => [call.weights.start, call.weights.end]).filter((each) => each !== null)));
  out.set("prompts", several(calls.map((call) => (call.pinned ? "pinned" : "as the engine renders them"))));
  for (const side of ["asked", "sent"]) {
    for (const name of new Set(calls.flatMap((call) => Object.keys(call.sampling[side] ?? {})))) {
      const values = several(calls.map((call) => shown(call.sampling[side]?.[name])));
      if (values !== "not said") out.set(`${name}, ${side}`, values);
    }
  }
  return out;
}

/* Seeds are meant to differ. */
const NATURAL = /^seed, /;

/* [[id, settings]] → {differing: [{name, values: [{value, ids}]}], common: [{name, value}]}; differing ones whose
   difference is meant come last and say so. */
export function differences(all) {
  const differing = [];
  const common = [];
  for (const name of new Set(all.flatMap(([, settings]) => [...settings.keys()]))) {
    const values = new Map();
    for (const [id, settings] of all) {
      // A rollout without a call says nothing of how calls were made.
      const limit = name.startsWith("limit ");
      if (!settings.has(name) && !settings.has("engine") && !limit) continue;
      const value = settings.get(name) ?? (limit ? "none" : "not said");
      values.set(value, [...(values.get(value) ?? []), id]);
    }
    if (values.size > 1) differing.push({ name, natural: NATURAL.test(name), values: [...values].map(([value, ids]) => ({ value, ids })).sort((a, b) => b.ids.length - a.ids.length) });
    else if (values.size === 1) common.push({ name, value: [...values.keys()][0] });
  }
  return { differing: differing.sort((a, b) => a.natural - b.natural), common };
}
