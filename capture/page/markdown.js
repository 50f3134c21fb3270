/* The documents' own kind of Markdown as plain objects, as much of it as they use: headings, paragraphs, lists, tables,
   fenced code. Pure: manual.js makes elements of it. Nothing in it is ever HTML: comments are left out, all else is text. */

/* → [{kind: "heading", level, text, id} | {kind: "text", text} | {kind: "list", ordered, items: [text]} |
   {kind: "table", head: [text], rows: [[text]]} | {kind: "code", text}] */
export function blocks(source) {
  const out = [];
  const lines = source.replace(/<!--[\s\S]*?-->/g, "").split("\n");
  let paragraph = [];
  const end = () => {
    if (paragraph.length) out.push({ kind: "text", text: paragraph.join(" ") });
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i += 1) {
    const line = lines[i];
    const fence = /^(\s*)(```+)/.exec(line);
    const heading = /^(#{1,6}) +(.*)$/.exec(line);
    if (fence) {
      end();
      const held = [];
      for (i += 1; i < lines.length && !lines[i].startsWith(fence[1] + fence[2]); i += 1) held.push(lines[i].slice(fence[1].length));
      out.push({ kind: "code", text: held.join("\n") });
    } else if (/^ {4}\S/.test(line) && !paragraph.length && out.at(-1)?.kind !== "list") {
      const held = [];
      for (; i < lines.length && (/^ {4}/.test(lines[i]) || !lines[i].trim()); i += 1) held.push(lines[i].slice(4));
      i -= 1;
      out.push({ kind: "code", text: held.join("\n").trimEnd() });
    } else if (heading) {
      end();
      out.push({ kind: "heading", level: heading[1].length, text: heading[2], id: anchor(heading[2]) });
    } else if (/^\|/.test(line) && /^\|[\s:|-]+\|?\s*$/.test(lines[i + 1] ?? "")) {
      end();
      const rows = [];
      const head = cells(line);
      for (i += 2; i < lines.length && lines[i].startsWith("|"); i += 1) rows.push(cells(lines[i]));
      i -= 1;
      out.push({ kind: "table", head, rows });
    } else if (/^\s*([-*]|\d+\.) +/.test(line) && !paragraph.length) {
      i = list(lines, i, out);
    } else if (!line.trim()) end();
    else paragraph.push(line.trim());
  }
  end();
  return out;
}

function list(lines, start, out) {
  const items = [];
  const ordered = /^\s*\d/.test(lines[start]);
  let i = start;
  for (; i < lines.length && lines[i].trim(); i += 1) {
    const item = /^\s*(?:[-*]|\d+\.) +(.*)$/.exec(lines[i]);
    if (item) items.push(item[1]);
    else if (/^\s/.test(lines[i])) items[items.length - 1] += ` ${lines[i].trim()}`;
    else break;
  }
  out.push({ kind: "list", ordered, items });
  return i - 1;
}

/* A row's cells; a pipe that is escaped is one. */
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

/* A heading's anchor, as links write it. */
export const anchor = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, "").trim().replace(/\s/g, "-");

/* Within a line: [{kind: "text" | "code" | "strong" | "em", text} | {kind: "link", text, href} | {kind: "image", text}] */
export function spans(text) {
  const out = [];
  let at = 0;
  for (const found of text.matchAll(/(`+)(.+?)\1|(!?)\[((?:`[^`]*`|[^\]])*)\]\(([^)\s]*)\)|\*\*(.+?)\*\*|(?<![\w*])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])/g)) {
    if (found.index > at) out.push({ kind: "text", text: text.slice(at, found.index) });
    if (found[1]) out.push({ kind: "code", text: found[2] });
    else if (found[5] !== undefined) out.push(found[3] ? { kind: "image", text: found[4] } : { kind: "link", text: found[4], href: found[5] });
    else out.push(found[6] ? { kind: "strong", text: found[6] } : { kind: "em", text: found[7] });
    at = found.index + found[0].length;
  }
  if (at < text.length) out.push({ kind: "text", text: text.slice(at) });
  return out;
}

/* Where a link of a document leads: {document, at} for another that lies beside it, {at} within it, {url} outside, null
   for what is not served (a file of the clone). */
export function target(href) {
  if (/^https?:\/\//.test(href)) return { url: href };
  const found = /^(?:([a-z-]+)\.md)?(?:#([\w-]+))?$/.exec(href);
  return found && (found[1] || found[2]) ? { document: found[1] ?? null, at: found[2] ?? null } : null;
}
