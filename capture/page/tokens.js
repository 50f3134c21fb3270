/* The very tokens of a call: id and text of each, what it was scored with, whether it is trained; at a break beside its
   parent's, so that the first token that differs is seen.

   Rows of the grid are made as they come into view, and texts are asked for by the window: 200,000 tokens scroll. */

import { maskOf, within } from "./bars.js";
import { copyCurl } from "./copy.js";
import { fill, h, number, plural } from "./dom.js";
import { callOf, graphOf, rowsOf } from "./held.js";
import { key } from "./keys.js";
import { to } from "./router.js";
import { TokenGrid } from "./token-grid.js";
import { replyText } from "./token-text.js";
import { CLASSES, SIZE, Windows, visible } from "./windows.js";
import { REASON, plain } from "./words.js";

const MASK = { trained: "trained", sampled: "sampled, not trained", context: "context" };

export async function show(root, { id, n: given }, ctx) {
  const n = Number(given);
  ctx.title(`Tokens of call ${n} of ${id}`, ["Rollouts", "#/"], [id, to("rollouts", id, { call: n })], [`call ${n}`, to("rollouts", id, "calls", n)], ["tokens"]);
  const graphing = graphOf(ctx.api, id, { signal: ctx.signal });
  graphing.catch(() => {});
  const call = await callOf(ctx.api, id, n, { signal: ctx.signal });
  const broken = call.link === "drift" || call.link === "compaction";
  const beside = call.parent !== null && (ctx.query.has("beside") ? ctx.query.get("beside") === "1" : broken);
  const asked = ctx.query.get("at") === null ? Number.NaN : Number(ctx.query.get("at"));
  const wanted = Number.isInteger(asked) && asked >= 0 ? asked : call.drift?.at ?? call.n_prompt ?? 0;
  const windowOf = (which, most) => {
    const start = Math.floor(Math.max(0, Math.min(wanted, most - 1)) / SIZE) * SIZE;
    return textOf(ctx, id, which, start, start + SIZE);
  };
  const [first, parentFirst] = await Promise.all([windowOf(n, (call.n_prompt ?? 0) + (call.n_sampled ?? 0)), beside ? windowOf(call.parent, call.n_shared).catch((error) => ({ error })) : null]);
  if (ctx.signal.aborted) return;
  if (!first.n_tokens) {
    nothing(root, call, graphing, first, id, ctx);
    return;
  }
  const sides = [];
  let grid = null;
  const side = (which, window, name, weights = null) => {
    const windows = new Windows(window.n_tokens, (from, end) => textOf(ctx, id, which, from, end), () => grid?.refresh());
    windows.put(window.start, window);
    const made = {
      n: which, name, windows, hasText: window.source !== null, weights, total: window.n_tokens, nPrompt: window.n_prompt, mask: null, row: null,
      kindAt: (position) => (made.mask && within(made.mask.runs, position) ? "trained" : position >= window.n_prompt ? "sampled" : "context"),
    };
    return made;
  };
  if (parentFirst && !parentFirst.error && parentFirst.n_tokens) sides.push(side(call.parent, parentFirst, `parent, call ${call.parent}`));
  sides.push(side(n, first, `call ${n}`, call.weights));
  const own = sides.at(-1);
  const breakAt = call.drift?.at ?? (sides.length > 1 ? call.n_shared : null);
  const begin = Number.isInteger(asked) && asked >= 0 ? asked : breakAt ?? Math.min(own.nPrompt, own.total - 1);

  const detail = h("p.token-detail", { role: "status" });
  const field = h("input", { id: "go-to", type: "number", min: 0, max: own.total - 1, placeholder: "position", "aria-label": "Position" });
  let settled = 0;
  grid = new TokenGrid(sides, {
    at: begin,
    differs: breakAt,
    label: sides.length > 1 ? `Tokens of call ${call.parent} and of call ${n}, side by side` : `Tokens of call ${n}`,
    onAt: (s, position) => {
      fill(detail, described(sides[s], position, sides.length > 1));
      clearTimeout(settled);
      settled = setTimeout(() => {
        if (!ctx.signal.aborted) history.replaceState(null, "", to("rollouts", id, "tokens", n, { at: grid.at, beside: ctx.query.get("beside") }));
      }, 300);
    },
  });
  ctx.signal.addEventListener("abort", () => { clearTimeout(settled); grid.close(); }, { once: true });

  const go = (position) => { grid.go(position); grid.element.focus({ preventScroll: true }); };
  const trained = h("span", "…");
  const breaks = h("span.row.breaks-place");
  const button = (said, position) => h("button", { type: "button", onclick: () => go(position) }, said);
  fill(root,
    h("div.row.spread", h("h1", `Tokens of call ${n}`), h("div.row", h("a.button", { href: to("rollouts", id, "calls", n) }, "The call"), copyCurl(() => `rollouts/${encodeURIComponent(id)}/calls/${n}/text?start=${Math.floor(grid.at / SIZE) * SIZE}&end=${Math.min(own.total, (Math.floor(grid.at / SIZE) + 1) * SIZE)}`, ctx))),
    h("p.trained-place", `${number(own.nPrompt)} read, ${number(own.total - own.nPrompt)} sampled. `, trained),
    first.source ? null : h("p", h("strong", "Ids alone: "), first.reason || "the tokens' text can't be had."),
    parentFirst?.error ? h("p.notice.warn", `The parent's tokens can't be had: ${parentFirst.error.message}`) : null,
    broken ? h("p.notice.warn.break-place", { role: "note" }, h("strong", call.link === "drift" ? "Drift. " : "Compaction. "), h("span", "…")) : null,
    h("div.row.token-tools", { role: "group", "aria-label": "Where to" },
      h("form.row", { onsubmit: (event) => { event.preventDefault(); if (field.value !== "") go(Number(field.value)); } }, field, h("button", { type: "submit" }, "Go to position")),
      button("Start", 0), own.total > own.nPrompt ? button("Reply", own.nPrompt) : null,
      breakAt === null ? null : button("Break", breakAt),
      call.parent === null ? null : h("a.button", { href: to("rollouts", id, "tokens", n, { at: Number.isInteger(asked) ? asked : null, beside: beside ? 0 : 1 }) }, beside ? "Without its parent" : `Beside parent #${call.parent}`), breaks),
    sides.length > 1 ? h("div.token-sides", { "aria-hidden": "true" }, sides.map((each) => h("strong", each.name))) : null,
    grid.element, detail,
    own.total > own.nPrompt ? replyText({
      start: own.nPrompt, total: own.total, kindAt: own.kindAt, go,
      read: (from, end) => textOf(ctx, id, n, from, end),
      onAt: (position) => fill(detail, described(own, position, sides.length > 1)),
    }) : null,
    legend(sides.length > 1, sides.some((each) => each.total > each.nPrompt)));
  grid.element.focus({ preventScroll: true });
  const keys = {
    b: key("to this call's break", () => { if (breakAt !== null) go(breakAt); }),
    r: key("to its reply", () => go(own.nPrompt)),
    "/": key("to a position", () => field.focus()),
    p: key("the parent's tokens", () => { if (call.parent !== null) location.hash = to("rollouts", id, "tokens", call.parent); }),
    c: key("the call", () => { location.hash = to("rollouts", id, "calls", n); }),
  };
  ctx.keys(keys);
  const behind = (work) => work.catch((error) => { if (!ctx.signal.aborted) ctx.say(error.message); });
  if (broken) behind(nameBreak(root, call, sides, breakAt, ctx, id));
  behind((async () => {
    const graph = await graphing;
    if (ctx.signal.aborted) return;
    ctx.keys({ ...keys, ...elsewhere(graph, id, n, breaks) });
    const sequences = await rowsOf(ctx.api, id, { signal: ctx.signal, opened: graph.rollout.state === "open" });
    for (const each of sides) {
      each.mask = maskOf(sequences, each.n);
      each.row = sequences.sequences.find((row) => row.row === each.mask.row) ?? null;
    }
    fill(trained, trainedWords(own));
    grid.refresh();
    grid.onAt(grid.side, grid.at);
  })().catch((error) => { fill(trained, "Whether they are trained is not known."); throw error; }));
}

/* Links and keys to other calls' tokens. */
function elsewhere(graph, id, n, place) {
  const numbers = graph.calls.filter((each) => each.link === "drift" || each.link === "compaction").map((each) => each.n).sort((a, b) => a - b);
  const before = numbers.filter((each) => each < n).at(-1);
  const after = numbers.find((each) => each > n);
  const link = (which, said) => (which === undefined ? null : h("a.button", { href: to("rollouts", id, "tokens", which) }, said));
  fill(place, link(before, `← Break of #${before}`), link(after, `Break of #${after} →`));
  const go = (which) => () => { if (which !== undefined) location.hash = to("rollouts", id, "tokens", which); };
  return {
    n: key("next break in the rollout", go(after)),
    N: key("previous break", go(before)),
    j: key("next call's tokens", () => step(graph, id, n, 1)),
    k: key("previous call's tokens", () => step(graph, id, n, -1)),
  };
}

const textOf = (ctx, id, n, start, end) => ctx.api.get(`rollouts/${encodeURIComponent(id)}/calls/${n}/text?start=${start}&end=${end}`, { signal: ctx.signal });

function step(graph, id, n, by) {
  const numbers = graph.calls.map((each) => each.n).sort((a, b) => a - b);
  const next = numbers[numbers.indexOf(n) + by];
  if (next !== undefined) location.hash = to("rollouts", id, "tokens", next);
}

function trainedWords(side) {
  if (side.row) return `Trained in row ${side.mask.row}.`;
  if (side.mask.why) return `In no training row: ${REASON[side.mask.why] || plain(side.mask.why)}.`;
  return "In no training row.";
}

/* The first token that differs, by name: both sides' id and text. */
async function nameBreak(root, call, sides, at, ctx, id) {
  const place = root.querySelector(".break-place span");
  if (sides.length < 2 || at === null) {
    fill(place, call.drift ? `${plural(call.drift.tokens, "token")} of the parent's are no longer there from position ${number(at)} on.` : "The history was replaced.");
    return;
  }
  const tokens = [];
  for (const side of sides) {
    if (at >= side.total) {
      tokens.push(null);
      continue;
    }
    let token = side.windows.at(at);
    if (!token) {
      const window = await textOf(ctx, id, side.n, Math.floor(at / SIZE) * SIZE, Math.min(side.total, (Math.floor(at / SIZE) + 1) * SIZE)).catch(() => null);
      if (ctx.signal.aborted) return;
      if (window) {
        side.windows.put(window.start, window);
        token = side.windows.at(at);
      }
    }
    tokens.push(token || null);
  }
  const say = (token) => (token ? (visible(token.piece) ? [h("code.piece", visible(token.piece)), ` (id ${token.id})`] : ["id ", h("code.piece", token.id)]) : "nothing more");
  const where = call.drift ? (call.drift.where === "sampled" ? "in the parent's reply" : "in the parent's prompt") : "";
  fill(place, `The first ${plural(at, "token")} are the same. At position ${number(at)}${where ? `, ${where},` : ""} the parent has `, say(tokens[0]), `, and call ${call.n} has `, say(tokens[1]), ".",
    call.drift ? ` ${plural(call.drift.tokens, "token")} of the parent's are lost; cause: ${plain(call.drift.cause)}.` : "");
}

function described(side, position, named) {
  const token = side.windows.at(position);
  const words = [h("strong", `Position ${number(position)}`), named ? ` of ${side.name}` : "", ": "];
  if (!token) return [...words, side.windows.error(position)?.message || "coming…"];
  const kind = side.kindAt(position);
  const span = side.row?.spans.find((each) => each.start <= position && position < each.end);
  const from = position >= side.nPrompt ? `sampled by call ${side.n}` : span?.kind === "sampled" ? `sampled by call ${span.call}` : "from the prompt";
  const p = token.logprob === null || token.logprob === undefined ? null : Math.exp(token.logprob);
  return [...words, "id ", h("code", token.id), ", text ", token.piece === null ? h("span.quiet", side.hasText ? "none of its own: part of a character" : "not to be had") : h("code", JSON.stringify(token.piece)),
    p === null ? "" : `, logprob ${token.logprob.toFixed(4)} (p ${p < 0.0001 ? p.toExponential(1) : p.toFixed(4)})`, `, ${from}${versionOf(side, position)}, ${MASK[kind]}.`];
}

/* The policy's version that drew a sampled token, where it is known. */
function versionOf({ weights, nPrompt }, position) {
  if (!weights || position < nPrompt) return "";
  const found = weights.spans.find((each) => each.start <= position - nPrompt && position - nPrompt < each.end);
  if (found) return found.version === null ? "" : ` with weights ${found.version}`;
  if (weights.start === null && weights.end === null) return "";
  return weights.start === weights.end ? ` with weights ${weights.start}` : ` with weights ${weights.start ?? "?"} or ${weights.end ?? "?"}`;
}

function legend(two, scored) {
  const box = (name, text, said) => h("li", h("span.token.sample", { class: name, "aria-hidden": "true" }, h("span.piece", text)), said);
  return h("ul.legend.token-legend", { "aria-label": "What the marks mean" },
    box("trained", "abc", "trained (thick line)"), box("sampled", "abc", "sampled, not trained (broken line)"), box("context", "abc", "context (no line)"),
    scored ? CLASSES.map(([, said], i) => box(`lp-${i}`, "abc", said)) : null,
    two ? [box("first-differs", "abc", "first that differs (frame)"), box("lost", "abc", "the parent's, lost (struck)")] : null,
    h("li", "Under each: its id, and its logprob. · space, ⏎ line, ⇥ tab, ▯ no text of its own"));
}

async function nothing(root, call, graphing, first, id, ctx) {
  const tier = h("p");
  fill(root, h("h1", `Tokens of call ${call.n}`), h("div.notice", h("p", call.status === "running" ? "It runs now: its tokens are here when it has ended." : first.reason || "The engine gave no token ids for this call."),
    tier, h("p", h("a", { href: to("rollouts", id, "calls", call.n) }, "The call, with its text"))));
  const graph = await graphing.catch(() => null);
  if (!graph || ctx.signal.aborted) return;
  ctx.keys(elsewhere(graph, id, call.n, h("span")));
  if (graph.rollout.tier !== "train") fill(tier, `The rollout's tier is ${graph.rollout.tier}: ${graph.rollout.tier_reason || "no token ids"}.`);
}
