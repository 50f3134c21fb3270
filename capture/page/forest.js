/* The forest of a rollout, drawn like a commit log beside a table with a row a call.

   The drawing says in shapes what the table says in words: who can't see it misses nothing. Rows have one height, so
   the drawing is one SVG under the table's first column, made anew as a whole when a call comes; of the table only the
   cells of calls that changed are. */

import { fill, h, number, plural, span, svg } from "./dom.js";
import { lanes, ties } from "./lanes.js";
import { to } from "./router.js";
import { FORK, LINK, ROLE, STATUS, notesOf, plain, roleOf, straddles, versionsOf } from "./words.js";

const ROW = 30;
const LANE = 16;
/* Of the drawing, in pixels: with more lanes they stand closer. */
const WIDEST = 260;
/* Columns have a width, so that none moves when a row comes. */
const HEADERS = [["Forest", "lanes"], ["Call", "", 58], ["Role", "", 152], ["Hangs on", "", 212], ["Prompt", "number", 72], ["Sampled", "number", 70], ["Finish", "", 82], ["Status", "", 104], ["Began", "number", 82], ["First token", "number", 90], ["Took", "number", 66], ["Notes"]];
/* Rows that are there at once; more than a screen has. The rest are made behind the first sight. */
const FIRST = 40;
const MORE = 160;

export class Forest {
  constructor(id, { onSelect = () => {} } = {}) {
    this.id = id;
    this.rows = new Map();
    this.order = [];
    this.selected = null;
    this.pending = null;
    this.onSelect = onSelect;
    this.drawing = svg("svg", { class: "forest-drawing", role: "img", focusable: "false" });
    this.body = h("tbody", { onclick: (event) => this.#clicked(event), onfocusin: (event) => this.#focused(event) });
    this.table = h("table.forest-table",
      h("caption.hidden", "Calls in order of arrival"),
      h("colgroup", HEADERS.map(([, kind, width]) => h("col", { class: kind || null, style: width ? { width: `${width}px` } : {} }))),
      h("thead", h("tr", HEADERS.map(([name, kind]) => h("th", { scope: "col", class: kind || null }, name)))),
      this.body);
    this.holder = h("div.forest-holder", this.table, this.drawing);
    /* What the row that is chosen says in full, since a column may be too narrow for it. */
    this.detail = h("p.forest-detail.quiet", "A call that is chosen is told in full here.");
    this.element = h("div.forest.wide", { role: "region", "aria-label": "Forest of calls", tabindex: "0" }, this.holder);
  }

  /* Shows a graph. */
  update(graph) {
    const first = this.rows.size === 0 && graph.calls.length > FIRST * 2;
    this.#show(graph, first ? FIRST : Infinity);
    if (first) this.#more(FIRST + MORE);
  }

  /* Makes the other rows, some at a time, so that keys and the wheel are answered in between. */
  #more(most) {
    requestAnimationFrame(() => setTimeout(() => {
      if (!this.pending) return;
      this.#show(this.pending, most < this.pending.calls.length ? most : Infinity);
      if (this.pending) this.#more(most + MORE);
    }));
  }

  /* Makes the rows that are still to come. */
  #rest() {
    if (this.pending) this.#show(this.pending, Infinity);
  }

  #show(graph, most) {
    this.pending = most === Infinity ? null : graph;
    const conversations = new Map(graph.conversations.map((each) => [each.n, each]));
    const kept = new Set(graph.forks.map((fork) => fork.kept).filter((n) => n !== null));
    const calls = [...graph.calls].sort((a, b) => a.n - b.n);
    const began = calls.length ? Date.parse(calls[0].started_at) : 0;
    const drawn = lanes(calls, kept);
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const atEnd = this.order.length > 0 && scrollHeight > clientHeight && scrollTop + clientHeight >= scrollHeight - ROW;
    const shown = calls.slice(0, most);
    const elements = [];
    for (const call of shown) {
      const conversation = conversations.get(call.conversation);
      const key = JSON.stringify([call, conversation?.role, conversation?.kind, conversation?.parent_call, conversation?.evidence?.length, kept.has(call.n), began]);
      const held = this.rows.get(call.n);
      if (held?.key === key) {
        elements.push(held.element);
        continue;
      }
      const element = held?.element ?? h("tr", { dataset: { n: call.n } });
      const focused = element.contains(document.activeElement);
      fill(element, this.#cells(call, conversation, conversations, kept, began));
      element.classList.toggle("discarded", call.discarded);
      this.rows.set(call.n, { key, element, call, words: () => wordsOf(call, conversation, conversations, kept) });
      elements.push(element);
      if (focused) element.querySelector("a").focus({ preventScroll: true });
    }
    this.order = shown.map((call) => call.n);
    const known = new Set(this.order);
    for (const [n, row] of this.rows) {
      if (known.has(n)) continue;
      row.element.remove();
      this.rows.delete(n);
    }
    /* What stands in its place stays there, so that what has the focus keeps it. */
    let before = this.body.firstChild;
    for (const element of elements) {
      if (element === before) before = before.nextSibling;
      else this.body.insertBefore(element, before);
    }
    if (this.order.length <= FIRST || most === Infinity) this.#draw(graph, calls, conversations, drawn, most);
    if (this.selected !== null) this.#mark(this.selected);
    /* Who looks at the newest call goes on doing so. */
    if (atEnd) this.element.scrollTop = this.element.scrollHeight;
  }

  /* Chooses a call, as the keys do. */
  select(n, { focus = true } = {}) {
    if (!this.rows.has(n)) this.#rest();
    const row = this.rows.get(n);
    if (!row) return;
    this.#mark(n);
    if (focus) row.element.querySelector("a").focus({ preventScroll: true });
    row.element.scrollIntoView({ block: "nearest" });
    this.onSelect(n);
  }

  step(by) {
    this.#rest();
    if (!this.order.length) return;
    const at = this.selected === null ? (by > 0 ? -1 : this.order.length) : this.order.indexOf(this.selected);
    this.select(this.order[Math.max(0, Math.min(this.order.length - 1, at + by))]);
  }

  /* To the next call that is worth a look: one that parts from its parent, forks, or did not end well. */
  next(by) {
    this.#rest();
    const at = this.selected === null ? (by > 0 ? -1 : this.order.length) : this.order.indexOf(this.selected);
    for (let i = at + by; i >= 0 && i < this.order.length; i += by) {
      const { call } = this.rows.get(this.order[i]);
      if (call.link === "drift" || call.link === "compaction" || call.fork || call.status !== "complete" || call.finish_reason === "length" || straddles(call)) {
        this.select(call.n);
        return true;
      }
    }
    return false;
  }

  /* To the parent of the chosen call. */
  parent() {
    const row = this.rows.get(this.selected);
    if (row && row.call.parent !== null) this.select(row.call.parent);
  }

  #mark(n) {
    if (this.selected !== null) this.rows.get(this.selected)?.element.removeAttribute("aria-current");
    this.selected = n;
    const row = this.rows.get(n);
    row?.element.setAttribute("aria-current", "true");
    if (row) fill(this.detail, row.words());
  }

  #clicked(event) {
    const row = event.target.closest("tr");
    if (!row || event.target.closest("a, button")) return;
    if (document.getSelection()?.toString()) return;
    this.select(Number(row.dataset.n));
  }

  #focused(event) {
    const row = event.target.closest("tr");
    if (!row) return;
    const n = Number(row.dataset.n);
    if (n === this.selected) return;
    this.#mark(n);
    this.onSelect(n);
  }

  #cells(call, conversation, conversations, kept, first) {
    const [role, said] = roleOf(call, conversations);
    const [mark, status, why] = STATUS[call.status] || ["?", call.status, ""];
    const notes = notesOf(call, conversation, kept);
    const began = call.started_at ? `+${span(Date.parse(call.started_at) - first)}` : "–";
    const hangs = hangsOf(call);
    return [
      h("td.lanes"),
      h("th.call", { scope: "row" }, h("a", { href: to("rollouts", this.id, "calls", call.n), "aria-label": `Call ${call.n}, ${said}, ${status}` }, `#${call.n}`)),
      h("td", h("span", { class: `role-${role}`, title: `${said}: ${ROLE[role]}` }, said)),
      h("td.hangs", { class: `link-${call.link}`, title: `${hangs}: ${LINK[call.link] || ""}` }, call.link === "drift" || call.link === "compaction"
        ? h("a", { href: to("rollouts", this.id, "tokens", call.n, call.drift ? { at: call.drift.at } : {}), "aria-label": `Tokens of call ${call.n} at its break: ${hangs}` }, hangs)
        : hangs, call.parent === null || call.parent === undefined ? null : h("span.quiet", ` on #${call.parent}`)),
      h("td.number", number(call.n_prompt)),
      h("td.number", number(call.n_sampled)),
      h("td", { class: call.finish_reason === "length" ? "attention" : null }, plain(call.finish_reason ?? "–")),
      h("td", { class: `status-${call.status}`, title: why }, h("span", { "aria-hidden": "true" }, `${mark} `), status),
      h("td.number", began),
      h("td.number", span(call.first_token_ms)),
      h("td.number", span(call.ended_ms)),
      h("td.notes-of", { class: straddles(call) ? "attention" : null, title: notes.length ? [notes.join(" · "), call.fork ? FORK[call.fork] : null].filter(Boolean).join(": ") : null }, notes.join(" · ")),
    ];
  }

  #draw(graph, calls, conversations, { rows, edges, width }, most) {
    const step = width > 1 ? Math.min(LANE, (WIDEST - LANE) / (width - 1)) : LANE;
    const across = Math.max(60, Math.ceil((Math.max(1, width) - 1) * step + LANE + 8));
    this.holder.style.setProperty("--lanes", `${across}px`);
    const at = new Map(rows.map(({ n, lane }, i) => [n, { x: LANE / 2 + 4 + lane * step, y: i * ROW + ROW / 2 }]));
    const by = new Map(calls.map((call) => [call.n, call]));
    const colour = (n) => `role-${roleOf(by.get(n), conversations)[0]}`;
    const there = (n) => at.get(n).y < most * ROW;
    const lines = edges.filter((edge) => there(edge.from)).map((edge) => this.#edge(edge, at, colour(edge.to), by.get(edge.to)));
    const dotted = ties(graph).filter((tie) => there(tie.from)).map((tie) => {
      const from = at.get(tie.from);
      const end = at.get(tie.to);
      const bend = from.x === end.x ? 10 : 0;
      return svg("path", { class: `tie ${colour(tie.to)}`, d: `M${from.x},${from.y} C${from.x + bend},${from.y + ROW * 0.8} ${end.x + bend},${end.y - ROW * 0.8} ${end.x},${end.y}` });
    });
    const nodes = calls.filter((call) => there(call.n)).map((call) => [straddles(call) ? mixed(at.get(call.n), call) : null, node(call, at.get(call.n), colour(call.n))]);
    const height = Math.min(calls.length, most) * ROW;
    this.drawing.setAttribute("width", across);
    this.drawing.setAttribute("height", Math.max(height, 1));
    this.drawing.setAttribute("viewBox", `0 0 ${across} ${Math.max(height, 1)}`);
    this.drawing.setAttribute("aria-label", `${plural(calls.length, "call")} in ${plural(graph.conversations.length, "conversation")}, ${plural(graph.forks.length, "fork")}; the table says the same`);
    fill(this.drawing, dotted, lines, nodes);
  }

  #edge({ from, to: child, kind }, at, colour, call) {
    const a = at.get(from);
    const b = at.get(child);
    const path = a.x === b.x
      ? `M${a.x},${a.y} V${b.y}`
      : `M${a.x},${a.y} C${a.x},${a.y + ROW * 0.7} ${b.x},${a.y + ROW * 0.3} ${b.x},${a.y + ROW} V${b.y}`;
    const line = svg("path", { class: `edge ${kind} ${colour}`, d: path });
    if (kind === "drift") {
      /* Two strokes across, as where an axis is broken. */
      const y = b.y - ROW / 2;
      return [line, svg("path", { class: "gap", d: `M${b.x - 4},${y + 2} L${b.x + 4},${y - 2}` }),
        svg("path", { class: "break", d: `M${b.x - 5},${y + 4} L${b.x + 5},${y} M${b.x - 5},${y} L${b.x + 5},${y - 4}` }, svg("title", `drift of ${call.drift?.tokens ?? "?"} tokens`))];
    }
    if (kind === "compaction") {
      const y = b.y - ROW / 2;
      return [line, svg("path", { class: `fold ${colour}`, d: `M${b.x},${y - 5} L${b.x + 5},${y} L${b.x},${y + 5} L${b.x - 5},${y} Z` }, svg("title", "compaction"))];
    }
    return [line];
  }
}

const hangsOf = (call) => (call.parent === null ? "root" : `${call.link}${call.drift ? ` ${number(call.drift.tokens)} ${plain(call.drift.cause)}` : ""}`);

/* All that a row says, in words that nothing cuts. */
function wordsOf(call, conversation, conversations, kept) {
  const [, role] = roleOf(call, conversations);
  const [, status, why] = STATUS[call.status] || ["?", call.status, ""];
  return [h("strong", `Call ${call.n}`), `: ${role}; ${hangsOf(call)}${call.parent === null || call.parent === undefined ? "" : ` on #${call.parent}`}; ${status}${call.status === "complete" ? "" : ` (${why})`}`,
    notesOf(call, conversation, kept).map((note) => `; ${note}`), "."];
}

/* A bar through a node: below it another version of the weights drew the tokens. */
const mixed = ({ x, y }, call) => svg("path", { class: "mixed", d: `M${x - 8},${y} H${x + 8}` }, svg("title", `weights changed: ${versionsOf(call.weights).join(" → ")}`));

function node(call, { x, y }, colour) {
  const title = svg("title", `call ${call.n}: ${call.status}`);
  switch (call.status) {
    case "complete": return svg("circle", { class: `node ${colour}`, cx: x, cy: y, r: 5 }, title);
    case "undelivered": return svg("circle", { class: `node hollow ${colour}`, cx: x, cy: y, r: 4.5 }, title);
    case "aborted": return svg("path", { class: `node cross ${colour}`, d: `M${x - 4.5},${y - 4.5} L${x + 4.5},${y + 4.5} M${x + 4.5},${y - 4.5} L${x - 4.5},${y + 4.5}` }, title);
    case "stopped": return svg("rect", { class: `node ${colour}`, x: x - 4.5, y: y - 4.5, width: 9, height: 9 }, title);
    case "running": return svg("circle", { class: `node in-flight ${colour}`, cx: x, cy: y, r: 4.5 }, title);
    default: return svg("path", { class: "node fault", d: `M${x},${y - 6} L${x + 6},${y + 5} L${x - 6},${y + 5} Z` }, title);
  }
}

/* What the shapes mean, in words. */
export function legend() {
  const shape = (...drawn) => svg("svg", { width: 20, height: 20, viewBox: "0 0 20 20", "aria-hidden": "true", focusable: "false" }, drawn);
  const line = (kind) => svg("path", { class: `edge ${kind} role-main`, d: "M10,0 V20" });
  const at = { x: 10, y: 10 };
  const entry = (drawn, text) => h("li", shape(drawn), h("span", text));
  const call = (status) => node({ n: "", status }, at, "role-main");
  return h("ul.legend", { "aria-label": "What the shapes mean" },
    ["main", "subagent", "auxiliary"].map((role) => entry(svg("circle", { class: `node role-${role}`, cx: 10, cy: 10, r: 5 }), role)),
    entry(call("undelivered"), "undelivered"), entry(call("aborted"), "aborted"), entry(call("error"), "error"),
    entry(call("stopped"), "stopped by a limit"), entry(call("running"), "running"),
    entry([line("drift"), svg("path", { class: "break", d: "M5,14 L15,10 M5,10 L15,6" })], "drift: tokens part"),
    entry([line("compaction"), svg("path", { class: "fold role-main", d: "M10,5 L15,10 L10,15 L5,10 Z" })], "compaction"),
    entry([mixed(at, { weights: { start: "one version", end: "another", spans: [] } }), call("complete")], "the weights changed while it was sampled"),
    entry(svg("path", { class: "tie role-subagent", d: "M10,0 V20" }), "started by a tool call, or carried over"));
}
