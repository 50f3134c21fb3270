/* Putting a text where the reader can take it along: the clipboard, or a dialog where there is none.

   A browser has a clipboard for pages of https and of the loopback alone. */

import { curl } from "./api.js";
import { h } from "./dom.js";

export async function copy(text, ctx, what = "Copied.") {
  try {
    await navigator.clipboard.writeText(text);
    ctx.say(what);
  } catch {
    showText(text);
  }
}

/* A button that copies the command which asks for the same as the view: copyCurl("rollouts/r1", ctx). `path` may be a
   function, for a view whose question changes, and several paths are as many commands, a line each. */
export function copyCurl(path, ctx, label = "Copy as curl") {
  const command = () => [typeof path === "function" ? path() : path].flat().map(curl).join("\n");
  return h("button", {
    type: "button",
    title: "A command that asks for what is shown here; it reads the key from $KEY",
    onclick: () => copy(command(), ctx, "The command is in the clipboard; it reads the key from $KEY."),
  }, label);
}

function showText(text) {
  const dialog = h("dialog.panel", { "aria-labelledby": "copy-head" },
    h("h2", { id: "copy-head" }, "Take it from here"),
    h("p.quiet", "This browser gives pages of this address no clipboard."),
    h("pre", { tabindex: "0" }, text),
    h("form", { method: "dialog" }, h("button", "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  getSelection().selectAllChildren(dialog.querySelector("pre"));
}
