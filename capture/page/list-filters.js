/* The form that narrows the list. It holds no state of its own: it shows a filter, and says what was changed in it. */

import { fill, h } from "./dom.js";
import { byTable } from "./health.js";
import { isEmpty } from "./list-query.js";

const TYPED_MS = 250;

/* onChange(patch, {typing}): the reader changed something. onDone(): they go on to the list. */
export function filters(onChange, onDone) {
  let typed = 0;
  const q = h("input", {
    id: "list-q", type: "search", placeholder: "id, group, label, model, task",
    title: "What stands in an id, a group, a label's value, a model's name or the first words of a task", autocomplete: "off", spellcheck: "false", "aria-keyshortcuts": "/",
    oninput: () => {
      clearTimeout(typed);
      typed = setTimeout(() => onChange({ q: q.value.trim() || null }, { typing: true }), TYPED_MS);
    },
    onkeydown: (event) => {
      if (event.key === "Escape" && !q.value) q.blur();
      if (event.key !== "ArrowDown" && event.key !== "Enter") return;
      event.preventDefault();
      onDone();
    },
  });
  const pick = (id, read) => h("select", { id, onchange: (event) => onChange(read(event.target.value || null), { typing: false }) });
  const state = pick("list-state", (value) => ({ state: value }));
  const group = pick("list-group", (value) => ({ group: value }));
  const label = pick("list-label", (value) => ({ labels: value === null ? [] : [value] }));
  const finding = pick("list-finding", (value) => ({ finding: value }));
  const trouble = h("button", { type: "button", "aria-pressed": "false", onclick: () => onChange({ trouble: trouble.getAttribute("aria-pressed") !== "true" }, { typing: false }) }, "Need a look");
  const clear = h("button", {
    type: "button",
    onclick: () => onChange({ state: null, group: null, labels: [], finding: null, graded: null, trouble: false, q: null }, { typing: false }),
  }, "Clear");
  const field = (name, control) => h("p.list-field", h("label", { for: control.id }, name), control);
  const root = h("form.list-filters", { role: "search", "aria-label": "Narrow the list", onsubmit: (event) => event.preventDefault() },
    field("Search", q), field("State", state), field("Group", group), field("Label", label), field("Finding", finding), h("p.list-field", trouble, " ", clear));
  options(state, null, [["open", "open"], ["closed", "closed"]], "any");

  function update(filter, overview) {
    if (document.activeElement !== q) q.value = filter.q ?? "";
    state.value = filter.state ?? "";
    options(group, filter.group, (overview?.groups ?? []).map((each) => [each.group, `${each.group} (${each.rollouts})`]), "any");
    options(label, filter.labels[0] ?? null, (overview?.labels ?? []).flatMap((each) => each.values.map((value) => [`${each.name}:${value}`, `${each.name}: ${value}`])), "any");
    const codes = overview ? overview.findings.map((each) => [each.code, `${each.code} (${each.rollouts})`]) : [];
    options(finding, filter.finding, codes.sort(([a], [b]) => byTable(a, b)), "any");
    trouble.setAttribute("aria-pressed", String(filter.trouble));
    clear.disabled = isEmpty(filter);
  }

  return { root, update, search: q };
}

/* Offers choices, with what is chosen among them; an open list is left alone, and so is one that has not changed. */
function options(select, chosen, choices, none) {
  if (chosen !== null && !choices.some(([value]) => value === chosen)) choices = [[chosen, chosen], ...choices];
  const key = JSON.stringify(choices);
  if (select.dataset.key !== key && !(document.activeElement === select && select.options.length > 0)) {
    fill(select, [["", none], ...choices].map(([value, said]) => h("option", { value }, said)));
    select.dataset.key = key;
  }
  select.value = chosen ?? "";
}
