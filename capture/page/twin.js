/* From a rollout to it and another side by side: its twin where its group has two, else one to be chosen. */

import { decimal, h, moment, plural } from "./dom.js";
import { findingsOf, MARK, TAG } from "./health.js";
import { to } from "./router.js";
import { stateWords } from "./states.js";

const MOST = 200;

/* Those that may stand beside a rollout: of its group, else of its task. */
export async function twins(rollout, ctx) {
  const asked = rollout.group !== null ? { group: rollout.group } : { q: rollout.task.replace(/…$/, "") };
  const { rollouts } = await ctx.api.get(`rollouts?${new URLSearchParams({ ...asked, order: "created", limit: String(MOST) })}`, { signal: ctx.signal });
  return rollouts.filter((row) => row.id !== rollout.id && (rollout.group !== null || row.task === rollout.task));
}

/* Goes to the pair, or asks which. */
export async function choose(rollout, ctx) {
  const found = await twins(rollout, ctx);
  const of = rollout.group !== null ? `group ${rollout.group}` : "this task";
  if (!found.length) ctx.say(`There is no other rollout of ${of}.`);
  else if (found.length === 1) location.hash = to("compare", rollout.id, found[0].id);
  else open(rollout, found, of, ctx);
}

function open(rollout, found, of, ctx) {
  const dialog = h("dialog.panel", { "aria-labelledby": "twin-head" },
    h("h2", { id: "twin-head" }, `Compare ${rollout.id} with`),
    h("p.quiet", `${plural(found.length, "other rollout")} of ${of}${found.length === MOST - 1 || found.length === MOST ? ", the first of them" : ""}`),
    h("ul.twins", found.map((row) => h("li", h("a", { href: to("compare", rollout.id, row.id) }, row.id), " ", stateWords(row),
      row.reward === null ? ", ungraded" : `, reward ${decimal(row.reward, 3).replace(/\.?0+$/, "")}`, ", ", moment(row.created_at), " ",
      findingsOf(row).slice(0, 1).filter((each) => each.level !== "info").map(({ code, level }) => h("span.tag", { class: TAG[level] }, h("span", { "aria-hidden": "true" }, `${MARK[level]} `), code))))),
    h("form", { method: "dialog" }, h("button", "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  ctx.signal.addEventListener("abort", () => dialog.close(), { once: true });
  document.body.append(dialog);
  dialog.showModal();
}
