/* Places of a view that are shown anew as news comes: only where something changed, and what was unfolded stays so. */

import { fill } from "./dom.js";

const shown = new WeakMap();

/* Fills a place with what make() gives, unless `key` is the same as last time. */
export function put(place, key, make) {
  const text = JSON.stringify(key);
  if (shown.get(place) === text) return false;
  shown.set(place, text);
  const open = new Set([...place.querySelectorAll("details[open]")].map(nameOf));
  const had = place.contains(document.activeElement) ? wordsOf(document.activeElement) : null;
  fill(place, make());
  for (const each of place.querySelectorAll("details")) if (open.has(nameOf(each))) each.open = true;
  if (had !== null) [...place.querySelectorAll("a, button, summary")].find((each) => wordsOf(each) === had)?.focus({ preventScroll: true });
  return true;
}

/* Counts change while it stays the same details. */
const nameOf = (details) => (details.dataset.name || wordsOf(details.querySelector("summary")));
const wordsOf = (element) => element.textContent;
