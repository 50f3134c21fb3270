/* What each conversation was for, and why that is held to be so. */

import { h, plural } from "./dom.js";
import { to } from "./router.js";
import { ROLE, plain } from "./words.js";

const SHOWN = 40;

export function conversations(graph, id) {
  if (!graph.conversations.length) return null;
  const link = (n) => h("a", { href: to("rollouts", id, "calls", n) }, `#${n}`);
  return h("section.panel", { "aria-labelledby": "roles-head" },
    h("h2", { id: "roles-head" }, "Conversations"),
    h("ul.conversations", graph.conversations.slice(0, SHOWN).map((each) => h("li",
      h("details", { dataset: { name: `conversation ${each.n}` } },
        h("summary", `${each.n}: `, h("strong", { class: `role-${each.role}` }, each.kind ? `${each.role}: ${each.kind}` : each.role), `, ${plural(each.calls.length, "call")}`, each.trainable ? "" : h("span.quiet", ", not trained by default")),
        h("p.quiet", ROLE[each.role] || ""),
        h("p", "Begins with ", link(each.root), each.parent_call === null ? "." : [", started by a tool call of ", link(each.parent_call), "."]),
        each.evidence.length ? h("ul", each.evidence.map((shown) => h("li", h("code", plain(shown.rule)), ` ${shown.detail} `, shown.calls.flatMap((n) => [link(n), " "])))) : null)))),
    graph.conversations.length > SHOWN ? h("p.quiet", `The first ${SHOWN} of ${graph.conversations.length}.`) : null);
}
