/* The list itself: a grid of ten thousand rows, of which a few dozen are in the document.

   The focus stays on the grid and `aria-activedescendant` names the row, since a row's element is used for another row
   when the list is scrolled. */

import { decimal, fill, h, moment, number, short } from "./dom.js";
import { findingsOf, MARK, TAG } from "./health.js";
import { LEVEL } from "./words.js";
import { poolSize, reveal, step, windowOf } from "./list-window.js";
import { to } from "./router.js";
import { stateWords, statesOf } from "./states.js";

const COLUMNS = [["pick", "Selected"], ["id", "Rollout"], ["group", "Group"], ["state", "State"], ["calls", "Calls"], ["convs", "Convs"],
  ["sampled", "Sampled"], ["reward", "Reward"], ["drift", "Drift"], ["found", "Findings"], ["when", "Begun"]];
const TITLES = { calls: "Calls of main / all calls", convs: "Conversations", sampled: "Tokens that were sampled", drift: "Steps of main that drifted / all its steps" };
const NUMBERS = new Set(["calls", "convs", "sampled", "reward", "drift"]);
/* The same in list.css, where a narrow screen has a row of three lines. */
const NARROW = matchMedia("(max-width: 760px)");
const HEIGHTS = { wide: 44, narrow: 102 };
/* Letters of findings that a row has room for. */
const ROOM = 40;

/* `rows`: {at(index) → row or undefined, count(), chosen: Set of ids}. `on`: {need(last), open(row), pick(row, index)}. */
export function grid(rows, on, signal) {
  const head = h("tr.list-row", { role: "row", "aria-rowindex": "1" },
    COLUMNS.map(([name, said]) => h(`th.c-${name}`, { role: "columnheader", scope: "col", title: TITLES[name], class: NUMBERS.has(name) ? "number" : "" },
      name === "pick" ? h("span.unseen", said) : said)));
  const body = h("tbody", { role: "rowgroup" });
  const table = h("table.list-table", {
    role: "grid", tabindex: "0", "aria-label": "Rollouts, the newest first", "aria-colcount": String(COLUMNS.length), "aria-multiselectable": "true",
    "aria-rowcount": "1", "aria-keyshortcuts": "j k x Enter",
  }, h("thead", { role: "rowgroup" }, head), body);
  const scroller = h("div.list-scroll", table);
  const slots = [];
  let active = -1;
  let rowHeight = 0;
  let queued = false;

  const seen = () => ({ top: scroller.scrollTop, height: Math.max(rowHeight, scroller.clientHeight - head.offsetHeight), rowHeight });

  /* Paints what is in sight; rows that are as they were are left alone. */
  function paint() {
    const shape = { ...seen(), count: rows.count() };
    const size = poolSize(shape);
    while (slots.length < size) {
      const element = h("tr.list-row", { role: "row", id: `list-row-${slots.length}`, hidden: true });
      slots.push({ element, index: -1, row: null, marks: "" });
      body.append(element);
    }
    const { first, last } = windowOf(shape);
    table.setAttribute("aria-rowcount", String(shape.count + 1));
    body.style.setProperty("height", `${shape.count * rowHeight}px`);
    const used = new Set();
    for (let index = first; index < last; index += 1) {
      const slot = slots[index % slots.length];
      used.add(slot);
      show(slot, index, rows.at(index));
    }
    for (const slot of slots) {
      if (used.has(slot)) continue;
      slot.element.hidden = true;
      slot.element.classList.remove("active");
      slot.index = -1;
    }
    const on_ = slots.find((slot) => slot.index === active && active >= 0);
    if (on_) table.setAttribute("aria-activedescendant", on_.element.id);
    else table.removeAttribute("aria-activedescendant");
    if (last > 0) on.need(last);
  }

  function show(slot, index, row) {
    const marks = `${index === active}|${row ? rows.chosen.has(row.id) : ""}|${rowHeight}`;
    const { element } = slot;
    if (slot.index !== index) {
      element.style.setProperty("transform", `translateY(${index * rowHeight}px)`);
      element.setAttribute("aria-rowindex", String(index + 2));
      element.hidden = false;
    } else if (slot.row === row && slot.marks === marks && !slot.stale) return;
    if (slot.marks.split("|")[2] !== String(rowHeight)) element.style.setProperty("transform", `translateY(${index * rowHeight}px)`);
    element.classList.toggle("active", index === active);
    element.classList.toggle("absent", Boolean(row?.absent));
    element.setAttribute("aria-selected", String(Boolean(row && rows.chosen.has(row.id))));
    fill(element, row ? cells(row, rows.chosen.has(row.id)) : h("td.c-id.quiet", { role: "gridcell" }, "…"));
    Object.assign(slot, { index, row, marks, stale: false });
  }

  function soon() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      if (!signal.aborted) paint();
    });
  }

  function measure() {
    rowHeight = NARROW.matches ? HEIGHTS.narrow : HEIGHTS.wide;
    table.style.setProperty("--row", `${rowHeight}px`);
    soon();
  }

  function activate(index, { scroll = true } = {}) {
    active = index;
    if (scroll && index >= 0) {
      const shape = seen();
      const top = reveal({ index, ...shape });
      if (top !== shape.top) scroller.scrollTop = top;
    }
    soon();
  }

  /* A key that walks the list; false: it is none. */
  function walk(key) {
    const { height } = seen();
    const next = step(key, { active, count: rows.count(), rowsSeen: Math.floor(height / rowHeight) });
    if (next === null) return false;
    if (document.activeElement !== table) table.focus({ preventScroll: true });
    activate(next);
    return true;
  }

  const slotOf = (event) => {
    const element = event.target.closest("tr");
    return slots.find((slot) => slot.element === element && slot.row);
  };
  body.addEventListener("click", (event) => {
    const slot = slotOf(event);
    if (!slot) return;
    if (event.target.closest(".c-pick")) {
      if (!event.target.closest("input")) event.preventDefault();
      activate(slot.index, { scroll: false });
      on.pick(slot.row, slot.index);
    } else if (!event.target.closest("a") && getSelection().isCollapsed) {
      activate(slot.index, { scroll: false });
      on.open(slot.row);
    }
  });
  table.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = rows.at(active);
    if (event.target !== table) return;
    if (event.key === "Enter" && row) on.open(row);
    else if (event.key === " " && row) on.pick(row, active);
    else if (!walk(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  table.addEventListener("focus", () => {
    if (active < 0 && rows.count() > 0) activate(Math.floor(scroller.scrollTop / rowHeight), { scroll: false });
  });
  scroller.addEventListener("scroll", soon, { passive: true });
  const resized = new ResizeObserver(measure);
  resized.observe(scroller);
  NARROW.addEventListener("change", measure, { signal });
  signal.addEventListener("abort", () => resized.disconnect(), { once: true });
  measure();

  return {
    root: scroller, table, walk, activate, paint: soon,
    active: () => active,
    window: () => windowOf({ ...seen(), count: rows.count(), over: 0 }),
    top: () => scroller.scrollTop,
    scrollTo: (top) => { body.style.setProperty("height", `${rows.count() * rowHeight}px`); scroller.scrollTop = top; soon(); },
    /* What a row says of the time goes on by itself. */
    age: () => { for (const slot of slots) slot.stale = true; soon(); },
  };
}

function cells(row, chosen) {
  const cell = (name, ...held) => h(`td.c-${name}`, { role: "gridcell", class: NUMBERS.has(name) ? "number" : "" }, held);
  const drift = row.health?.drift;
  const main = row.n_main_calls;
  return [
    cell("pick", h("input", { type: "checkbox", tabindex: "-1", checked: chosen, "aria-label": `Select ${row.id}` })),
    cell("id", h("a", { href: to("rollouts", row.id), tabindex: "-1", title: row.id }, row.id), row.tier === "eval" ? h("span.quiet", { title: row.tier_reason ?? "text only, no token ids" }, " eval") : null,
      row.task ? h("span.list-task", { title: row.task }, row.task) : null),
    cell("group", row.group ? h("a.quiet", { href: to("groups", row.group), tabindex: "-1", title: row.group }, row.group) : h("span.quiet", "–")),
    cell("state", state(row)),
    cell("calls", row.n_calls === 0 && row.state === "closed" ? h("strong.zero", "0") : [number(main), h("span.quiet", ` / ${number(row.n_calls)}`)]),
    cell("convs", number(row.n_conversations)),
    cell("sampled", short(row.n_sampled_tokens)),
    cell("reward", row.reward === null ? h("span.quiet", "–") : decimal(row.reward, 3).replace(/\.?0+$/, "")),
    cell("drift", !drift || drift.transitions === 0 ? h("span.quiet", "–") : h(drift.drifted ? "span" : "span.quiet", `${drift.drifted} / ${drift.transitions}`)),
    cell("found", tags(row)),
    cell("when", begun(row)),
  ];
}

/* A day alone, where it is long ago: the column is narrow, and the title says the whole. */
function begun(row) {
  const shown = moment(row.created_at);
  if (shown.textContent.includes(":")) shown.textContent = row.created_at.slice(0, 10);
  return shown;
}

function state(row) {
  if (row.absent) return h("span.quiet", { title: "It was deleted, or is no longer what the filter asks for" }, "gone");
  const running = row.health?.running ?? 0;
  if (running > 0) return h("span.running", { title: `${running} running` }, h("span.dot", { "aria-hidden": "true" }), running === 1 ? "1 call" : `${running} calls`, h("span.unseen", " running"));
  return h("span", { title: statesOf(row).map(({ word, title }) => `${word}: ${title}`).join("; ") }, stateWords(row));
}

function tags(row) {
  const all = findingsOf(row);
  let room = ROOM;
  const fit = all.findIndex(({ code }) => (room -= code.length + 3) < 0);
  const shown = fit < 0 ? all : all.slice(0, Math.max(1, fit));
  const rest = all.slice(shown.length);
  return [
    ...shown.map(({ code, n, level }) => h("span.tag", { class: TAG[level], title: `${LEVEL[level][1]}: ${code}, ${n}` }, h("span", { "aria-hidden": "true" }, `${MARK[level]} `), code)),
    rest.length ? h("span.quiet", { title: rest.map((each) => each.code).join(", ") }, `+${rest.length}`) : null,
  ];
}
