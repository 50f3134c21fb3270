/* A reply's tokens as running text, each with its colours: to be read, where the grid is to be looked things up in. */

import { fill, h, number } from "./dom.js";
import { classOf } from "./windows.js";

/* More than these are for the grid; the route gives as many at once. */
const MOST = 2048;

/* A <details> that reads the tokens from `start` on when it is opened. read(start, end) → {ids, pieces, logprobs};
   onAt(position) when one is pointed at or chosen. */
export function replyText({ start, total, kindAt, read, onAt, go }) {
  const body = h("div.token-text", {
    onpointerover: (event) => { const at = whereIs(event); if (at !== null) onAt(at); },
    onclick: (event) => { const at = whereIs(event); if (at !== null) go(at); },
  });
  const details = h("details.reply-text", h("summary", "The reply as text"), body);
  details.addEventListener("toggle", async () => {
    if (!details.open || body.childElementCount) return;
    fill(body, h("p.quiet", "Reading…"));
    try {
      const end = Math.min(total, start + MOST);
      const { ids, pieces, logprobs } = await read(start, end);
      fill(body, ids.map((id, i) => token(id, pieces[i], logprobs[i], start + i, kindAt(start + i))),
        end < total ? h("p.quiet", `The first ${number(end - start)} tokens; the grid has all.`) : null);
    } catch (error) {
      fill(body, h("p.notice.bad", error.message));
    }
  });
  return details;
}

/* A line's end is shown, and ends the line. */
function token(id, piece, logprob, position, kind) {
  const shown = piece === null || piece === undefined ? `⟨${id}⟩` : piece.replaceAll("\r", "␍").replaceAll("\n", "⏎\n");
  return h("span.inline-token", { class: `${kind}${logprob === null || logprob === undefined ? "" : ` lp-${classOf(logprob)}`}`, dataset: { at: position } }, shown);
}

function whereIs(event) {
  const found = event.target.closest(".inline-token");
  return found ? Number(found.dataset.at) : null;
}
