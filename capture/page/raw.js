/* What passed on the wire, as JSON, on asking: written out when it is opened, and not before; numbers as they were. */

import { blob } from "./api.js";
import { copy } from "./copy.js";
import { fill, h, number } from "./dom.js";
import { indented, member } from "./json-text.js";
import { resend } from "./resend.js";
import { save, fileName } from "./save.js";

/* Characters that are put into the page at once; more than these are for an editor. */
const MOST = 300000;
const PARTS = [["request", "Request, as the agent sent it"], ["sent", "Sent, as the engine got it"], ["reply", "Reply, as the agent got it"], ["top_logprobs", "Alternatives to the sampled tokens"], ["usage", "Usage"]];

export function raw(call, id, n, ctx) {
  let reading = null;
  /* The answer's own text, asked for once: read into values, a number may be another. */
  const whole = () => {
    reading ??= blob(`rollouts/${encodeURIComponent(id)}/calls/${n}?ids=0`, { signal: ctx.signal }).then((answer) => answer.text());
    reading.catch(() => { reading = null; });
    return reading;
  };
  const again = h("button", { type: "button", onclick: async () => {
    try {
      await copy(resend(call, member(await whole(), "request")), ctx, "The command is in the clipboard; it reads address and key from the agent's environment.");
    } catch (error) {
      if (!ctx.signal.aborted) ctx.say(error.message);
    }
  } }, "Copy the request as curl");
  return h("section.panel", { "aria-labelledby": "raw-head" }, h("div.row.spread", h("h2", { id: "raw-head" }, "Raw JSON"), call.request ? again : null),
    PARTS.filter(([name]) => call[name] !== null && call[name] !== undefined).map(([name, said]) => {
      const body = h("div.raw-place");
      const details = h("details", h("summary", said), body);
      details.addEventListener("toggle", async () => {
        if (!details.open || body.childElementCount) return;
        fill(body, h("p.quiet", "Reading…"));
        try {
          fill(body, written(indented(member(await whole(), name) ?? "null"), said, fileName(id, `call${n}`, name, "json"), ctx));
        } catch (error) {
          if (!ctx.signal.aborted) fill(body, h("p.notice.bad", error.message));
        }
      });
      return details;
    }));
}

const written = (text, said, name, ctx) => [
  h("div.row",
    h("button", { type: "button", onclick: () => copy(text, ctx) }, "Copy"),
    h("button", { type: "button", onclick: () => save(new Blob([text], { type: "application/json" }), name) }, "Download"),
    h("span.quiet", `${number(text.length)} characters`)),
  h("pre.raw", { tabindex: "0", role: "region", "aria-label": said }, text.length > MOST ? `${text.slice(0, MOST)}\n…` : text),
];
