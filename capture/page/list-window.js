/* Which rows of a long list are in the document: arithmetic, no DOM.

   Rows have one height, so that row n lies at n × height whether it is there or not, and nothing ever shifts. A fixed
   number of elements is used again and again: row n is shown by element n modulo their number. */

/* Rows kept above and below what is seen, so that a quick wheel meets no gap. */
export const OVER = 6;

/* Rows [first, last) to have in the document. */
export function windowOf({ top, height, rowHeight, count, over = OVER }) {
  const seen = Math.max(0, Math.floor(top / rowHeight));
  const first = Math.max(0, Math.min(seen, count) - over);
  const last = Math.min(count, Math.ceil((Math.max(0, top) + height) / rowHeight) + over);
  return { first, last: Math.max(first, last) };
}

/* Elements that are enough for any window of that height, however it falls. */
export const poolSize = ({ height, rowHeight, over = OVER }) => Math.ceil(height / rowHeight) + 1 + 2 * over;

/* Where to scroll so that a row is seen whole; as it is where it is seen already. */
export function reveal({ index, top, height, rowHeight }) {
  const start = index * rowHeight;
  if (start < top) return start;
  if (start + rowHeight > top + height) return Math.max(0, start + rowHeight - height);
  return top;
}

/* The row that a key leads to. null: the key isn't one of a list's. */
export function step(key, { active, count, rowsSeen }) {
  if (count === 0) return null;
  const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: Math.max(1, rowsSeen - 1), PageUp: -Math.max(1, rowsSeen - 1) };
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!(key in moves)) return null;
  if (active < 0) return 0;
  return Math.max(0, Math.min(count - 1, active + moves[key]));
}
