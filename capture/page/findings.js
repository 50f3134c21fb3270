/* What is wrong with a rollout, in words, each with what to do and the calls that show it: before all else. */

import { copy } from "./copy.js";
import { h, number, plural } from "./dom.js";
import { prose } from "./prose.js";
import { remedy, rule, ruling } from "./ruling.js";
import { to } from "./router.js";
import { amount } from "./states.js";
import { LEVEL, LEVELS } from "./words.js";

const SHOWN = 12;

/* Notes (level info) are folded: they are no fault. `scrolls`: its height is held, so that it takes the focus to scroll. */
export function findings(found, rollout, ctx, { scrolls = false } = {}) {
  const by = (level) => found.filter((each) => each.level === level);
  const faults = [...by("error"), ...by("warn")];
  const notes = by("info");
  return h("section.panel", { "aria-labelledby": "findings-head", tabindex: scrolls ? "0" : null },
    h("h2", { id: "findings-head" }, "Findings"),
    faults.length
      ? h("ul.findings", faults.map((each) => one(each, rollout, ctx)))
      : h("p", found.length ? "Nothing that stops you from training on it." : "None: nothing to say of it."),
    notes.length ? h("details.notes", { dataset: { name: "notes" } }, h("summary", plural(notes.length, "note"), ": ", h("span.note-codes", notes.map((each) => each.code).join(", "))),
      h("ul.findings", notes.map((each) => one(each, rollout, ctx)))) : null);
}

/* "1 error, 2 warnings, 3 notes" */
export function counted(found) {
  return LEVELS
    .map((level) => [found.filter((each) => each.level === level).length, LEVEL[level][1]])
    .filter(([n]) => n)
    .map(([n, word]) => plural(n, word))
    .join(", ");
}

function one(finding, rollout, ctx) {
  const { id } = rollout;
  const [shape, word] = LEVEL[finding.level] || ["info", finding.level];
  const data = Object.entries({ ...finding.data, ...beside(finding, rollout) }).filter(([, value]) => value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length));
  return h("li.finding",
    h("p.finding-head", h("span.tag", { class: shape }, word), " ", h("a.code-link", { href: to("docs", "findings", { at: finding.code }), title: "What this finding is" }, h("code", finding.code)), " ", h("span.finding-says", prose(finding.message))),
    finding.means ? h("p.quiet", prose(finding.means)) : null,
    finding.hint ? h("p", h("strong", "What to do: "), prose(finding.hint)) : null,
    remedied(finding, id, ctx),
    data.length || finding.calls.length ? h("div.row.finding-foot", finding.calls.length ? callLinks(finding.calls, id) : null, data.length ? h("dl.pairs", data.map(([name, value]) => h("div", h("dt", name.replaceAll("_", " ")), h("dd", said(value, name, finding.data))))) : null) : null);
}

/* What the rollout's own record adds to a finding's data. */
function beside(finding, rollout) {
  if (finding.code === "unknown_secret_calls") return { between: `${clock(rollout.created_at)} and ${clock(rollout.closed_at)} (UTC)`, "from": "not recorded: a key that opens nothing belongs to no rollout" };
  return {};
}

const clock = (iso) => (iso ? iso.replace("T", " ").slice(0, 19) : "now");

/* The command that a remedy speaks of, filled in. */
function remedied(finding, id, ctx) {
  const found = remedy(finding);
  return found && h("p.rule", h("code", ruling(...found)), " ", h("button.small", { type: "button", onclick: () => copy(rule(id, ...found), ctx, "The command is in the clipboard; it reads the key from $KEY.") }, "Copy as curl"));
}

function callLinks(calls, id) {
  const link = (n) => h("a", { href: to("rollouts", id, "calls", n) }, `#${n}`);
  const rest = calls.slice(SHOWN);
  const where = h("p.calls-of", "Calls ", calls.slice(0, SHOWN).flatMap((n) => [link(n), " "]));
  if (rest.length) {
    const more = h("button.small", { type: "button", onclick: () => more.replaceWith(...rest.flatMap((n) => [link(n), " "])) }, `${number(rest.length)} more`);
    where.append(more);
  }
  return where;
}

function said(value, name, data) {
  if (name === "value" && data?.limit) return amount(data.limit, value);
  if (Array.isArray(value)) return value.length && typeof value[0] !== "object" ? value.join(", ") : JSON.stringify(value);
  if (value && typeof value === "object") return Object.entries(value).map(([name, each]) => `${name.replaceAll("_", " ")}: ${typeof each === "object" ? JSON.stringify(each) : each}`).join("; ");
  return typeof value === "number" ? number(value) : String(value);
}
