/* What passed on the wire, as JSON, on asking: written out when it is opened, and not before. */

import { copy } from "./copy.js";
import { fill, h, number } from "./dom.js";
import { save, fileName } from "./save.js";

/* Characters that are put into the page at once; more than these are for an editor. */
const MOST = 300000;
const PARTS = [["request", "Request, as the agent sent it"], ["sent", "Sent, as the engine got it"], ["reply", "Reply, as the agent got it"], ["top_logprobs", "Alternatives to the sampled tokens"], ["usage", "Usage"]];

export function raw(call, id, n, ctx) {
  return h("section.panel", { "aria-labelledby": "raw-head" }, h("h2", { id: "raw-head" }, "Raw JSON"),
    PARTS.filter(([name]) => call[name] !== null && call[name] !== undefined).map(([name, said]) => {
      const body = h("div");
      const details = h("details", h("summary", said), body);
      details.addEventListener("toggle", () => {
        if (!details.open || body.childElementCount) return;
        const text = JSON.stringify(call[name], null, 2);
        fill(body,
          h("div.row",
            h("button", { type: "button", onclick: () => copy(text, ctx) }, "Copy"),
            h("button", { type: "button", onclick: () => save(new Blob([text], { type: "application/json" }), fileName(id, `call${n}`, name, "json")) }, "Download"),
            h("span.quiet", `${number(text.length)} characters`)),
          h("pre.raw", { tabindex: "0", role: "region", "aria-label": said }, text.length > MOST ? `${text.slice(0, MOST)}\n…` : text));
      });
      return details;
    }));
}
