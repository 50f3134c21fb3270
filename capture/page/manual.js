/* A document of docs/, so that what a sentence refers to is one step away, without a network and in this very version. */

import { blob } from "./api.js";
import { fill, h } from "./dom.js";
import { blocks, spans, target } from "./markdown.js";
import { prose } from "./prose.js";
import { to } from "./router.js";
import { wide } from "./wide.js";

export async function show(root, { name }, ctx) {
  ctx.title(`docs/${name}.md`, ["Rollouts", "#/"], [`docs/${name}.md`]);
  let text;
  try {
    text = await (await blob(`page/${encodeURIComponent(name)}.md`, { signal: ctx.signal })).text();
  } catch (error) {
    if (error.status !== 404) throw error;
    fill(root, h("div.notice", h("h1", `docs/${name}.md`), h("p", "This appliance was installed without its documents: this one is in the folder docs/ of Treering's source, in the version that ", h("code", "treering version"), " says."),
      h("p", h("a", { href: to("docs", "findings") }, "What each finding means"), " is here.")));
    return;
  }
  if (ctx.signal.aborted) return;
  const made = blocks(text);
  const begins = new Map();
  fill(root, h("article.panel.manual", made.map((each) => block(each, name, begins))));
  const wanted = begins.get(ctx.query.get("at"));
  if (wanted) {
    wanted.tabIndex = -1;
    wanted.focus({ preventScroll: true });
    wanted.scrollIntoView({ block: "start" });
  } else scrollTo(0, 0);
}

function block(each, name, begins) {
  const line = (text) => words(text, name);
  switch (each.kind) {
    case "heading": {
      const made = h(`h${each.level}`, line(each.text));
      if (!begins.has(each.id)) begins.set(each.id, made);
      return made;
    }
    case "list": return h(each.ordered ? "ol" : "ul", each.items.map((item) => h("li", line(item))));
    case "table": return wide("Table", h("table", h("thead", h("tr", each.head.map((cell) => h("th", { scope: "col" }, line(cell))))), h("tbody", each.rows.map((row) => h("tr", row.map((cell) => h("td", line(cell))))))));
    case "code": return h("pre", { tabindex: "0" }, each.text);
    default: return h("p", line(each.text));
  }
}

function words(text, name) {
  return spans(text).map((each) => {
    switch (each.kind) {
      case "code": return h("code", each.text);
      case "strong": return h("strong", words(each.text, name));
      case "em": return h("em", words(each.text, name));
      case "image": return h("em", each.text);
      case "link": return link(each, name);
      default: return prose(each.text);
    }
  });
}

function link({ text, href }, name) {
  const where = target(href);
  const shown = words(text, name);
  if (!where) return [shown, h("span.quiet", ` (${href})`)];
  if (where.url) return h("a", { href: where.url, rel: "noreferrer" }, shown);
  return h("a", { href: to("docs", where.document ?? name, { at: where.at }) }, shown);
}
