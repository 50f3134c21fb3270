/* The button that opens the dialog of downloads. The dialog itself is read when it is first wanted: no view waits for it. */

import { h } from "./dom.js";

/* `of` says of what: {rollout: "r1"}, {ids: [...]}, {query: {...}, count} (download-plan.js), or is a function that does,
   given the most that are downloaded at once. */
export function downloads(of, ctx, label = "Download") {
  const open = async () => {
    const [dialog, plan] = await Promise.all([import("./download-dialog.js"), import("./download-plan.js")]);
    dialog.open(typeof of === "function" ? of(plan.MOST_AT_ONCE) : of, ctx);
  };
  return h("button", { type: "button", "aria-haspopup": "dialog", onclick: () => open().catch(ctx.fault) }, label);
}
