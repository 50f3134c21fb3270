/* Building what is shown: elements, never markup.

   Everything that an agent or a model wrote is text here and stays text. There is no innerHTML in the page, and the
   policy (`require-trusted-types-for 'script'`) would refuse it. */

const SVG = "http://www.w3.org/2000/svg";

/* h("a.button", {href, onclick, dataset: {…}, "aria-label": "…"}, child, [children], "text", null) → an element.
   Properties that are functions are listeners (onclick), `class` adds to the tag's classes, null and false leave an
   attribute out, true sets it empty. */
export function h(tag, props, ...children) {
  return build((name) => document.createElement(name), tag, props, children);
}

/* The same for SVG. */
export function svg(tag, props, ...children) {
  return build((name) => document.createElementNS(SVG, name), tag, props, children);
}

function build(make, tag, props, children) {
  if (props === null || typeof props !== "object" || props instanceof Node || Array.isArray(props)) {
    if (props !== undefined && props !== null) children = [props, ...children];
    props = {};
  }
  const [name, ...classes] = tag.split(".");
  const element = make(name || "div");
  if (classes.length) element.classList.add(...classes);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.replace(/^on/, ""), value);
    else if (key === "class") element.classList.add(...String(value).split(/\s+/).filter(Boolean));
    else if (key === "dataset") Object.assign(element.dataset, value);
    else if (key === "style") for (const [n, v] of Object.entries(value)) element.style.setProperty(n, v);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(parent, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : plainly(String(child)));
  }
}

/* Marks that turn the reading direction of what follows: with them a text is read as another (CVE-2021-42574). */
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

/* A text with such marks shown as what they are: "⟨U+202E⟩". */
export const plainly = (text) => text.replace(TURNING, (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase()}⟩`);

/* Replaces all that an element holds. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

const WHOLE = new Intl.NumberFormat("en-GB");

export const number = (n) => (n === null || n === undefined ? "–" : WHOLE.format(n));

/* 1,234 → "1,234"; 12,345 → "12.3k"; 1,234,567 → "1.23M". */
export function short(n) {
  if (n === null || n === undefined) return "–";
  if (Math.abs(n) < 10000) return WHOLE.format(n);
  if (Math.abs(n) < 1e6) return `${(n / 1e3).toPrecision(3)}k`;
  return `${(n / 1e6).toPrecision(3)}M`;
}

export const decimal = (x, digits = 3) => (x === null || x === undefined ? "–" : Number(x).toFixed(digits));

/* Milliseconds, as people say them. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
  return `${Math.floor(ms / 3600000)} h ${Math.round((ms % 3600000) / 60000)} min`;
}

/* A time of day as a <time>, with the whole of it as a title. */
export function moment(iso, now = Date.now()) {
  if (!iso) return h("span.quiet", "–");
  const ago = now - Date.parse(iso);
  const said = ago < 0 || ago > 86400000 ? iso.replace("T", " ").slice(0, 16) : `${ago < 60000 ? `${Math.round(ago / 1000)} s` : span(ago).replace(/ \d+ s$/, "")} ago`;
  return h("time", { datetime: iso, title: iso }, said);
}

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
