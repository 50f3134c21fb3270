/* A call whole: what was asked and with what, what came, how long it took, and where in the forest it stands.

   The head is painted as soon as the call is there; what it adds to its parent is told when the parent's request has
   come, in a place that is kept for it. */

import { pause } from "./api.js";
import { copyCurl } from "./copy.js";
import { shared, sides } from "./difference.js";
import { fill, h, moment, number, plural, span, svg } from "./dom.js";
import { changes } from "./forks.js";
import { callOf, graphOf } from "./held.js";
import { key } from "./keys.js";
import { messagesOf, replyOf, toolsOf } from "./messages.js";
import { prose } from "./prose.js";
import { raw } from "./raw.js";
import { to } from "./router.js";
import { conversation, foldable, messageItem } from "./talk.js";
import { FORK, LINK, ROLE, STATUS, TONE, notesOf, plain, roleOf, straddles, versionsOf } from "./words.js";

/* For a parent to be read, before the call is shown without it. */
const PARENT_MS = 300;
/* Tools that are few and say little are shown; others are folded. */
const BRIEF_TOOLS = 6;
const BRIEF_TEXT = 2000;
/* Of a request, what is shown elsewhere. */
const SHOWN = ["messages", "contents", "input", "prompt", "system", "instructions", "systemInstruction", "system_instruction", "tools"];

export async function show(root, { id, n: given }, ctx) {
  const n = Number(given);
  ctx.title(`Call ${n} of ${id}`, ["Rollouts", "#/"], [id, to("rollouts", id, { call: n })], [`call ${n}`]);
  const graphing = graphOf(ctx.api, id, { signal: ctx.signal });
  graphing.catch(() => {});
  const call = await callOf(ctx.api, id, n, { signal: ctx.signal });
  /* What is new in it is known when the parent's request has come, and what changed when forks are told: soon, or the
     rest is shown before. */
  const talk = h("div.talk-place.held", h("p.quiet", "Reading…"));
  const parted = call.link === "drift" || call.link === "compaction" || call.fork;
  let told = null;
  const telling = parted ? ctx.api.get(`rollouts/${encodeURIComponent(id)}/forks`, { signal: ctx.signal }).then((answer) => { told = answer; }) : null;
  const soon = Promise.all([asked(talk, call, id, ctx), telling]).catch(() => {});
  await Promise.race([soon, pause(PARENT_MS, ctx.signal)]);
  if (ctx.signal.aborted) return;
  const near = h("nav.neighbours", { "aria-label": "Calls around it" }, h("span.quiet", "…"));
  const role = h("span.role-place");
  const why = h("div.why-place", { class: parted ? "known" : null }, parted ? brokenWords(call, id, told) : null);
  const path = `rollouts/${encodeURIComponent(id)}/calls/${n}`;
  const [mark, status, meaning] = STATUS[call.status] || ["?", call.status, ""];
  fill(root,
    h("div.row.spread",
      h("h1", `Call ${n}`, " ", h("span.tag", { class: TONE[call.status] ?? "warning", title: meaning }, h("span", { "aria-hidden": "true" }, `${mark} `), status), " ", role),
      h("div.row", h("a.button", { href: to("rollouts", id, "tokens", n) }, "Tokens"), copyCurl(path, ctx))),
    near,
    call.error ? h("div.notice.bad", h("p", h("strong", "Error: "), prose(call.error.message || "no message")), h("p", `Blame: ${call.error.blame}${call.error.status ? `, status ${call.error.status}` : ""}.`)) : null,
    straddles(call) ? h("div.notice.warn", h("p", h("strong", "The weights changed while it was sampled: "), versionsOf(call.weights).join(" → "), ". ",
      call.weights.spans.length > 1 ? "The engine says which of its tokens each drew; see its tokens." : "Which of its tokens each drew is not known.", " ", h("a", { href: to("docs", "findings", { at: "weights_changed" }) }, "What that means"))) : null,
    why,
    facts(call),
    h("section.panel", { "aria-labelledby": "asked-head" }, h("h2", { id: "asked-head" }, "Asked"), talk, tools(call)),
    h("section.panel", { "aria-labelledby": "reply-head" }, h("h2", { id: "reply-head" }, "Reply"), reply(call)),
    sampling(call),
    raw(call, id, n, ctx));

  /* Behind the first sight of it; each has its place. */
  const behind = (work) => work.catch((error) => { if (!ctx.signal.aborted) ctx.say(error.message); });
  behind(around(near, role, call, graphing, id, ctx));
  if (telling && !told) behind(telling.then(() => fill(why, brokenWords(call, id, told))));
  if (call.status === "running") behind(ended(root, { id, n: given }, ctx));
}

/* Shows the call anew when it has ended. */
async function ended(root, params, ctx) {
  const stop = new AbortController();
  const signal = AbortSignal.any([ctx.signal, stop.signal]);
  ctx.live("running");
  const look = async () => {
    const now = await callOf(ctx.api, params.id, params.n, { signal });
    if (now.status === "running" || stop.signal.aborted) return;
    stop.abort();
    ctx.live("");
    await show(root, params, ctx);
  };
  await ctx.api.stream(`rollouts/${encodeURIComponent(params.id)}/events`, {
    signal,
    /* It may have ended before the line was up. */
    onState: (up) => { if (up) look().catch(() => {}); },
    onEvent: ({ event, data }) => { if (event === "call.ended" && data.call === Number(params.n)) look().catch(() => {}); },
  });
}

/* The messages, those that the parent's request had too folded away. */
async function asked(talk, call, id, ctx) {
  const messages = messagesOf(call.request);
  let before = null;
  if (call.parent !== null) {
    try {
      before = messagesOf((await callOf(ctx.api, id, call.parent, { signal: ctx.signal })).request);
    } catch (error) {
      if (ctx.signal.aborted) throw error;
      /* Without the parent all are shown, and none is called new. */
    }
  }
  talk.classList.remove("held");
  const known = before ? shared(before.map((each) => each.key), messages.map((each) => each.key)) : 0;
  fill(talk, messages.length ? conversation(messages, { known, parent: before ? call.parent : null })
    : h("p.quiet", call.request ? "No messages: see the raw request." : "The request isn't there yet."));
}

async function around(near, role, call, graphing, id, ctx) {
  const graph = await graphing;
  if (ctx.signal.aborted) return;
  const conversations = new Map(graph.conversations.map((each) => [each.n, each]));
  const kept = new Set(graph.forks.map((fork) => fork.kept).filter((each) => each !== null));
  const [name, said] = roleOf(call, conversations);
  fill(role, h("span.tag", h("span", { class: `role-${name}`, title: ROLE[name] }, said)),
    notesOf(call, conversations.get(call.conversation), kept).flatMap((note) => [" ", h("span.tag", note)]));
  neighbours(near, graph, call, id, ctx);
}

function neighbours(near, graph, call, id, ctx) {
  const numbers = graph.calls.map((each) => each.n).sort((a, b) => a - b);
  const at = numbers.indexOf(call.n);
  const children = graph.calls.filter((each) => each.parent === call.n).map((each) => each.n);
  const link = (n) => h("a", { href: to("rollouts", id, "calls", n) }, `#${n}`);
  const before = numbers[at - 1];
  const after = numbers[at + 1];
  const begun = graph.conversations.filter((each) => each.parent_call === call.n);
  fill(near,
    h("span", "Parent ", call.parent === null ? h("span.quiet", "none") : link(call.parent)),
    h("span", "Goes on in ", children.length ? children.flatMap((n) => [link(n), " "]) : h("span.quiet", "none")),
    begun.length ? h("span", "Started ", begun.flatMap((each) => [link(each.root), " "])) : null,
    h("span", before === undefined ? h("span.quiet", "first") : ["← ", link(before)], " ", after === undefined ? h("span.quiet", "last") : [link(after), " →"]));
  const go = (n, view = "calls") => () => { if (n !== undefined && n !== null) location.hash = to("rollouts", id, view, n); };
  ctx.keys({
    j: key("next call", go(after)),
    k: key("previous call", go(before)),
    p: key("parent", go(call.parent)),
    c: key("first call that goes on from it", go(children[0])),
    t: key("tokens", go(call.n, "tokens")),
  });
}

/* Where its tokens part from its parent's, and what the agent changed: `told` is of `GET …/forks`, null before it came. */
function brokenWords(call, id, told) {
  const parts = [];
  if (call.link === "drift" || call.link === "compaction") {
    const found = told?.breaks.find((each) => each.call === call.n);
    const own = call.drift ? `${plural(call.drift.tokens, "token")} of call ${call.parent} are gone from position ${number(call.drift.at)} on (${plain(call.drift.cause)}).` : `It goes on from a summary of what led to call ${call.parent}.`;
    parts.push(h("p", h("strong", call.link === "drift" ? "Drift: " : "Compaction: "), prose(found?.words || own), " ",
      h("a", { href: to("rollouts", id, "tokens", call.n, call.drift ? { at: call.drift.at } : {}) }, "Tokens side by side")), changes(found?.changes));
  }
  if (call.fork) {
    const found = told?.forks.find((each) => each.calls.includes(call.n));
    parts.push(h("p", h("strong", `${call.fork[0].toUpperCase()}${call.fork.slice(1)}: `), prose(found?.words || `${FORK[call.fork] || ""}.`)), changes(found?.changes));
  }
  return h("div.notice.warn", parts);
}

function facts(call) {
  const pair = (name, value, title) => (value === null || value === undefined || value === "" ? null : h("div", h("dt", name), h("dd", { title: title || null }, value)));
  const usage = Object.entries(call.usage || {}).filter(([, value]) => typeof value === "number");
  const weights = call.weights.start === null && call.weights.end === null ? "unknown"
    : call.weights.start === call.weights.end ? call.weights.start : h("strong.warn-text", `${call.weights.start ?? "?"} → ${call.weights.end ?? "?"}`);
  const first = call.deliveries[0];
  return h("section.panel", { "aria-labelledby": "facts-head" },
    h("h2.hidden", { id: "facts-head" }, "Facts"),
    timing(call),
    h("dl.facts",
      pair("Tokens", `${number(call.n_prompt)} read, ${number(call.n_sampled)} sampled`),
      pair("Hangs on its parent", call.parent === null ? "root" : `${call.link}, ${number(call.n_shared)} shared`, LINK[call.link]),
      pair("Finish", plain(call.finish_reason ?? "none")),
      pair("Began", moment(call.started_at)),
      pair("Delivered", call.delivered === null ? "unknown" : call.delivered ? (call.deliveries.length > 1 ? `yes, ${call.deliveries.length} times` : "yes") : "no: the agent had hung up", first ? first.at : null),
      pair("Dialect", `${call.dialect}${call.streamed ? ", streamed" : ""}`),
      pair("Model asked for", call.model_asked),
      pair("Engine", call.engine),
      pair("Weights", weights),
      pair("Reply's id", call.id),
      call.choice ? pair("Choice", number(call.choice)) : null,
      usage.map(([name, value]) => pair(`Usage: ${plain(name)}`, number(value))),
      pair("Repairs", call.repairs.map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join(", ")),
      call.weights.spans.length > 1 ? pair("Weights by span", call.weights.spans.map((each) => `${each.version ?? "?"}: ${number(each.start)} to ${number(each.end)}`).join("; ")) : null,
      Object.entries(call.hints || {}).map(([name, value]) => pair(`Header ${name}`, String(value)))),
    call.deliveries.length > 1 ? h("ul", call.deliveries.map((each) => h("li", moment(each.at), each.complete ? " whole" : " not to its end"))) : null);
}

/* Queue, first token, the rest: a bar with its numbers in words. */
function timing(call) {
  const total = call.ended_ms ?? 0;
  if (!total) return h("p.quiet", call.status === "running" ? "It runs now." : "No times are known.");
  const queued = Math.min(call.queued_ms ?? 0, total);
  const known = call.first_token_ms !== null;
  const first = known ? Math.min(Math.max(call.first_token_ms, queued), total) : queued;
  const x = (ms) => ((ms / total) * 1000).toFixed(1);
  const rate = known && call.n_sampled > 1 && total > first ? ((call.n_sampled - 1) / (total - first)) * 1000 : null;
  const parts = [["queue", 0, queued, "waited for a place"], ["first", queued, first, "to the first token"], ["stream", first, total, known ? "from there to the end" : "until it ended"]].filter(([, a, b]) => b > a);
  return h("div.timing",
    svg("svg", { class: "mask-bar", viewBox: "0 0 1000 14", preserveAspectRatio: "none", role: "img", "aria-label": parts.map(([, a, b, said]) => `${span(b - a)} ${said}`).join(", "), focusable: "false" },
      parts.map(([name, a, b]) => svg("rect", { class: `time-${name}`, x: x(a), y: name === "queue" ? 4 : name === "first" ? 2 : 0, width: Math.max(1, x(b) - x(a)), height: name === "queue" ? 6 : name === "first" ? 10 : 14 }))),
    h("p", h("strong", span(total)), " in all: ", parts.map(([, a, b, said]) => `${span(b - a)} ${said}`).join(", "), rate ? `; ${number(Math.round(rate))} tokens a second` : ""));
}

function reply(call) {
  if (call.status === "running") return h("p.quiet", "It runs now; its reply is here when it has ended.");
  const said = replyOf(call.reply, call.choice);
  if (said.length && said.some((each) => each.parts.length)) return h("ol.messages", said.map((each) => messageItem(each)));
  if (call.text) return h("ol.messages", h("li.message.speaks-assistant", h("p.message-head", h("strong", "assistant")), foldable(call.text)));
  if (call.status === "stopped") return h("p", "Treering answered this one itself, with a last reply: the rollout had reached its limit, and nothing was sampled.");
  return h("p.quiet", call.n_sampled ? "No text: see its tokens." : "Nothing came.");
}

function tools(call) {
  const list = toolsOf(call.request);
  if (!list.length) return h("p.quiet", "No tools were offered.");
  const brief = list.length <= BRIEF_TOOLS && list.reduce((sum, each) => sum + each.description.length, 0) < BRIEF_TEXT;
  return h("details", { open: brief }, h("summary", `${plural(list.length, "tool")}: ${list.map((each) => each.name).join(", ")}`),
    h("dl.tools", list.map((each) => h("div", h("dt", h("code", each.name)), h("dd", h("p", each.description), each.schema ? h("details", h("summary", "its parameters"), foldable(JSON.stringify(each.schema, null, 2))) : null)))));
}

function sampling(call) {
  const rows = sides(call.sampling.asked, call.sampling.sent);
  const translated = call.sent && call.request && call.dialect !== "chat" && call.dialect !== "completions";
  const rest = call.sent && call.request && !translated ? sides(without(call.request), without(call.sent)).filter((row) => !row.same) : [];
  return h("section.panel", { "aria-labelledby": "sampling-head" }, h("h2", { id: "sampling-head" }, "Sampling"),
    rows.length ? sideTable(rows, "Asked for", "Sent") : h("p.quiet", "Neither the agent nor the rollout said how to sample: the engine's defaults held."),
    rest.length ? h("details", h("summary", `${plural(rest.length, "further field")} that the engine got otherwise: ${rest.map((row) => row.name).join(", ")}`), sideTable(rest, "Asked for", "Sent")) : null,
    translated ? h("p.quiet", `The request was of the dialect ${call.dialect}, and was translated: see the raw JSON for both.`) : null);
}

function sideTable(rows, left, right) {
  const cell = (value) => (value === null ? h("span.quiet", "not said") : h("code", typeof value === "string" ? value : JSON.stringify(value)));
  return h("table.sides",
    h("thead", h("tr", ["Field", left, right, "Differs"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", rows.map((row) => h("tr", { class: row.same ? null : "differs" }, h("th", { scope: "row" }, h("code", row.name)), h("td", cell(row.asked)), h("td", cell(row.sent)), h("td", row.same ? "same" : h("strong", row.asked === null ? "set here" : row.sent === null ? "taken out" : "changed"))))));
}

const without = (body) => Object.fromEntries(Object.entries(body).filter(([name]) => !SHOWN.includes(name)));
