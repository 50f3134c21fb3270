/* Forks and breaks in words: which field the agent changed, what it was, what it is. */

import { h, number, plural } from "./dom.js";
import { alike, parted } from "./difference.js";
import { prose } from "./prose.js";
import { to } from "./router.js";
import { FORK, plain } from "./words.js";

/* Items, and others like one of them, that are shown at once. */
const SHOWN = 8;
const SAME = 24;

/* told: of `GET …/forks`. */
export function forks(told, id) {
  const all = [
    ...alike(told.breaks).map(([first, ...others]) => breakItem(first, others, id)),
    ...alike(told.forks).map(([first, ...others]) => forkItem(first, others, id)),
  ];
  if (!all.length) return null;
  const list = h("ul.forks", all.slice(0, SHOWN));
  const rest = all.slice(SHOWN);
  const more = rest.length ? h("button", { type: "button", onclick: () => { list.append(...rest); more.remove(); } }, `Show ${number(rest.length)} more`) : null;
  return h("section.panel", { "aria-labelledby": "forks-head" },
    h("h2", { id: "forks-head" }, "Forks and breaks"),
    h("p.quiet", [told.breaks.length ? plural(told.breaks.length, "break") : null, told.forks.length ? plural(told.forks.length, "fork") : null].filter(Boolean).join(", "),
      ". A break is where a prompt no longer begins with its parent's tokens; a fork is where a call goes on in several ways."),
    list, more);
}

function breakItem(each, others, id) {
  const compaction = each.cause === "compaction" || each.kind === "compaction";
  return h("li.fork",
    h("p.finding-head", h("span.tag.warning", compaction ? "compaction" : "drift"), " ",
      callLink(id, each.parent), " → ", callLink(id, each.call), each.cause && !compaction ? [" ", h("code", plain(each.cause))] : null,
      each.at === null || each.at === undefined ? null : h("span.quiet", ` at token ${number(each.at)}`)),
    h("p", prose(each.words)),
    changes(each.changes),
    h("p", tokensLink(each, id, "Tokens side by side")),
    same(others, (other) => tokensLink(other, id, `#${other.call}`)));
}

const tokensLink = (each, id, said) => h("a", { href: to("rollouts", id, "tokens", each.call, each.at === null || each.at === undefined ? {} : { at: each.at }) }, said);

/* The others that say the same, a link each. */
function same(others, link) {
  if (!others.length) return null;
  const rest = others.slice(SAME);
  const where = h("p.calls-of", "The same in ", others.slice(0, SAME).flatMap((each) => [link(each), " "]));
  if (rest.length) {
    const more = h("button.small", { type: "button", onclick: () => more.replaceWith(...rest.flatMap((each) => [link(each), " "])) }, `${number(rest.length)} more`);
    where.append(more);
  }
  return where;
}

function forkItem(each, others, id) {
  return h("li.fork",
    h("p.finding-head", h("span.tag.info", each.kind), " ",
      each.at === null || each.at === undefined ? "one opening" : callLink(id, each.at), " → ", each.calls.slice(0, SAME).flatMap((n, i) => [i ? ", " : "", callLink(id, n)]),
      each.calls.length > SAME ? h("span.quiet", ` and ${number(each.calls.length - SAME)} more`) : null),
    h("p", prose(each.words || FORK[each.kind])),
    changes(each.changes),
    same(others, (other) => callLink(id, other.calls[0])));
}

const callLink = (id, n) => (n === null || n === undefined ? "" : h("a", { href: to("rollouts", id, "calls", n) }, `#${n}`));

/* A table of fields, with what differs in each marked by more than colour. */
export function changes(list) {
  if (!list || !list.length) return null;
  return h("div.wide", { role: "region", "aria-label": "What changed", tabindex: "0" }, h("table.changes",
    h("thead", h("tr", h("th", { scope: "col" }, "Field"), h("th", { scope: "col" }, "Was"), h("th", { scope: "col" }, "Is"))),
    h("tbody", list.map(({ field, was, is }) => {
      const [a, b] = marked(was, is);
      return h("tr", h("th", { scope: "row" }, h("code", field)), h("td.value", a), h("td.value", b));
    }))));
}

export function marked(was, is) {
  if (was === null || was === undefined || is === null || is === undefined) return [absent(was, "del"), absent(is, "ins")];
  const [a, b] = [text(was), text(is)];
  const { head, was: gone, is: come, tail } = parted(a, b);
  return [[h("span.same", head), gone ? h("del", gone) : null, h("span.same", tail)], [h("span.same", head), come ? h("ins", come) : null, h("span.same", tail)]];
}

/* White space alone, and nothing at all, is seen only when it is quoted. */
const text = (value) => (typeof value === "string" && value.trim() ? value : JSON.stringify(value));

function absent(value, tag) {
  return value === null || value === undefined ? h("span.quiet", "absent") : h(tag, text(value));
}

/* What the graph alone says, where the words can't be had. */
export function fromGraph(graph) {
  return {
    forks: graph.forks.map((fork) => ({ kind: fork.kind, calls: fork.children, at: fork.at, words: `${FORK[fork.kind] || fork.kind}.`, changes: [] })),
    breaks: graph.calls.filter((call) => call.link === "drift" || call.link === "compaction").map((call) => ({
      call: call.n, parent: call.parent, cause: call.drift?.cause ?? call.link, kind: call.link, at: call.drift?.at ?? null, changes: [],
      words: call.drift ? `${plural(call.drift.tokens, "token")} of the parent's ${call.drift.where === "sampled" ? "reply" : "prompt"} are no longer there.` : "The history was replaced by a summary.",
    })),
  };
}
