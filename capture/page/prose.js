/* Our own sentences as elements: `code` stands between backticks, and a document's name (docs/pinned.md) is a link to it. */

import { h } from "./dom.js";
import { to } from "./router.js";

const DOCUMENT = /docs\/([a-z-]+)\.md(?:#([\w-]+))?/g;

export const prose = (text) => String(text ?? "").split("`").flatMap((part, i, all) => (i % 2 && i < all.length - 1 ? h("code", part) : linked(i % 2 ? `\`${part}` : part)));

function linked(text) {
  const out = [];
  let at = 0;
  for (const found of text.matchAll(DOCUMENT)) {
    out.push(text.slice(at, found.index), h("a", { href: to("docs", found[1], { at: found[2] }) }, found[0]));
    at = found.index + found[0].length;
  }
  return [...out, text.slice(at)];
}
