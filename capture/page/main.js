/* The page: takes the key, shows the view that the address names, and says what goes wrong.

   A view is a module with `show(root, params, ctx)`. ctx: `signal` aborts when the view is left; `query` is the
   address's; `say(text)` shows a short message; `title(text, ...crumbs)` names the view, crumbs are [text, address];
   `live(text)` is the state of the live line; `keys({j: fn, …})` are the view's own keys. */

import * as api from "./api.js";
import { fill, h } from "./dom.js";
import { prose } from "./prose.js";
import { place } from "./router.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const live = document.getElementById("live");
const toast = document.getElementById("toast");
const MODULES = {
  list: () => import("./list.js"),
  group: () => import("./group.js"),
  compare: () => import("./compare.js"),
  rollout: () => import("./rollout.js"),
  call: () => import("./call.js"),
  tokens: () => import("./tokens.js"),
  manual: () => import("./manual.js"),
};
const KEYS = [["?", "this list"], ["g", "to the list of rollouts"], ["u", "one up"]];

let leaving = new AbortController();
let keys = {};
let saying = 0;
let entered = false;

function say(text) {
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(saying);
  saying = setTimeout(() => toast.classList.remove("shown"), 4000);
}

function title(text, ...trail) {
  document.title = text ? `${text} – Treering` : "Treering";
  crumbs.title = trail.map(([name]) => name).join(" › ");
  fill(crumbs, trail.map(([name, where]) => (where ? h("a", { href: where }, name) : h("span", { "aria-current": "page" }, name))));
}

function fault(error) {
  if (error.name === "AbortError") return;
  if (error.status === 401 || error.code === "too_many_wrong_keys") {
    askKey(error);
    return;
  }
  fill(main, h("div.notice.bad", { role: "alert" },
    h("h1", prose(error.message || String(error))),
    error.hint ? h("p", prose(error.hint)) : null,
    h("p", h("button", { onclick: show }, "Try again"), " ", h("a", { href: "#/" }, "All rollouts"))));
}

function askKey(error) {
  title("Key");
  const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true, "aria-describedby": "key-hint" });
  const form = h("form.panel", {
    onsubmit: (event) => {
      event.preventDefault();
      api.key.set(field.value.trim());
      show();
    },
  },
  h("h1", "The admin key"),
  api.key.get() ? h("p.notice.bad", { role: "alert" }, prose(error.message)) : null,
  h("p", h("label", { for: "key" }, "Key "), field, " ", h("button", { type: "submit" }, "Go on")),
  h("p.quiet", { id: "key-hint" }, "It is in the file beside the store (treering.db.key), or what --admin-key-file names. ",
    "The address that `treering serve` prints brings it along. It stays in this tab."));
  fill(main, form);
  field.focus();
}

async function show() {
  const found = place(location.hash);
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  keys = {};
  live.textContent = "";
  main.setAttribute("aria-busy", "true");
  try {
    if (!found) {
      title("Nothing here");
      fill(main, h("div.notice", { role: "alert" }, h("p", "There is no such place in this page."), h("p", h("a", { href: "#/" }, "All rollouts"))));
      return;
    }
    const view = await MODULES[found.view]();
    if (signal.aborted) return;
    fill(main);
    const context = { signal, api, query: found.query, say, title, live: (text) => { live.textContent = text; }, keys: (more) => { keys = more; }, fault };
    await view.show(main, found.params, context);
  } catch (error) {
    if (!signal.aborted) fault(error);
  } finally {
    if (!signal.aborted) {
      main.setAttribute("aria-busy", "false");
      // What had the focus went with the view that was left: Tab goes on from the new one, and a reader reads it.
      if (entered && document.activeElement === document.body) main.focus({ preventScroll: true });
      entered = true;
      // What `bin/bench page` measures: behind the frame that shows it.
      requestAnimationFrame(() => setTimeout(() => performance.mark("useful")));
    }
  }
}

function takeKey() {
  const found = /^#key=(.+)$/.exec(location.hash);
  if (!found) return;
  let given = found[1];
  try {
    given = decodeURIComponent(given);
  } catch {
    /* A percent sign of the key's own. */
  }
  api.key.set(given);
  history.replaceState(null, "", "#/");
}

function help() {
  const own = Object.entries(keys).filter(([, fn]) => fn.title).map(([name, fn]) => [name, fn.title]);
  const dialog = h("dialog.panel", { "aria-labelledby": "keys-head" },
    h("h2", { id: "keys-head" }, "Keys"),
    h("table", h("tbody", [...KEYS, ...own].map(([name, what]) => h("tr", h("th", { scope: "row" }, h("kbd", name)), h("td", what))))),
    h("form", { method: "dialog" }, h("button", "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function up() {
  const parts = (location.hash.split("?")[0] || "#/").split("/");
  if (parts.length <= 2) return;
  location.hash = parts[1] === "rollouts" && parts.length > 3 ? parts.slice(0, 3).join("/") : "#/";
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const run = { "?": help, g: () => { location.hash = "#/"; }, u: up, ...keys }[event.key];
  if (!run) return;
  event.preventDefault();
  run(event);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => { takeKey(); show(); });
takeKey();
show();
