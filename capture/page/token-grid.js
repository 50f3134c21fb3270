/* Tokens as a grid that scrolls however many there are: rows of one height, of which only those in view exist.

   One side, or two beside each other (a parent and its child): a row has the same positions on both, so that what they
   share stands level and the first token that differs is seen at once. The grid takes the focus as one thing and says
   which cell is meant (aria-activedescendant), since cells come and go. */

import { h, number } from "./dom.js";
import { classOf, columnsIn, visible } from "./windows.js";

const ROW = 40;
/* Of a cell and of a row's position, at least; and where the view is narrow. */
const CELL = 84;
const HEAD = 64;
const NARROW = { below: 600, cell: 60, head: 46 };
const OVER = 8;
const PAUSE_MS = 40;

export class TokenGrid {
  /* sides: [{name, windows, total, hasText, kindAt(position)}]; onAt(side, position) when a cell is meant. */
  constructor(sides, { at = 0, differs = null, onAt = () => {}, label }) {
    this.sides = sides;
    this.differs = differs;
    this.onAt = onAt;
    this.total = Math.max(...sides.map((side) => side.total));
    this.at = Math.max(0, Math.min(at, this.total - 1));
    this.side = sides.length - 1;
    this.rows = new Map();
    this.columns = 0;
    this.space = h("div.token-space", { role: "rowgroup" });
    this.element = h("div.tokens", {
      role: "grid", tabindex: "0", "aria-label": label, "aria-readonly": "true",
      onkeydown: (event) => this.#key(event),
      onscroll: () => this.#later(),
      onclick: (event) => this.#pointed(event, true),
      onpointerover: (event) => this.#pointed(event, false),
      onpointerleave: () => this.onAt(this.side, this.at),
    }, this.space);
    this.resized = new ResizeObserver(() => this.#measure());
    this.resized.observe(this.element);
  }

  close() {
    clearTimeout(this.wanting);
    this.resized.disconnect();
  }

  /* Draws what is in view anew: a window has come. */
  refresh() {
    this.stale = true;
    this.#later();
  }

  /* To a position, near the top third of the view. */
  go(position, { side = this.side, centre = true } = {}) {
    this.at = Math.max(0, Math.min(position, this.sides[side].total - 1));
    this.side = side;
    const y = Math.floor(this.at / this.columns) * ROW;
    const { scrollTop, clientHeight } = this.element;
    if (centre) this.element.scrollTop = Math.max(0, y - clientHeight / 3);
    else if (y < scrollTop) this.element.scrollTop = y;
    else if (y + ROW > scrollTop + clientHeight) this.element.scrollTop = y + ROW - clientHeight;
    this.#render();
    this.onAt(this.side, this.at);
  }

  #measure() {
    const narrow = this.element.clientWidth < NARROW.below;
    const width = this.element.clientWidth / this.sides.length - (narrow ? NARROW.head : HEAD);
    const columns = columnsIn(width, narrow ? NARROW.cell : CELL);
    if (columns === this.columns) {
      this.#later();
      return;
    }
    this.columns = columns;
    this.element.style.setProperty("--columns", columns);
    this.space.style.setProperty("height", `${Math.ceil(this.total / columns) * ROW}px`);
    this.element.setAttribute("aria-rowcount", Math.ceil(this.total / columns));
    this.element.setAttribute("aria-colcount", (columns + 1) * this.sides.length);
    for (const row of this.rows.values()) row.element.remove();
    this.rows.clear();
    this.go(this.at, { centre: true });
  }

  #later() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.#render();
    });
  }

  #render() {
    if (!this.columns) return;
    const { scrollTop, clientHeight } = this.element;
    const last = Math.ceil(this.total / this.columns) - 1;
    const from = Math.max(0, Math.floor(scrollTop / ROW) - OVER);
    const to = Math.min(last, Math.ceil((scrollTop + clientHeight) / ROW) + OVER);
    for (const [r, row] of this.rows) {
      if (r >= from && r <= to && !this.stale) continue;
      row.element.remove();
      this.rows.delete(r);
    }
    const came = this.stale;
    this.stale = false;
    const fresh = [];
    for (let r = from; r <= to; r += 1) {
      if (this.rows.has(r)) continue;
      const element = this.#row(r);
      this.rows.set(r, { element });
      fresh.push(element);
    }
    this.space.append(...fresh);
    this.#want(from * this.columns, (to + 1) * this.columns);
    this.#mean();
    if (came) this.onAt(this.side, this.at);
  }

  /* What is in view when scrolling pauses: of what flies by, nothing is asked. */
  #want(start, end) {
    clearTimeout(this.wanting);
    this.wanting = setTimeout(() => { for (const side of this.sides) side.windows.want(start, Math.min(end, side.total)); }, PAUSE_MS);
  }

  #row(r) {
    const start = r * this.columns;
    const element = h("div.token-row", { role: "row", "aria-rowindex": r + 1 },
      this.sides.map((side, s) => [
        h("div.token-head", { role: "rowheader" }, start < side.total ? number(start) : ""),
        Array.from({ length: this.columns }, (_, i) => this.#cell(side, s, start + i)),
      ]));
    element.style.setProperty("top", `${r * ROW}px`);
    return element;
  }

  #cell(side, s, position) {
    if (position >= side.total) return h("div.token.none", { role: "gridcell" });
    const token = side.windows.at(position);
    const id = `t${s}-${position}`;
    if (!token) return h("div.token.coming", { role: "gridcell", id, dataset: { s, at: position } }, h("span", side.windows.error(position) ? "!" : " "));
    const classes = [side.kindAt(position)];
    if (token.logprob !== null && token.logprob !== undefined) classes.push(`lp-${classOf(token.logprob)}`);
    if (this.differs !== null) {
      if (position === this.differs) classes.push("first-differs");
      else if (position > this.differs) classes.push(s === 0 && this.sides.length > 1 ? "lost" : "after");
    }
    const seen = side.hasText ? visible(token.piece) || (token.piece === null ? "▯" : "∅") : token.id;
    const scored = token.logprob === null || token.logprob === undefined ? "" : token.logprob.toFixed(2);
    return h("div.token", { role: "gridcell", id, class: classes.join(" "), dataset: { s, at: position } },
      h("span.piece", { title: side.hasText && token.piece !== null && seen.length > 8 ? JSON.stringify(token.piece) : null }, seen), h("small", side.hasText ? `${token.id} ${scored}` : scored));
  }

  /* Marks the cell that is meant. */
  #mean() {
    this.element.querySelector(".token.meant")?.classList.remove("meant");
    const cell = this.element.querySelector(`#t${this.side}-${this.at}`);
    if (cell) {
      cell.classList.add("meant");
      this.element.setAttribute("aria-activedescendant", cell.id);
    } else this.element.removeAttribute("aria-activedescendant");
  }

  #pointed(event, chosen) {
    const cell = event.target.closest(".token[data-at]");
    if (!cell) return;
    if (chosen) {
      this.side = Number(cell.dataset.s);
      this.at = Number(cell.dataset.at);
      this.#mean();
    }
    this.onAt(Number(cell.dataset.s), Number(cell.dataset.at));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 1) * this.columns;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -page, PageDown: page }[event.key];
    let position = null;
    if (by !== undefined) position = this.at + by;
    else if (event.key === "Home") position = 0;
    else if (event.key === "End") position = this.sides[this.side].total - 1;
    else if (event.key === "s" && this.sides.length > 1) {
      event.preventDefault();
      event.stopPropagation();
      const other = 1 - this.side;
      if (this.at < this.sides[other].total) this.go(this.at, { side: other, centre: false });
      return;
    }
    if (position === null) return;
    event.preventDefault();
    this.go(position, { centre: event.key === "Home" || event.key === "End" });
  }
}
