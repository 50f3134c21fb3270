/* A training row as a bar: which stretches are trained, which were sampled and are not, and which are context. Pure. */

/* row: of `GET …/sequences?ids=0`. → [{start, end, kind, call}], in order and without gaps; kind is "trained", "sampled"
   (the policy's own tokens, not trained here) or "context". */
export function stretches(row) {
  const out = [];
  let run = 0;
  for (const { start, end, kind, call } of row.spans) {
    let at = start;
    while (at < end) {
      while (run < row.trained.length && row.trained[run][1] <= at) run += 1;
      const next = row.trained[run];
      const inside = next !== undefined && next[0] <= at;
      const until = Math.min(end, next === undefined ? end : inside ? next[1] : next[0]);
      push(out, { start: at, end: until, kind: inside ? "trained" : kind === "sampled" ? "sampled" : "context", call });
      at = until;
    }
  }
  return out;
}

function push(out, part) {
  const last = out.at(-1);
  if (last && last.kind === part.kind && last.call === part.call && last.end === part.start) last.end = part.end;
  else out.push(part);
}

/* Widens stretches that would be too thin to see, on a bar of `width` for `total` tokens: [{…, x, w}]. What is trained
   is never drawn thinner than `least`, since a reply of ten tokens behind a prompt of a hundred thousand counts. */
export function laid(parts, total, width, least = 2) {
  const scale = total ? width / total : 0;
  return parts.map((part) => {
    const w = (part.end - part.start) * scale;
    const drawn = part.kind === "context" ? w : Math.max(w, least);
    return { ...part, x: Math.min(part.start * scale, width - drawn), w: drawn };
  });
}

/* What the mask says of a call's tokens, by position in its prompt and reply: {row, runs, why}. `runs` are the trained
   stretches of its own reply and of those before it; a call in no row has none, and `why` is the reason's code. */
export function maskOf(sequences, n) {
  for (const row of sequences?.sequences || []) {
    const own = row.spans.filter((span) => span.call === n && span.kind === "sampled");
    if (!own.length) continue;
    const end = own.at(-1).end;
    return { row: row.row, runs: row.trained.filter(([start]) => start < end).map(([start, stop]) => [start, Math.min(stop, end)]), why: null, shifted: row.drift_crossed > 0 };
  }
  const left = (sequences?.left_out || []).find((each) => each.call === n);
  return { row: null, runs: [], why: left ? left.reason : null, shifted: false };
}

/* Whether a position lies in one of the stretches; they are in order. */
export function within(runs, at) {
  let low = 0;
  let high = runs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle][1] <= at) low = middle + 1;
    else high = middle;
  }
  return low < runs.length && runs[low][0] <= at;
}
