/* The strip above the list: what is wrong with how many rollouts, each a button that filters.

   Its buttons keep their places while numbers change: the worst come first when the strip is first filled, one that has
   come to nothing says 0, a new one comes last. So nobody presses what has just moved under the pointer. */

import { fill, h, number, short } from "./dom.js";
import { CODES } from "./codes.js";
import { flat } from "./flat.js";
import { narrowed } from "./list-query.js";
import { bustle, findingsIn, levelOf, MARK, rewardWords, SIGNED, signs, unread, verdict } from "./health.js";

/* onFilter(patch): a button was pressed; the patch sets what it stands for, or takes it back. */
export function strip(onFilter) {
  const line = h("p.health-verdict", { role: "status" }, "Looking…");
  const going = h("p.health-going.quiet");
  const signList = h("ul.health-signs", { "aria-label": "Signs" });
  const codeList = h("ul.health-codes", { "aria-label": "Findings" });
  const more = h("button.health-more", {
    type: "button", "aria-expanded": "false",
    onclick: () => more.setAttribute("aria-expanded", String(codeList.classList.toggle("all"))),
  }, "All findings");
  const root = h("section.panel.health", { "aria-label": "Health" }, h("div.health-head", line, going, more), signList, codeList);
  const made = new Map();
  let filter = null;

  const pressed = (patch) => Object.entries(patch).every(([name, value]) => filter?.[name] === value);
  const toggle = (patch) => onFilter(pressed(patch) ? Object.fromEntries(Object.keys(patch).map((name) => [name, name === "trouble" ? false : null])) : patch);

  function entry(key, list, { label, title, patch }) {
    let item = made.get(key);
    if (!item) {
      const n = h("span.health-n");
      const words = [h("span.health-mark", { "aria-hidden": "true" }), n, " ", h("span", label)];
      const control = patch ? h("button.health-button", { type: "button", title, onclick: () => toggle(patch) }, words) : h("span.health-button", { title }, words);
      item = { n, control, patch, element: h("li", control) };
      made.set(key, item);
      list.append(item.element);
    }
    return item;
  }

  function show(item, n, level) {
    item.n.textContent = number(n);
    const shown = n > 0 ? level : "good";
    item.control.dataset.level = shown;
    item.control.querySelector(".health-mark").textContent = n > 0 ? (MARK[level] ?? "·") : "";
    if (item.patch) item.control.setAttribute("aria-pressed", String(pressed(item.patch)));
  }

  function update(overview, now) {
    filter = now;
    const said = verdict(overview, { filtered: Boolean(narrowed(now)) });
    line.textContent = said.text;
    line.dataset.level = said.level;
    const reward = rewardWords(overview.reward);
    fill(going, unread(overview) ? h("strong", unread(overview), " · ") : null, h(reward.level === "warn" ? "strong.health-flat" : "span", reward.text), " · ", bustle(overview, short));
    going.title = going.textContent;
    for (const sign of signs(overview)) show(entry(`sign ${sign.key}`, signList, sign), sign.n, sign.level);
    const found = findingsIn(overview).filter((each) => !SIGNED.has(each.code));
    for (const each of found) {
      const title = CODES[each.code] ? flat(`${CODES[each.code].means} ${CODES[each.code].todo}`) : each.code;
      show(entry(`code ${each.code}`, codeList, { label: each.code, title, patch: { finding: each.code } }), each.rollouts, each.level);
    }
    const still = new Set(found.map((each) => `code ${each.code}`));
    for (const [key, item] of made) if (key.startsWith("code ") && !still.has(key)) show(item, 0, levelOf(key.slice(5)));
    // Kept in its place while it is of no use, so that the line is as long with it as without.
    more.classList.toggle("there", codeList.classList.contains("all") || codeList.scrollHeight > codeList.clientHeight + 2);
  }

  return { root, update };
}
