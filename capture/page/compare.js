/* Two rollouts side by side: what differs first, then call by call, and where their requests part.

   The graphs are read at once; then some requests of main, as few as it takes to find where they part. */

import { curl } from "./api.js";
import { aligned, changes, differing, fields, findings, first, goingOn, parting, repliesAlike, requestsDiffer, rulings, said, samplingWords, settings } from "./compare-words.js";
import { copy } from "./copy.js";
import { decimal, fill, h, number, plural } from "./dom.js";
import { prose } from "./prose.js";
import { wide } from "./wide.js";
import { TONE, roleOf } from "./words.js";
import { differences, settingsOf } from "./group-words.js";
import { MARK, rankOf, TAG } from "./health.js";
import { callOf } from "./held.js";
import { follow, paced } from "./live.js";
import { messagesOf } from "./messages.js";
import { to } from "./router.js";

const DRIFT = [["transitions", "steps of main", number], ["exact", "exact", number], ["tokens_mean", "tokens lost, mean", (x) => decimal(x, 2)],
  ["tokens_max", "tokens lost, most", number], ["fork_frac", "share over the threshold", (x) => decimal(x, 3)], ["samples_per_rollout", "rows with drift=realign", number]];
/* What a column of calls is called in words. */
const SAID = { link: "link", n_prompt: "prompt", n_sampled: "sampled", status: "status", finish_reason: "finish", dialect: "dialect", model_asked: "model", constrained: "constraint", drift: "drift", weights: "weights", sampling: "sampling", alone: "" };

export async function show(root, { a, b }, ctx) {
  ctx.title(`${a} and ${b}`, ["Rollouts", "#/"], ["Compare", null]);
  const names = [a, b];
  const holder = h("div");
  const apart = h("div.compare-apart");
  const paths = names.map((name) => `rollouts/${encodeURIComponent(name)}/graph`);
  const read = () => Promise.all(paths.map((path) => ctx.api.get(path, { signal: ctx.signal })));
  const draw = () => fill(holder, sections(names, graphs));

  fill(root,
    h("div.row.spread.view-head", h("h1", names[0], h("span.quiet", " and "), names[1]),
      h("div.row",
        h("a.button", { href: to("compare", b, a) }, "Swap"),
        h("button", { type: "button", title: "Commands that ask for both graphs", onclick: () => copy(paths.map(curl).join("\n"), ctx, "Two commands are in the clipboard; they read the key from $KEY.") }, "Copy as curl"))),
    h("section.panel", { "aria-labelledby": "compare-apart" }, h("h2", { id: "compare-apart" }, "Where they part"), apart),
    holder);

  fill(apart, h("p.quiet", "Reading both…"));
  let graphs = await read();
  const tell = async () => fill(apart, await told(names, graphs, ctx));
  const failed = (error) => { if (!ctx.signal.aborted) fill(apart, h("p.notice.bad", prose(error.message), error.hint ? [" ", prose(error.hint)] : null)); };
  if (a === b) fill(apart, h("p", "These are one and the same."));
  else await tell().catch(failed);
  /* Behind the words, however many they are: what is below them would be pushed down. */
  draw();

  if (graphs.some((graph) => graph.rollout.state === "open")) {
    const pace = paced(async () => {
      graphs = await read();
      draw();
      if (a !== b) await tell();
    }, { failed });
    follow("events", ctx, pace, ({ data }) => names.includes(data.rollout));
  }
}

/* Reads requests until it is known where the two part, and says so. */
async function told(names, graphs, ctx) {
  const all = aligned(...graphs).find((each) => each.role === "main")?.rows ?? [];
  const rows = all.filter((row) => row.a && row.b);
  const held = new Map();
  const request = (side, n) => {
    const key = `${side} ${n}`;
    if (!held.has(key)) held.set(key, callOf(ctx.api, names[side], n, { signal: ctx.signal }));
    return held.get(key);
  };
  const pair = (k) => Promise.all([request(0, rows[k].a.n), request(1, rows[k].b.n)]);
  const k = await first(rows.length, async (at) => {
    const [mine, theirs] = await pair(at);
    return requestsDiffer(mine.request, theirs.request);
  });
  let found = null;
  let known = null;
  let answeredAlike = false;
  if (k < rows.length) {
    const [mine, theirs] = await pair(k);
    found = changes(mine.request, theirs.request).filter((each) => !each.natural);
    if (k > 0) {
      const before = await pair(k - 1);
      known = messagesOf(before[0].request).length;
      answeredAlike = repliesAlike(before[0].reply, before[1].reply);
    }
  }
  const words = parting({ k, n: rows.length, found, known, answeredAlike, names });
  const sampling = samplingWords(rows, names);
  const message = found?.find((each) => each.kind === "message");
  const { differing: run } = differences(graphs.map((graph, at) => [names[at], settingsOf(graph)]));
  const strange = run.filter((each) => !each.natural && !/, (asked|sent)$/.test(each.name));
  return [
    rulings(graphs, names).map((text) => h("p.said-warn", h("span", { "aria-hidden": "true" }, "! "), text)),
    words.map((text) => h("p", text)),
    goingOn(graphs, names, all).map((text) => h("p", text)),
    message ? h("div.compare-message", [[names[0], message.was], [names[1], message.is]].map(([name, middle]) =>
      h("figure", h("figcaption.quiet", `Message ${message.at} of ${name}`), h("pre", { tabindex: "0" }, h("span.quiet", message.before), middle ? h("mark", middle) : h("mark", { "aria-label": "nothing" }, "∅"), h("span.quiet", message.after))))) : null,
    k < rows.length ? h("p", "Read them: ", h("a", { href: to("rollouts", names[0], "calls", rows[k].a.n) }, `call ${rows[k].a.n} of ${names[0]}`), ", ", h("a", { href: to("rollouts", names[1], "calls", rows[k].b.n) }, `call ${rows[k].b.n} of ${names[1]}`), ".") : null,
    sampling ? h("p.said-warn", h("span", { "aria-hidden": "true" }, "! "), sampling) : rows.length ? h("p", "Both asked for the same sampling settings, as far as both went.") : null,
    strange.length ? h("p.said-warn", h("span", { "aria-hidden": "true" }, "! "), `They were run otherwise. ${strange.map(({ name, values }) => `${name}: ${values.map(({ value, ids }) => `${value} in ${ids.join(", ")}`).join(", ")}`).join("; ")}.`) : null,
  ];
}

function sections(names, graphs) {
  const conversations = aligned(...graphs);
  const main = conversations.find((each) => each.role === "main")?.rows ?? [];
  return [
    panel("Summary", summary(names, fields(...graphs))),
    panel("Findings", found(names, findings(...graphs, rankOf))),
    panel("Sampling of main", sampled(names, settings(main))),
    panel("Drift of main", drift(names, graphs)),
    ...conversations.map((each, at) => {
      const head = title(each, conversations.slice(0, at).filter((one) => one.role === each.role && one.kind === each.kind).length);
      return panel(head, [ruledWords(each, names, graphs), calls(head, names, each.rows)], { fold: at > 3 });
    }),
  ];
}

/* Of whom a section's calls are taken for something else, because somebody ruled so. */
function ruledWords({ role, rows }, names, graphs) {
  const told = ["a", "b"].flatMap((side, at) => {
    const call = rows.map((row) => row[side]).find(Boolean);
    const conversations = new Map(graphs[at].conversations.map((each) => [each.n, each]));
    const [is] = call ? roleOf(call, conversations) : [role];
    return is === role || role === "none" ? [] : [`${is} in ${names[at]}`];
  });
  return told.length ? h("p.said-warn", h("span", { "aria-hidden": "true" }, "! "), `Taken for ${told.join(", and for ")}, because somebody ruled so.`) : null;
}

function title({ role, kind }, before) {
  if (role === "none") return "Calls in no conversation";
  return `Calls: ${kind ? `${role}, ${kind}` : role}${before ? ` ${before + 1}` : ""}`;
}

function panel(head, held, { fold = false } = {}) {
  if (fold) return h("section.panel", h("details", h("summary", h("h2.compare-fold", head)), held));
  return h("section.panel", h("h2", head), held);
}

const heads = (names) => names.map((name) => h("th", { scope: "col" }, h("a", { href: to("rollouts", name) }, name)));
const values = (row, x, y) => [h(row.same ? "td.quiet" : "td", x), h(row.same ? "td.quiet" : "td", y)];

function pairTable(names, rows, first = "") {
  return h("table.compare-table", h("thead", h("tr", h("th", { scope: "col" }, first || h("span.unseen", "What")), heads(names))),
    h("tbody", rows.map((row) => h("tr", { class: row.same ? "" : "differs" }, h("th", { scope: "row" }, row.same ? null : h("span", { "aria-hidden": "true" }, "≠ "), row.name), values(row, row.a, row.b)))));
}

function summary(names, rows) {
  const told = rows.map((row) => ({ ...row, a: said(row.a), b: said(row.b) }));
  const apart = told.filter((row) => !row.same);
  const alike = told.filter((row) => row.same);
  return [
    apart.length ? wide("Fields that differ", pairTable(names, apart)) : h("p", "Their summaries are alike."),
    h("details", h("summary", `${plural(alike.length, "field")} alike`), wide("Fields that are alike", pairTable(names, alike))),
  ];
}

function found(names, rows) {
  if (rows.length === 0) return h("p.quiet", "Nothing was found in either.");
  const says = (finding) => (finding ? [prose(finding.message), finding.calls.length ? h("div.quiet", `calls ${finding.calls.slice(0, 12).join(", ")}${finding.calls.length > 12 ? "…" : ""}`) : null] : h("span.quiet", "–"));
  return wide("Findings of both", h("table.compare-table.compare-found", h("thead", h("tr", h("th", { scope: "col" }, "Finding"), heads(names))),
    h("tbody", rows.map((row) => h("tr", { class: row.a && row.b ? "" : "differs" },
      h("th", { scope: "row" }, h("span.tag", { class: TAG[row.level] }, h("span", { "aria-hidden": "true" }, `${MARK[row.level]} `), row.code)), h("td", says(row.a)), h("td", says(row.b)))))));
}

function sampled(names, rows) {
  if (rows.length === 0) return h("p.quiet", "No call of main says how it was sampled.");
  return wide("Sampling of both", h("table.compare-table",
    h("thead",
      h("tr", h("th", { scope: "col", rowspan: "2" }, "Setting"), names.map((name) => h("th", { scope: "colgroup", colspan: "2" }, name))),
      h("tr", names.flatMap((name) => [h("th", { scope: "col" }, "asked"), h("th", { scope: "col" }, "sent")]))),
    h("tbody", rows.map((row) => h("tr", { class: row.same ? "" : "differs" }, h("th", { scope: "row" }, row.same ? null : h("span", { "aria-hidden": "true" }, "≠ "), row.name),
      [0, 1].flatMap((side) => [row.asked[side], row.sent[side]].map((value) => h(row.same ? "td.quiet" : "td", said(value)))))))));
}

function drift(names, graphs) {
  const rows = DRIFT.map(([key, name, say]) => {
    const [x, y] = graphs.map((graph) => say(graph.drift[key]));
    return { name, a: x, b: y, same: x === y };
  });
  return wide("Drift of both", pairTable(names, rows));
}

function calls(head, names, rows) {
  return wide(`${head}, side by side`, h("table.compare-calls",
    h("caption.unseen", "Calls of both, in order; in the middle what differs"),
    h("thead", h("tr", heads(names).slice(0, 1), h("th", { scope: "col" }, "Differs in"), heads(names).slice(1))),
    h("tbody", rows.map((row) => {
      const apart = differing(row);
      return h("tr", { class: apart.length ? "differs" : "" }, callCell(names[0], row.a, apart), h("td.compare-middle", apart.length ? apart.map((name) => SAID[name] ?? name).join(", ") : h("span.quiet", "=")), callCell(names[1], row.b, apart));
    }))));
}

function callCell(name, call, apart) {
  if (!call) return h("td.quiet", "–");
  const part = (key, text) => (apart.includes(key) ? h("strong", text) : text);
  return h("td.compare-call",
    h("a", { href: to("rollouts", name, "calls", call.n) }, `call ${call.n}`), " ",
    call.drift ? h("span.tag.warning", { title: call.drift.cause }, `drift ${number(call.drift.tokens)}`) : part("link", call.link), " ",
    h("span.mono", part("n_prompt", number(call.n_prompt)), " + ", part("n_sampled", number(call.n_sampled))), " ",
    call.status === "complete" ? part("finish_reason", call.finish_reason ?? "–") : h("span.tag", { class: TONE[call.status] ?? "warning" }, call.status),
    call.discarded ? h("span.quiet", " discarded") : null);
}
