/* A group at a glance: its rewards and lengths side by side, what stands out, and what its rollouts don't share.

   The first screen asks once. Training rows and how each rollout was run are read after it, a few rollouts at a time. */

import { copyCurl } from "./copy.js";
import { decimal, fill, h, number, plural, short, svg } from "./dom.js";
import { CODES } from "./codes.js";
import { downloads } from "./downloads.js";
import { differences, names, settingsOf, shortNames, sideBySide, statements } from "./group-words.js";
import { rowsOf } from "./held.js";
import { MARK, TAG } from "./health.js";
import { follow, paced } from "./live.js";
import { flat } from "./flat.js";
import { prose } from "./prose.js";
import { stateWords } from "./states.js";
import { to } from "./router.js";
import { wide } from "./wide.js";

const MOST = 1000;
/* Whose graphs and rows are read unasked: a group has 8 to 64 rollouts. */
const READ = 64;
/* Rollouts that have a column of their own beside each other. */
const COLUMNS = 64;
const AT_ONCE = 3;
const MEASURES = [
  { name: "Reward", of: (row) => row.reward, say: (x) => decimal(x, 4).replace(/\.?0+$/, "") },
  { name: "Main calls", of: (row) => row.n_main_calls, say: number },
  { name: "Sampled tokens", of: (row) => row.n_sampled_tokens, say: short },
  { name: "Trained tokens", of: (row) => row.trained?.tokens ?? null, say: short, none: (row) => (row.trained === undefined ? "" : "–") },
  { name: "Rows", of: (row) => row.trained?.rows ?? null, say: number, none: (row) => (row.trained === undefined ? "" : "–") },
];

export async function show(root, { group }, ctx) {
  ctx.title(`Group ${group}`, ["Rollouts", "#/"], [`Group ${group}`, null]);
  const path = `rollouts?${new URLSearchParams({ group, order: "created", limit: String(MOST) })}`;
  const said = h("ul.group-said");
  const glance = wide("Table of rollouts");
  const findings = wide("Table of findings");
  const settings = h("div.group-settings");
  const compare = h("button", { type: "button", onclick: openCompare }, "Compare");
  const chosen = new Set();
  const learnt = new Map();
  let rows = [];
  let graphs = [];
  let more = false;

  const read = async () => {
    const found = await ctx.api.get(path, { signal: ctx.signal });
    more = found.next !== null;
    rows = found.rollouts.map((row) => ({ ...row, trained: learnt.get(row.id)?.trained }));
    draw();
  };

  function draw() {
    fill(said, statements(rows).map(({ level, text }) => h("li", { class: `said-${level}` }, h("span", { "aria-hidden": "true" }, { error: "✕", warn: "!", good: "✓" }[level] ?? "·"), " ", text)));
    keepFocus(glance, () => fill(glance, glanceTable(rows, chosen, pick)));
    fill(findings, findingsTable(rows));
    compare.disabled = chosen.size !== 2;
  }

  function pick(id) {
    if (!chosen.delete(id)) chosen.add(id);
    compare.disabled = chosen.size !== 2;
    compare.title = chosen.size === 2 ? "" : "Pick two rollouts";
  }

  function pickFocused() {
    glance.ownerDocument.activeElement.closest("tr")?.querySelector(".group-pick input")?.click();
  }

  function openCompare() {
    if (chosen.size === 2) location.hash = to("compare", ...chosen);
    else ctx.say("Pick two rollouts to compare.");
  }

  await read();
  if (rows.length === 0) {
    fill(root, h("h1", `Group ${group}`), h("div.notice",
      h("p", `No rollout is in group ${group}.`),
      h("p", "A rollout is put into a group when it is registered: ", h("code", `{"group": ${JSON.stringify(group)}, "n": 8}`), " registers eight.")));
  } else {
    fill(root,
      h("div.row.spread.view-head", h("h1", `Group ${group}`),
        h("div.row", compare, h("a.button", { href: `#/?${new URLSearchParams({ group })}` }, "In the list"), downloads(() => ({ query: { group }, count: rows.length }), ctx), copyCurl(path, ctx))),
      h("section.panel", { "aria-labelledby": "group-said" }, h("h2", { id: "group-said" }, "In short"), said),
      h("section.panel", { "aria-labelledby": "group-glance" }, h("h2", { id: "group-glance" }, more ? `The first ${number(rows.length)} rollouts` : plural(rows.length, "rollout")), glance),
      h("section.panel", { "aria-labelledby": "group-found" }, h("h2", { id: "group-found" }, "Findings side by side"), findings),
      h("section.panel", { "aria-labelledby": "group-settings" }, h("h2", { id: "group-settings" }, "What differs in how they were run"), settings));
  }
  fill(settings, h("p.quiet", "Reading how each was run…"));
  const walk = (by) => Object.assign(() => step(glance, by), { title: by > 0 ? "next rollout" : "rollout before" });
  ctx.keys({ j: walk(1), k: walk(-1), ArrowDown: () => step(glance, 1), ArrowUp: () => step(glance, -1),
    x: Object.assign(pickFocused, { title: "pick the rollout, or let it go" }),
    c: Object.assign(openCompare, { title: "compare the two that are picked" }) });

  const pace = paced(async () => {
    const before = rows.length;
    await read();
    if (before === 0 && rows.length > 0) dispatchEvent(new HashChangeEvent("hashchange"));
    await learn();
  });
  follow("events", ctx, pace, ({ data }) => data.group === group || rows.some((row) => row.id === data.rollout));
  learn().catch((error) => { if (!ctx.signal.aborted) fill(settings, h("p.notice.bad", prose(error.message))); });

  /* Reads of each rollout what its summary doesn't say, where it has changed since. */
  async function learn() {
    const stamp = (row) => JSON.stringify([row.n_calls, row.state, row.last_call_at, row.health?.running]);
    const waiting = rows.slice(0, READ).filter((row) => learnt.get(row.id)?.stamp !== stamp(row));
    const work = async () => {
      for (let row = waiting.shift(); row; row = waiting.shift()) {
        if (ctx.signal.aborted) return;
        try {
          learnt.set(row.id, { stamp: stamp(row), ...(await learnOne(row, ctx)) });
        } catch (error) {
          // Deleted meanwhile; the next look at the group misses it too.
          if (error.status !== 404) throw error;
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (ctx.signal.aborted) return;
    rows = rows.map((row) => ({ ...row, trained: learnt.get(row.id)?.trained }));
    graphs = rows.filter((row) => learnt.has(row.id)).map((row) => [row.id, learnt.get(row.id).settings]);
    draw();
    fill(settings, settingsTable(graphs, rows));
  }
}

async function learnOne(row, ctx) {
  const graph = await ctx.api.get(`rollouts/${encodeURIComponent(row.id)}/graph`, { signal: ctx.signal });
  let trained = null;
  try {
    const form = await rowsOf(ctx.api, row.id, { signal: ctx.signal, opened: row.state === "open" });
    trained = { rows: form.n_rows, tokens: form.n_trained_tokens };
  } catch (error) {
    // No rows of it can be had: it has no call, or no token ids.
    if (error.status !== 409) throw error;
    if (row.tier === "train") trained = { rows: 0, tokens: 0 };
  }
  return { settings: settingsOf(graph), trained };
}

function glanceTable(rows, chosen, pick) {
  const scales = MEASURES.map(({ of }) => scale(rows.map(of)));
  return h("table.group-glance",
    h("caption.unseen", "Each rollout's reward, lengths and findings, a bar for each number"),
    h("thead", h("tr", h("th.group-pick", { scope: "col" }, h("span.unseen", "Picked")), h("th", { scope: "col" }, "Rollout"), h("th", { scope: "col" }, "State"),
      MEASURES.map(({ name }) => h("th.group-measure", { scope: "col" }, name)), h("th", { scope: "col" }, "Worst"))),
    h("tbody", rows.map((row) => h("tr",
      h("td.group-pick", h("input", { type: "checkbox", "data-key": `pick ${row.id}`, checked: chosen.has(row.id), "aria-label": `Pick ${row.id}`, onchange: () => pick(row.id) })),
      h("th.group-name", { scope: "row" }, h("a", { href: to("rollouts", row.id), "data-key": row.id, title: row.task ? `${row.id}: ${row.task}` : row.id }, row.id)),
      h("td", row.health?.running ? h("span.running", h("span.dot", { "aria-hidden": "true" }), plural(row.health.running, "call"), h("span.unseen", " running")) : stateWords(row)),
      MEASURES.map((measure, at) => measureCell(measure, row, scales[at])),
      h("td", worst(row))))));
}

function worst(row) {
  const errors = row.health?.errors ?? 0;
  const warnings = row.health?.warnings ?? 0;
  if (errors) return h("span.tag.error", `✕ ${plural(errors, "error")}`);
  if (warnings) return h("span.tag.warning", `! ${plural(warnings, "warning")}`);
  return h("span.tag.good", "✓ none");
}

function scale(values) {
  const there = values.filter((value) => value !== null);
  const least = Math.min(0, ...there);
  const most = Math.max(0, ...there);
  return { least, most, width: most - least || 1 };
}

/* The number in words, and a bar from zero to it. The drawing says nothing that the number doesn't. */
function measureCell({ name, of, say, none = () => "none" }, row, { least, width }) {
  const value = of(row);
  const at = (x) => ((x - least) / width) * 100;
  const drawing = value === null ? null : svg("svg.group-bar", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    svg("rect.group-bar-room", { x: 0, y: 3, width: 100, height: 4 }),
    svg("rect", { class: value < 0 ? "group-bar-below" : "group-bar-value", x: Math.min(at(0), at(value)), y: 0, width: Math.max(0.8, Math.abs(at(value) - at(0))), height: 10 }));
  return h("td.group-measure", { title: name }, h("span.group-number", value === null ? h("span.quiet", none(row)) : say(value)), drawing);
}

function findingsTable(rows) {
  const found = sideBySide(rows);
  if (found.length === 0) return h("p.quiet", "Nothing was found in any of them.");
  const heads = rows.length > COLUMNS ? [] : shortNames(rows.map((row) => row.id));
  return h("table.group-found",
    h("thead", h("tr", h("th", { scope: "col" }, "Finding"), h("th", { scope: "col" }, "Rollouts"), heads.map((head, at) => h("th.number", { scope: "col" }, h("a", { href: to("rollouts", rows[at].id), title: rows[at].id }, head))))),
    h("tbody", found.map(({ code, level, counts, rollouts }) => h("tr",
      h("th", { scope: "row" }, h("span.tag", { class: TAG[level], title: CODES[code] ? flat(`${CODES[code].means} ${CODES[code].todo}`) : code }, h("span", { "aria-hidden": "true" }, `${MARK[level]} `), code)),
      h("td.number", `${rollouts} of ${rows.length}`),
      heads.map((_, at) => counts[at]).map((n) => h("td.number", n === 0 ? h("span.quiet", { "aria-label": "none" }, "·") : number(n)))))));
}

function settingsTable(graphs, rows) {
  if (graphs.length === 0) return h("p.quiet", "Nothing is known of it yet.");
  const { differing, common } = differences(graphs);
  const strange = differing.filter((each) => !each.natural);
  const read = graphs.length < rows.length ? ` (of the first ${graphs.length} rollouts)` : "";
  return [
    h("p", strange.length === 0 ? `${differing.length ? "Nothing but what is meant to differ" : "Nothing in the settings below"}${read}.` : `${plural(strange.length, "setting")} ${strange.length === 1 ? "differs" : "differ"}${read}: a difference in reward may be theirs, and not the policy's.`),
    differing.length === 0 ? null : wide("Settings that differ", h("table",
      h("thead", h("tr", h("th", { scope: "col" }, "Setting"), h("th", { scope: "col" }, "Values"))),
      h("tbody", differing.map(({ name, natural, values }) => h("tr", h("th", { scope: "row" }, name, natural ? h("span.quiet", " (is meant to differ)") : null),
        h("td", values.slice(0, 8).map(({ value, ids }) => h("div", h("code", value), " ", h("span.quiet", `in ${names(ids)}`))), values.length > 8 ? h("div.quiet", `and ${values.length - 8} more values`) : null)))))),
    common.length === 0 ? null : h("details", h("summary", `${plural(common.length, "setting")} in common`), h("dl.group-common", common.map(({ name, value }) => h("div", h("dt", name), h("dd", value))))),
  ];
}

/* Draws anew, and gives the focus back to what had it. */
function keepFocus(holder, work) {
  const key = holder.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  work();
  if (key) [...holder.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key)?.focus({ preventScroll: true });
}

function step(holder, by) {
  const links = [...holder.querySelectorAll(".group-name a")];
  const at = links.indexOf(document.activeElement);
  links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))]?.focus();
}
