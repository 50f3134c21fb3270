/* The documents as the page reads them: capture/page/markdown.js. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

import { CODES } from "../../capture/page/codes.js";
import { anchor, blocks, spans, target } from "../../capture/page/markdown.js";

const DOCS = new URL("../../docs/", import.meta.url);
const read = (name) => readFileSync(new URL(name, DOCS), "utf8");
const NAMES = readdirSync(DOCS).filter((name) => name.endsWith(".md"));

test("blocks", () => {
  const told = blocks("# One `two`\n\na\nb\n\n- x\n  y\n- z\n\n1. p\n\n| a | b |\n|---|---:|\n| `x \\| y` | |\n\n```sh now\ncurl <b>\n```\n<!-- left out -->\nend");
  assert.deepEqual(told, [
    { kind: "heading", level: 1, text: "One `two`", id: "one-two" },
    { kind: "text", text: "a b" },
    { kind: "list", ordered: false, items: ["x y", "z"] },
    { kind: "list", ordered: true, items: ["p"] },
    { kind: "table", head: ["a", "b"], rows: [["`x | y`", ""]] },
    { kind: "code", text: "curl <b>" },
    { kind: "text", text: "end" },
  ]);
  assert.deepEqual(blocks("is:\n\n    {\"a\": 1,\n     \"b\": 2}\n\nend").map((each) => [each.kind, each.text]), [["text", "is:"], ["code", '{"a": 1,\n "b": 2}'], ["text", "end"]]);
});

test("spans", () => {
  assert.deepEqual(spans("a `b*c*` **d** *e* [f `g`](h.md#i) ![j](k.png) 2 * 3 * 4 <b>"), [
    { kind: "text", text: "a " }, { kind: "code", text: "b*c*" }, { kind: "text", text: " " }, { kind: "strong", text: "d" }, { kind: "text", text: " " }, { kind: "em", text: "e" },
    { kind: "text", text: " " }, { kind: "link", text: "f `g`", href: "h.md#i" }, { kind: "text", text: " " }, { kind: "image", text: "j" }, { kind: "text", text: " 2 * 3 * 4 <b>" },
  ]);
});

test("links lead beside, within, outside, or nowhere", () => {
  assert.deepEqual(target("drift.md#causes"), { document: "drift", at: "causes" });
  assert.deepEqual(target("#causes"), { document: null, at: "causes" });
  assert.deepEqual(target("https://example.com/x"), { url: "https://example.com/x" });
  for (const href of ["../README.md", "agents/codex.md", "javascript:alert(1)", "data:text/html,x", "x.json", ""]) assert.equal(target(href), null, href);
});

test("of every document nothing is lost: its words are those of its blocks", () => {
  const bare = (text) => text.replace(/<!--[\s\S]*?-->/g, "").replace(/[^\p{L}\p{N}]/gu, "");
  for (const name of NAMES) {
    const text = read(name).replace(/^\s*```.*$/gm, "").replace(/^(\s*)\d{1,2}\. /gm, "$1").replace(/^\|[\s:|-]+\|\s*$/gm, "");
    const told = blocks(read(name)).map((each) => [each.text, ...(each.items ?? []), ...(each.head ?? []), ...(each.rows ?? []).flat()].join(" ")).join(" ");
    const [is, was] = [bare(told), bare(text)];
    let at = 0;
    while (at < was.length && is[at] === was[at]) at += 1;
    assert.equal(is.slice(at, at + 60), was.slice(at, at + 60), `${name}, from ${was.slice(Math.max(0, at - 40), at)}`);
  }
});

test("what the page's sentences name is there, its anchors too", () => {
  const named = Object.values(CODES).flatMap(({ means, todo }) => [...`${means} ${todo}`.matchAll(/docs\/([a-z-]+)\.md(?:#([\w-]+))?/g)]);
  assert.ok(named.length > 4);
  for (const [whole, name, at] of named) {
    assert.ok(NAMES.includes(`${name}.md`), whole);
    if (at) assert.ok(blocks(read(`${name}.md`)).some((each) => each.id === at), whole);
  }
  // And each finding, which its own name leads to.
  const ids = new Set(blocks(read("findings.md")).map((each) => each.id));
  for (const code of Object.keys(CODES)) assert.ok(ids.has(code), code);
  assert.equal(anchor("When it fails, and `why`"), "when-it-fails-and-why");
});
