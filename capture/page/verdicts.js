/* What each conversation was for, and why that is held to be so. */

import { copy } from "./copy.js";
import { h, plural } from "./dom.js";
import { to } from "./router.js";
import { rule, ruling } from "./ruling.js";
import { ROLE, isRuled, plain } from "./words.js";

const SHOWN = 40;

export function conversations(graph, id, ctx) {
  if (!graph.conversations.length) return null;
  const link = (n) => h("a", { href: to("rollouts", id, "calls", n) }, `#${n}`);
  return h("section.panel", { "aria-labelledby": "roles-head" },
    h("h2", { id: "roles-head" }, "Conversations"),
    h("ul.conversations", graph.conversations.slice(0, SHOWN).map((each) => h("li",
      h("details", { dataset: { name: `conversation ${each.n}` } },
        h("summary", `${each.n}: `, h("strong", { class: `role-${each.role}` }, each.kind ? `${each.role}: ${each.kind}` : each.role), `, ${plural(each.calls.length, "call")}`, each.trainable ? "" : h("span.quiet", ", not trained by default"), isRuled(each) ? [" ", h("span.tag.warning", "ruled")] : null),
        h("p.quiet", ROLE[each.role] || ""),
        h("p", "Begins with ", link(each.root), each.parent_call === null ? "." : [", started by a tool call of ", link(each.parent_call), "."]),
        isRuled(each) ? h("p", "Somebody ruled what it was for (", h("code", "PUT …/roles"), "); who, and when, is not kept. What follows is what it did, and what was ruled.") : null,
        each.evidence.length ? h("ul", each.evidence.map((shown) => h("li", h("code", plain(shown.rule)), ` ${shown.detail} `, shown.calls.flatMap((n) => [link(n), " "])))) : null,
        otherwise(each, id, ctx))))),
    graph.conversations.length > SHOWN ? h("p.quiet", `The first ${SHOWN} of ${graph.conversations.length}.`) : null);
}

/* How to rule something else, as a command: its body is shown as it is chosen. */
function otherwise(each, id, ctx) {
  const choice = h("select", { "aria-label": `Role of conversation ${each.n}`, onchange: () => { body.textContent = ruling(each.n, choice.value); } },
    VERDICTS.filter((word) => word !== (each.kind ?? each.role)).map((word) => h("option", { value: word }, word)));
  const body = h("code", ruling(each.n, choice.value));
  return h("p.rule", "Rule that it is ", choice, " ", h("button", { type: "button", onclick: () => copy(rule(id, each.n, choice.value), ctx, "The command is in the clipboard; it reads the key from $KEY.") }, "Copy as curl"),
    h("span.quiet", " sends "), body, h("span.quiet", "; rows follow at once."));
}

const VERDICTS = ["main", "subagent", "auxiliary", "title", "summary", "probe", "other"];
