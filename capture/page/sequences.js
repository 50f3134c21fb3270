/* The rows that a trainer gets of a rollout, as bars: what is trained, what is context, where a row was cut and why, and
   which calls are in none; with every choice that an export has, and the file itself. */

import { stretches, laid } from "./bars.js";
import { curl, blob } from "./api.js";
import { copy } from "./copy.js";
import { fill, h, number, plural, svg } from "./dom.js";
import { FORMATS } from "./formats.js";
import { rowsOf } from "./held.js";
import { prose } from "./prose.js";
import { to } from "./router.js";
import { save, fileName } from "./save.js";
import { REASON, plain, straddles, versionsOf } from "./words.js";

const WIDTH = 1000;
const HEIGHT = 14;
const SHOWN = 60;
const CALLS = 8;
const KINDS = ["main", "summary", "subagent", "auxiliary"];

/* A panel; `update(graph)` reads the rows anew. */
export class Sequences {
  constructor(id, ctx) {
    this.id = id;
    this.ctx = ctx;
    this.graph = null;
    this.asked = null;
    this.rows = h("div.seq-rows", { "aria-live": "off" }, h("p.quiet.holding", "Cutting rows…"));
    this.drift = h("select", { id: "seq-drift" }, h("option", { value: "split" }, "end the row (split)"), h("option", { value: "realign" }, "go on, untrained behind small ones (realign)"));
    this.threshold = h("input", { id: "seq-threshold", type: "number", min: 0, value: 1024, size: 7, disabled: true });
    this.roles = KINDS.map((kind) => h("label.check", h("input", { type: "checkbox", name: "roles", value: kind, checked: kind === "main" }), kind));
    this.also = [["aborted", "aborted replies"], ["constrained", "constrained replies"]].map(([name, said]) => h("label.check", h("input", { type: "checkbox", name, value: "train" }), said));
    this.format = h("select", { id: "seq-format" }, Object.entries(FORMATS).map(([name, { help }]) => h("option", { value: name }, `${name}: ${help}`)));
    this.said = h("p.quiet", { role: "status" });
    const options = h("div.options", { onchange: () => this.#changed() },
      h("span", h("label", { for: "seq-drift" }, "At a drift "), this.drift, " ", h("label", { for: "seq-threshold" }, "up to "), this.threshold, " tokens"),
      h("fieldset.checks", h("legend", "Conversations"), this.roles),
      h("fieldset.checks", h("legend", "Train too"), this.also));
    const file = h("div.options",
      h("label", { for: "seq-format" }, "Format "), this.format,
      h("button", { type: "button", onclick: (event) => this.#download(event.currentTarget) }, "Download"),
      h("button", { type: "button", onclick: () => copy(curl(this.#path(this.format.value)), ctx, "The command is copied; it reads the key from $KEY.") }, "Copy as curl"));
    this.element = h("section.panel.sequences", { "aria-labelledby": "seq-head" },
      h("h2", { id: "seq-head" }, "Training rows"),
      h("details.choices", h("summary", "Choices and download"), options, file, this.said),
      this.rows);
  }

  #query(format) {
    const checked = (inputs) => inputs.map((label) => label.firstChild).filter((input) => input.checked).map((input) => input.value);
    const query = {};
    const roles = checked(this.roles);
    if (roles.join() !== "main" && roles.length) query.roles = roles.join(",");
    const drifts = FORMATS[format]?.drifts || ["split"];
    if (this.drift.value !== drifts[0] && drifts.includes(this.drift.value)) query.drift = this.drift.value;
    if (query.drift === "realign" && this.threshold.value !== "1024" && this.threshold.value !== "") query.threshold = this.threshold.value;
    for (const label of this.also) if (label.firstChild.checked) query[label.firstChild.name] = "train";
    return query;
  }

  #path(format) {
    const query = new URLSearchParams({ format, ...this.#query(format), ...(this.graph?.rollout.state === "open" ? { open: "1" } : {}) });
    return `rollouts/${encodeURIComponent(this.id)}/sequences?${query}`;
  }

  #changed() {
    this.threshold.disabled = this.drift.value !== "realign";
    this.update(this.graph);
  }

  async #download(button) {
    const format = this.format.value;
    button.disabled = true;
    fill(this.said, "Asking…");
    try {
      const answer = await blob(this.#path(format), { signal: this.ctx.signal });
      const { extension } = FORMATS[format];
      const name = fileName(this.id, ...(extension === "jsonl" ? [format, "json"] : [extension]));
      save(answer, name);
      fill(this.said, `${name} is there.`);
    } catch (error) {
      if (!this.ctx.signal.aborted) fill(this.said, prose(error.message), " ", prose(error.hint));
    } finally {
      button.disabled = false;
    }
  }

  async update(graph) {
    this.graph = graph;
    const asking = {};
    this.asked = asking;
    try {
      const made = await rowsOf(this.ctx.api, this.id, { signal: this.ctx.signal, opened: graph.rollout.state === "open", query: this.#query("native") });
      if (this.asked !== asking) return null;
      this.#show(made);
      return made;
    } catch (error) {
      if (this.ctx.signal.aborted) return null;
      fill(this.rows, h("p.notice.bad", { role: "alert" }, prose(error.message), " ", prose(error.hint)));
      return null;
    }
  }

  #show(made) {
    const longest = Math.max(1, ...made.sequences.map((row) => row.n_ids));
    const roots = breaks(this.graph);
    this.mixed = new Map(this.graph.calls.filter(straddles).map((call) => [call.n, call]));
    const weighed = made.sequences.some((row) => row.spans.some((span) => span.weights !== null && span.weights !== undefined)) || this.mixed.size > 0;
    const kept = [];
    const summary = h("p",
      h("strong", plural(made.n_rows, "row")), `, ${number(made.n_trained_tokens)} trained tokens`,
      made.final ? "" : "; the rollout is open, so they may still change",
      made.realign_masked ? `; ${number(made.realign_masked.tokens)} sampled tokens in ${plural(made.realign_masked.rows, "row")} stand behind a break and are not trained there` : "");
    const empty = made.empty ? h("div.notice.warn", h("p", prose(made.empty.message)), h("p", prose(made.empty.hint))) : null;
    const table = made.sequences.length ? h("table.bars",
      h("caption.hidden", "Training rows"),
      h("thead", h("tr", ["Row", "Conversation", "Calls", "Mask", "Ids", "Trained", weighed ? "Weights" : null, "Begins", "Ends"].filter(Boolean).map((name) => h("th", { scope: "col", class: name === "Ids" || name === "Trained" ? "number" : null }, name)))),
      h("tbody", made.sequences.slice(0, SHOWN).map((row) => this.#row(row, longest, roots, weighed)))) : null;
    kept.push(summary, this.#acrossChange(made), empty, table ? h("div.wide", { role: "region", "aria-label": "Rows", tabindex: "0" }, table) : null);
    if (made.sequences.length > SHOWN) {
      const more = h("button", { type: "button", onclick: () => {
        table.tBodies[0].append(...made.sequences.slice(SHOWN).map((row) => this.#row(row, longest, roots, weighed)));
        more.remove();
      } }, `Show ${number(made.sequences.length - SHOWN)} more rows`);
      kept.push(more);
    }
    if (made.sequences.length) kept.push(maskLegend(this.mixed.size > 0));
    if (made.left_out.length) kept.push(this.#left(made.left_out));
    fill(this.rows, kept);
  }

  /* What is trained of calls during which the weights changed, and what can be done about it. */
  #acrossChange(made) {
    const parts = made.sequences.flatMap(stretches).filter((part) => part.kind === "trained" && this.mixed.has(part.call));
    if (!parts.length) return null;
    const calls = [...new Set(parts.map((part) => part.call))];
    const known = calls.every((n) => this.mixed.get(n).weights.spans.length > 1);
    return h("p.notice.warn", h("strong", `${plural(parts.reduce((sum, part) => sum + part.end - part.start, 0), "trained token")} across a change of the weights`), " (", calls.flatMap((n, at) => [at ? ", " : "", h("a", { href: to("rollouts", this.id, "calls", n) }, `#${n}`)]), "). ",
      known ? "Each of their spans says its version (weights), as the engine told it: a trainer can correct for each."
        : ["Which token is of which version nobody knows: their spans say no version (", h("code", "weights: null"), "), and a trainer that must not mix versions leaves out spans without one. No choice of an export does so."]);
  }

  #row(row, longest, roots, weighed) {
    const parts = stretches(row).map((part) => (part.kind === "trained" && this.mixed.has(part.call) ? { ...part, mixed: true } : part));
    const width = Math.max(4, (row.n_ids / longest) * WIDTH);
    const sampled = parts.filter((part) => part.kind === "sampled").reduce((sum, part) => sum + part.end - part.start, 0);
    const said = `${number(row.n_trained_tokens)} of ${number(row.n_ids)} ids trained${sampled ? `, ${number(sampled)} sampled and not trained` : ""}`;
    const begun = roots.get(row.calls[0]);
    return h("tr",
      h("th", { scope: "row" }, row.row),
      h("td", h("span", { class: `role-${row.role}` }, row.role), ` ${row.conversation}`),
      h("td.calls-cell", this.#calls(row.calls)),
      h("td.bar-cell", svg("svg", { class: "mask-bar", role: "img", "aria-label": said, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", focusable: "false" },
        svg("rect", { class: "part-context", x: 0, y: 4, width, height: HEIGHT - 8 }),
        laid(parts, row.n_ids, width).filter((part) => part.kind !== "context").map((part) => svg("rect", { class: part.mixed ? "part-trained part-mixed" : `part-${part.kind}`, x: part.x.toFixed(2), y: part.kind === "trained" ? 0 : 3, width: part.w.toFixed(2), height: part.kind === "trained" ? HEIGHT : HEIGHT - 6 },
          svg("title", `call ${part.call}: ${number(part.end - part.start)} ${part.kind}, ${number(part.start)} to ${number(part.end)}${part.mixed ? ", across a change of the weights" : ""}`))))),
      h("td.number", number(row.n_ids)),
      h("td.number", number(row.n_trained_tokens)),
      weighed ? h("td", this.#weights(row)) : null,
      h("td", begun ? h("a", { href: to("rollouts", this.id, "tokens", row.calls[0], begun.at === null ? {} : { at: begun.at }) }, begun.said) : "at a root"),
      h("td", [row.truncated ? `cut by ${row.truncated === "length" ? "the length limit of a reply" : "a limit"}` : null, row.drift_crossed ? `crosses ${plural(row.drift_crossed, "drift")}` : null].filter(Boolean).join("; ") || "whole"));
  }

  /* The versions that drew a row's trained tokens, in order; one that changed within a call is marked. */
  #weights(row) {
    const told = new Map();
    for (const span of row.spans.filter((each) => each.kind === "sampled")) {
      const call = this.mixed.get(span.call);
      const said = call ? versionsOf(call.weights).join(" → ") : span.weights ?? "unknown";
      told.set(said, Boolean(call));
    }
    return [...told].flatMap(([said, changed], at) => [at ? ", " : "", changed ? h("strong.warn-text", { title: "The weights changed while it was sampled" }, said) : said]);
  }

  #calls(calls) {
    const link = (n) => h("a", { href: to("rollouts", this.id, "calls", n) }, `#${n}`);
    if (calls.length <= CALLS) return calls.flatMap((n) => [link(n), " "]);
    return [calls.slice(0, 3).flatMap((n) => [link(n), " "]), `… ${number(calls.length - 5)} more … `, calls.slice(-2).flatMap((n) => [link(n), " "])];
  }

  #left(left) {
    const by = new Map();
    for (const { call, reason } of left) by.set(reason, [...(by.get(reason) || []), call]);
    return h("div", h("h3", "In no row"), h("ul.left-out", [...by].map(([reason, calls]) =>
      h("li", h("code", reason), ` ${REASON[reason] || plain(reason)}: `, this.#calls(calls)))));
  }
}

/* By the call that begins a row: the break that made it begin there. */
function breaks(graph) {
  const out = new Map();
  for (const call of graph.calls) {
    if (call.link === "drift") out.set(call.n, { at: call.drift?.at ?? null, said: `after drift, ${plain(call.drift?.cause)}` });
    else if (call.link === "compaction") out.set(call.n, { at: null, said: "after compaction" });
    else if (call.fork) out.set(call.n, { at: null, said: `at a ${call.fork}` });
  }
  return out;
}

export function maskLegend(mixed = false) {
  const shape = (kind, tall) => svg("svg", { width: 28, height: HEIGHT, viewBox: `0 0 28 ${HEIGHT}`, "aria-hidden": "true", focusable: "false" }, svg("rect", { class: `part-${kind}`, x: 1, y: tall, width: 26, height: HEIGHT - 2 * tall }));
  return h("ul.legend", { "aria-label": "What the bars mean" },
    h("li", shape("trained", 0), "trained: the policy sampled it"),
    mixed ? h("li", svg("svg", { width: 28, height: HEIGHT, viewBox: `0 0 28 ${HEIGHT}`, "aria-hidden": "true", focusable: "false" }, svg("rect", { class: "part-trained part-mixed", x: 1, y: 0, width: 26, height: HEIGHT })), "trained, and drawn across a change of the weights") : null,
    h("li", shape("sampled", 3), "sampled, and not trained here"),
    h("li", shape("context", 4), "context"));
}
