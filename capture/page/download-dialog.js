/* The dialog in which training sequences are taken along: any format, of one rollout, of some, of all that is shown.

   Files come by fetch and not by a link, since the key travels in a header. A rollout that can't be exported is a line
   that says why (as GET /sequences has it), so that none is absent without a word. */

import { ApiError, blob, curl } from "./api.js";
import { copy } from "./copy.js";
import { append, fill, h, plural } from "./dom.js";
import { commands, fileName, obstacle, paths } from "./download-plan.js";
import { FORMATS } from "./formats.js";
import { prose } from "./prose.js";
import { save } from "./save.js";

const ROLES = [["main", "main conversations"], ["main,summary,subagent,auxiliary", "every conversation"]];
let chosen = "native";

/* Opens it; `of` as in download-plan.js. */
export function open(of, ctx) {
  const stop = new AbortController();
  ctx.signal.addEventListener("abort", () => dialog.close(), { once: true, signal: stop.signal });
  const choices = Object.entries(FORMATS).map(([name, { help }]) =>
    h("label.download-format",
      h("input", { type: "radio", name: "format", value: name, checked: name === chosen }), h("span", h("strong", name), " ", h("span.quiet", help))));
  const roles = h("select", { id: "download-roles" }, ROLES.map(([value, said]) => h("option", { value }, said)));
  const opened = h("input", { type: "checkbox", id: "download-open" });
  const said = h("p.notice", { role: "status" });
  const take = h("button", { type: "submit" }, "Download");
  const wanted = () => ({ format: dialog.querySelector("input[name=format]:checked").value, roles: roles.value, open: opened.checked });
  const look = () => {
    chosen = wanted().format;
    const why = obstacle(of, wanted());
    const { needsReward, extra } = FORMATS[chosen];
    take.disabled = why !== null;
    fill(said, why !== null ? prose(why) : (needsReward ? `${chosen} has a number where others have “ungraded”: a rollout without a reward is refused.`
      : extra ? `The appliance needs the extra treering[${extra}] for it.` : `File: ${fileName(of, wanted())}`));
    said.classList.toggle("warn", why !== null);
  };
  const form = h("form", {
    onchange: look,
    onsubmit: async (event) => {
      event.preventDefault();
      take.disabled = true;
      try {
        const refused = await fetchAll(of, wanted(), stop.signal, (text) => fill(said, text));
        dialog.close();
        ctx.say(refused ? `${fileName(of, wanted())} is there; ${plural(refused, "rollout")} could not be exported, and ${refused === 1 ? "its line says" : "their lines say"} why.` : `${fileName(of, wanted())} is there.`);
      } catch (error) {
        if (stop.signal.aborted) return;
        take.disabled = false;
        said.classList.add("warn");
        fill(said, prose(error.message));
        if (error.hint) append(said, [" ", prose(error.hint)]);
      }
    },
  },
  h("fieldset.download-formats", h("legend", "Format"), choices),
  h("div.row", h("label", { for: "download-roles" }, "Of "), roles, h("span", opened, " ", h("label", { for: "download-open" }, "open rollouts too, as they stand"))),
  said,
  h("div.row", take,
    h("button", { type: "button", onclick: () => copy(commands(of, wanted(), curl), ctx, "The command is in the clipboard; it reads the key from $KEY.") }, "Copy as curl"),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  const dialog = h("dialog.panel.download", { "aria-labelledby": "download-head" }, h("h2", { id: "download-head" }, title(of)), form);
  dialog.addEventListener("close", () => { stop.abort(); dialog.remove(); });
  document.body.append(dialog);
  dialog.showModal();
  look();
}

function title(of) {
  if (of.rollout) return `Training sequences of ${of.rollout}`;
  if (of.ids) return `Training sequences of ${plural(of.ids.length, "rollout")}`;
  return of.query.group ? `Training sequences of group ${of.query.group}` : "Training sequences of all that is listed";
}

async function fetchAll(of, wanted, signal, said) {
  const asked = paths(of, wanted);
  const parts = [];
  let refused = 0;
  for (const [at, path] of asked.entries()) {
    said(asked.length === 1 ? "Asking…" : `${at + 1} of ${asked.length}…`);
    try {
      const part = await blob(path, { signal });
      parts.push(part);
      if (asked.length > 1) parts.push("\n");
    } catch (error) {
      if (!(error instanceof ApiError) || asked.length === 1 || error.status === 401 || error.status === 0) throw error;
      refused += 1;
      parts.push(`${JSON.stringify({ rollout: of.ids[at], refused: { code: error.code, message: error.message, hint: error.hint } })}\n`);
    }
  }
  if (refused === asked.length && asked.length > 1) throw new Error(`None of these ${refused} can be exported as ${wanted.format}; each alone says why.`);
  save(new Blob(parts), fileName(of, wanted));
  return refused;
}
