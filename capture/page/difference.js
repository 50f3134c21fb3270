/* Where two texts part, and which messages of a request are new. Pure. */

/* Splits two texts into what they share at both ends and what differs between: {head, was, is, tail}. Never inside a
   surrogate pair. */
export function parted(was, is) {
  const most = Math.min(was.length, is.length);
  let head = 0;
  while (head < most && was[head] === is[head]) head += 1;
  if (head && isHigh(was.charCodeAt(head - 1))) head -= 1;
  let tail = 0;
  while (tail < most - head && was[was.length - 1 - tail] === is[is.length - 1 - tail]) tail += 1;
  if (tail && isLow(was.charCodeAt(was.length - tail))) tail -= 1;
  return { head: was.slice(0, head), was: was.slice(head, was.length - tail), is: is.slice(head, is.length - tail), tail: was.slice(was.length - tail) };
}

const isHigh = (unit) => unit >= 0xd800 && unit < 0xdc00;
const isLow = (unit) => unit >= 0xdc00 && unit < 0xe000;

/* How many messages at the beginning two lists share, by their canonical text. */
export function shared(parent, child) {
  let n = 0;
  while (n < parent.length && n < child.length && canonical(parent[n]) === canonical(child[n])) n += 1;
  return n;
}

/* JSON with its keys in order: equal for equal values. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value && typeof value === "object") {
    return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
  }
  return JSON.stringify(value) ?? "null";
}

/* The names of two objects with what each says: [{name, asked, sent, same}], those that differ first. Names that
   neither says (null in both) are left out. */
export function sides(asked, sent) {
  const names = [...new Set([...Object.keys(asked || {}), ...Object.keys(sent || {})])];
  const rows = names.map((name) => ({ name, asked: asked?.[name] ?? null, sent: sent?.[name] ?? null }));
  return rows
    .filter((row) => row.asked !== null || row.sent !== null)
    .map((row) => ({ ...row, same: canonical(row.asked) === canonical(row.sent) }))
    .sort((a, b) => a.same - b.same);
}

/* Breaks and forks that say the same of other calls, together: [[first, …the others]], in the order of the first.
   Numbers apart, their words are equal, and so is what changed. */
export function alike(list) {
  const groups = new Map();
  for (const each of list) {
    const key = canonical([each.kind, each.cause ?? null, String(each.words ?? "").replace(/\d[\d,]*/g, "#"), (each.changes || []).map(({ field, was, is }) => [field.replace(/\d+/g, "#"), was, is])]);
    if (groups.has(key)) groups.get(key).push(each);
    else groups.set(key, [each]);
  }
  return [...groups.values()];
}
