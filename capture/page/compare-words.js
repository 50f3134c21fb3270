/* How two rollouts differ: fields, calls side by side, and where their requests part. No DOM here.

   `a` and `b` are graphs as the control plane gives them. */

import { canonical, parted, shared } from "./difference.js";
import { messagesOf, replyOf, toolsOf } from "./messages.js";

const FIELDS = [["group", "group"], ["state", "state"], ["reward", "reward"], ["tier", "tier"], ["model", "model"], ["logprobs_mode", "logprobs"],
  ["incomplete", "incomplete"], ["stopped", "stopped by a limit"], ["n_calls", "calls"], ["n_main_calls", "main calls"], ["n_tool_calls", "tool calls"],
  ["n_conversations", "conversations"], ["n_prompt_tokens", "prompt tokens"], ["n_sampled_tokens", "sampled tokens"], ["n_distinct_tokens", "distinct tokens"]];

const same = (x, y) => canonical(x ?? null) === canonical(y ?? null);

export function said(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en-GB") : String(Number(value.toFixed(4)));
  return typeof value === "string" ? value : JSON.stringify(value);
}

/* Fields of both summaries, those that differ first: [{name, a, b, same}]. */
export function fields(a, b) {
  const rows = FIELDS.map(([key, name]) => {
    const of = (each) => (key === "stopped" ? (each.stopped ? each.stopped.limit : null) : each[key]);
    return { name, a: of(a.rollout), b: of(b.rollout) };
  });
  for (const name of new Set([...Object.keys(a.rollout.labels), ...Object.keys(b.rollout.labels)])) {
    rows.push({ name: `label ${name}`, a: a.rollout.labels[name] ?? null, b: b.rollout.labels[name] ?? null });
  }
  return rows.map((row) => ({ ...row, same: same(row.a, row.b) })).sort((x, y) => x.same - y.same);
}

/* Conversations beside each other: main with main, the first subagent with the first, a title with a title. Of those
   that one alone has, the other side is null. Calls in none (errors, limits' last replies) come last. Of a
   conversation, the calls that went on are aligned one by one; those that were discarded stand alone. A conversation
   whose role somebody ruled stands beside what it is by what it did: a title beside a title, though one of them is
   trained as main. [{role, kind, rows: [{a, b}]}], a and b calls or null. */
export function aligned(a, b) {
  const sections = [];
  const left = groups(a);
  const right = groups(b);
  for (const key of new Set([...left.keys(), ...right.keys()])) {
    const [role, kind] = JSON.parse(key);
    const [mine, theirs] = [left.get(key) ?? [], right.get(key) ?? []];
    for (let at = 0; at < Math.max(mine.length, theirs.length); at += 1) {
      sections.push({ role, kind, rows: beside(mine[at] ?? [], theirs[at] ?? []) });
    }
  }
  const order = ["main", "subagent", "auxiliary", "none"];
  return sections.sort((x, y) => order.indexOf(x.role) - order.indexOf(y.role));
}

function groups(graph) {
  const calls = new Map(graph.calls.map((call) => [call.n, call]));
  const out = new Map();
  const put = (role, kind, members) => {
    const key = JSON.stringify([role, kind]);
    out.set(key, [...(out.get(key) ?? []), members]);
  };
  const all = judged(graph);
  // A main conversation that goes on behind a compaction is one: its parts in order.
  const main = all.filter((each) => each.role === "main").flatMap((each) => each.calls);
  if (main.length) put("main", null, main.sort((x, y) => x - y).map((n) => calls.get(n)).filter(Boolean));
  for (const each of all) if (each.role !== "main") put(each.role, each.kind, each.calls.map((n) => calls.get(n)).filter(Boolean));
  const none = graph.calls.filter((call) => call.conversation === null);
  if (none.length) put("none", null, none);
  return out;
}

const KINDS = ["title", "summary", "probe", "other"];

const overruled = (graph) => graph.findings.filter((each) => each.code === "role_overruled").map((each) => each.data);

/* The conversations by what they did, whatever was ruled of them. */
function judged(graph) {
  const ruled = new Map(overruled(graph).map(({ conversation, judged: word }) => [conversation, word]));
  return graph.conversations.map((each) => {
    const word = ruled.get(each.n);
    if (word === undefined) return each;
    return KINDS.includes(word) ? { ...each, role: "auxiliary", kind: word } : { ...each, role: word, kind: null };
  });
}

const WORDS = { main: "the task itself", subagent: "a subagent's", auxiliary: "a call of the agent for itself", title: "a title", summary: "a summary", probe: "a probe", other: "a call of the agent for itself" };

/* What was ruled of one's conversations, and not of the other's, a sentence each: it is what is trained. */
export function rulings(graphs, names) {
  const told = graphs.map(overruled);
  return told.flatMap((each, at) => each.map(({ conversation, role, judged: word, tokens }) => {
    const other = told[1 - at].some((one) => one.judged === word && one.role === role);
    const what = `In ${names[at]} conversation ${conversation}, by what it did ${WORDS[word] ?? word}, is taken for ${role} because somebody ruled so`;
    return `${what}${role === "main" && tokens ? `: ${tokens.toLocaleString("en-GB")} of its tokens are trained as the task's` : ""}${other ? `; so it is in ${names[1 - at]}` : `; in ${names[1 - at]} nobody did`}.`;
  }));
}

function beside(mine, theirs) {
  const rows = [];
  let [i, j] = [0, 0];
  while (i < mine.length || j < theirs.length) {
    if (mine[i]?.discarded) rows.push({ a: mine[i++], b: null });
    else if (theirs[j]?.discarded) rows.push({ a: null, b: theirs[j++] });
    else rows.push({ a: mine[i++] ?? null, b: theirs[j++] ?? null });
  }
  return rows;
}

/* In what two calls differ, as far as the graph tells: names of columns and of settings. */
export function differing({ a, b }) {
  if (!a || !b) return ["alone"];
  const names = ["link", "n_prompt", "n_sampled", "status", "finish_reason", "dialect", "model_asked", "constrained"].filter((name) => !same(a[name], b[name]));
  if (!same(a.drift?.tokens, b.drift?.tokens)) names.push("drift");
  if (!same([a.weights.start, a.weights.end], [b.weights.start, b.weights.end])) names.push("weights");
  if (settings([{ a, b }]).some((row) => !row.same && row.name !== "seed")) names.push("sampling");
  return names;
}

const several = (values) => {
  const told = [...new Map(values.filter((value) => value !== null && value !== undefined).map((value) => [canonical(value), value])).values()];
  return told.length === 0 ? null : told.length === 1 ? told[0] : told.map(said).join(", ");
};

/* Sampling of rows' calls, asked for and sent: [{name, asked: [a, b], sent: [a, b], same}], those that differ first. */
export function settings(rows) {
  const names = new Set(rows.flatMap(({ a, b }) => [a, b].flatMap((call) => (call ? [...Object.keys(call.sampling.asked ?? {}), ...Object.keys(call.sampling.sent ?? {})] : []))));
  const read = (side, from, name) => several(rows.map((row) => row[side]?.sampling[from]?.[name]));
  return [...names].map((name) => {
    const asked = [read("a", "asked", name), read("b", "asked", name)];
    const sent = [read("a", "sent", name), read("b", "sent", name)];
    return { name, asked, sent, same: same(asked[0], asked[1]) && same(sent[0], sent[1]) };
  }).filter((row) => [...row.asked, ...row.sent].some((value) => value !== null)).sort((x, y) => x.same - y.same);
}

/* The first of `n` places that differ; `n` where none does. Requests carry what came before them, so places behind the
   first that differs differ too, and a few are asked for instead of all. */
export async function first(n, differs) {
  let low = 0;
  let high = 0;
  let wide = 1;
  while (high < n && !(await differs(high))) {
    low = high + 1;
    high = Math.min(n, high + wide);
    wide *= 2;
    if (high >= n) {
      if (low >= n) return n;
      high = n - 1;
      if (!(await differs(high))) return n;
      break;
    }
  }
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await differs(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

const TALK = new Set(["messages", "contents", "input", "prompt", "system", "instructions", "systemInstruction", "system_instruction", "tools"]);
/* Chance, ids and sessions: they differ between any two rollouts. */
const NATURAL = new Set(["seed", "user", "metadata", "prompt_cache_key", "safety_identifier", "previous_response_id", "session_id", "client_metadata"]);

/* What a reply is drawn with: told of by itself (samplingWords), since it would hide where the talk parts. */
const DRAWN = new Set(["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]);

/* Whether two requests differ in anything that is neither chance nor sampling. */
export const requestsDiffer = (mine, theirs) => changes(mine, theirs).some((each) => !each.natural);

/* In what two requests differ: [{kind: "message" | "length" | "tools" | "setting", …}], the first message first. */
export function changes(mine, theirs) {
  const out = [];
  const [left, right] = [messagesOf(mine).map(bare), messagesOf(theirs).map(bare)];
  const at = shared(left, right);
  if (at < Math.min(left.length, right.length)) {
    const [x, y] = [text(left[at]), text(right[at])];
    out.push({ kind: "message", at, roles: [left[at].role, right[at].role], ...cut(x, y) });
  } else if (left.length !== right.length) {
    const longer = left.length > right.length ? left : right;
    out.push({ kind: "length", at, lengths: [left.length, right.length], role: longer[at].role });
  }
  const [tools, others] = [toolsOf(mine), toolsOf(theirs)];
  if (!same(tools, others)) {
    const names = (list) => new Set(list.map((each) => each.name));
    const [have, had] = [names(others), names(tools)];
    out.push({ kind: "tools", missing: [...had].filter((name) => !have.has(name)), added: [...have].filter((name) => !had.has(name)) });
  }
  for (const name of new Set([...Object.keys(mine ?? {}), ...Object.keys(theirs ?? {})])) {
    if (!TALK.has(name) && !same(mine?.[name], theirs?.[name])) out.push({ kind: "setting", name, was: said(mine?.[name]), is: said(theirs?.[name]), natural: NATURAL.has(name) || DRAWN.has(name) });
  }
  return out;
}

/* Ids of tool calls are drawn anew in every rollout. */
const bare = ({ role, parts }) => ({ role, parts: parts.map(({ kind, text: told, name, failed }) => ({ kind, text: told, name, failed })) });
const text = (message) => message.parts.map((part) => (part.kind === "text" ? part.text : `[${[part.kind, part.name].filter(Boolean).join(" ")}] ${part.text ?? ""}`)).join("\n");

/* Around the first difference, as much as is read at a glance. */
const AROUND = 120;
const MOST = 600;

function cut(x, y) {
  const { head, was, is, tail } = parted(x, y);
  const before = head.length > AROUND ? `…${head.slice(-AROUND)}` : head;
  const after = tail.length > AROUND ? `${tail.slice(0, AROUND)}…` : tail;
  const short = (each) => (each.length > MOST ? `${each.slice(0, MOST)}…` : each);
  return { before, was: short(was), is: short(is), after };
}

/* Where two rollouts part, in sentences. `k` calls of main, of `n` that both made, were asked alike; `found` are the
   changes at the next (null where there is none), `known` how many messages the request before it had, `answeredAlike`
   whether the replies to that one are equal. */
export function parting({ k, n, found, known, answeredAlike = false, names: [a, b] }) {
  if (n === 0) return ["One of them made no call of main: there is nothing to compare."];
  if (k === n) {
    return [n === 1 ? "Both made the same request first; what came back is all that can differ." : `All ${n} requests that both made are alike.`];
  }
  const out = [k === 0 ? "They part at the first request: before the model has said a word." : `${k === 1 ? "The first request is" : `The first ${k} requests are`} alike; request ${k + 1} differs.`];
  for (const each of found) {
    if (each.natural) continue;
    if (each.kind === "message") out.push(messageWords(each, { k, known, answeredAlike }));
    else if (each.kind === "length") out.push(`${each.lengths[0] > each.lengths[1] ? a : b} sends ${Math.abs(each.lengths[0] - each.lengths[1])} more ${Math.abs(each.lengths[0] - each.lengths[1]) === 1 ? "message" : "messages"}, from message ${each.at} on (${each.role}).`);
    else if (each.kind === "tools") out.push(toolWords(each, a, b));
    else out.push(`${each.name} is ${each.was} in ${a}, and ${each.is} in ${b}.`);
  }
  return out;
}

function messageWords({ at, roles }, { k, known, answeredAlike }) {
  const role = roles[0] === roles[1] ? roles[0] : `${roles[0]} in one, ${roles[1]} in the other`;
  const where = `Message ${at} (${role}) differs`;
  if (k === 0) return `${where}: ${role === "system" ? "their agents were set up otherwise, or it says something that changes (a date, a path)" : "they were not given the same task"}.`;
  if (known !== null && at < known) return `${where}, and stood in the request before: an agent has rewritten its history.`;
  if (roles[0] === "assistant" && answeredAlike) return `${where}, though the model had answered alike: an agent has written the reply anew.`;
  if (roles[0] === "assistant") return `${where}: the model answered otherwise, as it may where tokens are drawn.`;
  return `${where}: the model had answered alike, and what came back to it was another (${roles[0] === "tool" ? "a tool's result" : "the environment"}).`;
}

function toolWords({ missing, added }, a, b) {
  const parts = [];
  if (missing.length) parts.push(`${a} alone offers ${missing.join(", ")}`);
  if (added.length) parts.push(`${b} alone offers ${added.join(", ")}`);
  return parts.length ? `Tools differ: ${parts.join("; ")}.` : "Tools have the same names, and another description, schema or order.";
}

/* Whether two replies are equal, but for what is drawn anew. */
export const repliesAlike = (mine, theirs) => same(replyOf(mine).map(bare), replyOf(theirs).map(bare));

/* How two rollouts go on behind what both did, in a sentence each. */
export function goingOn(graphs, names, rows) {
  return graphs.flatMap(({ rollout }, at) => {
    const side = at === 0 ? "a" : "b";
    const alone = rows.filter((row) => row[side] && !row[side].discarded && !row[side === "a" ? "b" : "a"]).length;
    const out = [];
    if (alone > 0) out.push(`${names[at]} has ${alone.toLocaleString("en-GB")} ${alone === 1 ? "call" : "calls"} of main that the other has not.`);
    if (rollout.stopped) out.push(`${names[at]} was stopped by its limit ${rollout.stopped.limit}.`);
    if (rollout.n_calls === 0 && rollout.state === "closed") out.push(`${names[at]} made no call at all.`);
    return out;
  });
}

/* The first row of calls whose sampling differs, in a sentence; null where none does. */
export function samplingWords(rows, [a, b]) {
  for (const row of rows) {
    if (!row.a || !row.b) continue;
    const found = settings([row]).filter((each) => !each.same && each.name !== "seed");
    if (found.length === 0) continue;
    const told = found.map(({ name, asked, sent }) => (same(sent[0], sent[1]) ? `${name} was asked for as ${said(asked[0])} by ${a} and ${said(asked[1])} by ${b}, and sent alike` : `${name} was ${said(sent[0])} in ${a} and ${said(sent[1])} in ${b}`));
    return `From call ${row.a.n} of ${a} and ${row.b.n} of ${b} on, they were sampled otherwise: ${told.join("; ")}.`;
  }
  return null;
}

/* Findings of both: [{code, level, a, b}] with the finding or null, those of one alone first. */
export function findings(a, b, rank) {
  const [left, right] = [a, b].map((graph) => {
    const held = new Map();
    for (const each of graph.findings) if (!held.has(each.code)) held.set(each.code, each);
    return held;
  });
  const rows = [...new Set([...left.keys(), ...right.keys()])].map((code) => {
    const [x, y] = [left.get(code) ?? null, right.get(code) ?? null];
    return { code, a: x, b: y, level: [x, y].filter(Boolean).map((each) => each.level).sort((one, two) => rank(one) - rank(two))[0] };
  });
  return rows.sort((x, y) => Boolean(x.a && x.b) - Boolean(y.a && y.b) || rank(x.level) - rank(y.level));
}
