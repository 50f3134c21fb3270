/* Messages as they are shown: who speaks, what of it, long texts folded. Texts stay texts. */

import { append, fill, h, number, plural } from "./dom.js";
import { pretty } from "./messages.js";

/* Characters and lines of a text that are shown before it is folded. */
const FOLD = 1600;
const FOLD_LINES = 24;
/* Of a text that was unfolded, at once: more are shown on asking again. */
const MOST = 200000;
const KIND = { text: null, thinking: "thinking", call: "calls", result: "result", media: "media", ids: "token ids", other: "other" };

export function messageItem(message, { n = null, isNew = false } = {}) {
  return h("li.message", { class: `speaks-${message.role}` },
    h("p.message-head", h("strong", message.role), n === null ? null : h("span.quiet", ` ${n}`), isNew ? [" ", h("span.tag.info", "new")] : null),
    message.parts.length ? message.parts.map(part) : h("p.quiet", "(empty)"));
}

function part(given) {
  const label = given.kind in KIND ? KIND[given.kind] : given.kind;
  const shown = given.kind === "call" ? pretty(given.text) : given.text;
  return h("div.part", { class: `part-is-${given.kind}` },
    label || given.name ? h("p.part-head", label, given.name ? [" ", h("code", given.name)] : null, given.failed ? [" ", h("span.tag.error", "failed")] : null, given.id ? h("span.quiet.mono", ` ${given.id}`) : null) : null,
    shown ? foldable(shown) : given.kind === "call" || given.kind === "media" ? null : h("p.quiet", "(empty)"));
}

/* A text, its end folded away where it is long. */
export function foldable(text, { fold = FOLD } = {}) {
  const cut = cutAt(text, fold);
  const pre = h("pre.said", cut < text.length ? text.slice(0, cut) : text);
  if (cut >= text.length) return pre;
  let shown = cut;
  const more = h("button.small", { type: "button", "aria-expanded": "false" }, `… ${number(text.length - cut)} more characters`);
  more.addEventListener("click", () => {
    if (shown >= text.length) {
      shown = cut;
      fill(pre, text.slice(0, cut));
      more.setAttribute("aria-expanded", "false");
      more.textContent = `… ${number(text.length - cut)} more characters`;
      return;
    }
    const next = Math.min(text.length, shown + MOST);
    append(pre, text.slice(shown, next));
    shown = next;
    more.setAttribute("aria-expanded", "true");
    more.textContent = shown < text.length ? `… ${number(text.length - shown)} more characters` : "Fold";
  });
  return h("div", pre, more);
}

function cutAt(text, fold) {
  if (text.length > fold * 1.25) return fold;
  let at = -1;
  for (let line = 0; line < FOLD_LINES * 1.25; line += 1) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) return text.length;
  }
  return nth(text, FOLD_LINES);
}

function nth(text, lines) {
  let at = -1;
  for (let line = 0; line < lines; line += 1) at = text.indexOf("\n", at + 1);
  return at;
}

/* So many messages that stood in the parent's request are shown; more are folded into one line. */
const OLD = 8;

/* A list of messages of which the first `known` stood in the parent's request already. */
export function conversation(messages, { known = 0, parent = null } = {}) {
  const old = known > OLD ? messages.slice(0, known) : [];
  const list = h("ol.messages", messages.slice(old.length).map((each, i) => messageItem(each, { n: old.length + i, isNew: parent !== null && old.length + i >= known })));
  if (!old.length) return list;
  const holder = h("ol.messages");
  const details = h("details.old-messages", h("summary", `${plural(old.length, "message")} that call #${parent} had too`), holder);
  details.addEventListener("toggle", () => {
    if (details.open && !holder.childElementCount) fill(holder, old.map((each, i) => messageItem(each, { n: i })));
  });
  return [details, list];
}
