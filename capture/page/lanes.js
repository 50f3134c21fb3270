/* Which lane of the forest each call stands in, like a commit log. Pure; the same rules as the terminal's drawing.

   A lane is one path of continuations. The child that went on (the fork's `kept`, else the first that isn't discarded)
   inherits its parent's lane; every other child gets a lane of its own, which leaves the parent right below it and is
   held until the child's row comes, since other conversations' calls lie between. Rows are in order of arrival, so a
   parent always stands above its children. */

/* calls: of a graph's JSON; kept: a Set of numbers. → {rows: [{n, lane}], edges: [{from, to, kind}], width}: edges are
   between call numbers, kind is the child's link ("exact", "drift", "compaction"); width is in lanes. */
export function lanes(calls, kept) {
  const known = new Set(calls.map((call) => call.n));
  const children = new Map();
  for (const call of calls) {
    if (call.parent === null || !known.has(call.parent)) continue;
    if (!children.has(call.parent)) children.set(call.parent, []);
    children.get(call.parent).push(call);
  }
  /* What each lane waits for: the call that comes next in it. null is free. */
  const waiting = [];
  const rows = [];
  const edges = [];
  let width = 0;
  for (const call of calls) {
    const at = waiting.indexOf(call.n);
    const lane = at >= 0 ? at : open(waiting, call.n, 0);
    rows.push({ n: call.n, lane });
    if (call.parent !== null && known.has(call.parent)) edges.push({ from: call.parent, to: call.n, kind: call.link });
    const heirs = [...(children.get(call.n) || [])].sort(
      (a, b) => kept.has(b.n) - kept.has(a.n) || a.discarded - b.discarded || a.n - b.n);
    waiting[lane] = heirs.length ? heirs[0].n : null;
    for (const each of heirs.slice(1).sort((a, b) => a.n - b.n)) open(waiting, each.n, lane + 1);
    width = Math.max(width, waiting.length);
    while (waiting.length && waiting.at(-1) === null) waiting.pop();
  }
  return { rows, edges, width };
}

/* The first free lane from `least` on. */
function open(waiting, n, least) {
  for (let lane = least; lane < waiting.length; lane += 1) {
    if (waiting[lane] === null) {
      waiting[lane] = n;
      return lane;
    }
  }
  while (waiting.length < least) waiting.push(null);
  waiting.push(n);
  return waiting.length - 1;
}

/* What hangs on another call without going on from its tokens: a conversation that a tool call started, a summary that
   a later call carries. → [{from, to, kind: "started" | "carried"}]. */
export function ties(graph) {
  const known = new Set(graph.calls.map((call) => call.n));
  const out = [];
  for (const each of graph.conversations) {
    if (each.parent_call !== null && known.has(each.parent_call) && known.has(each.root)) out.push({ from: each.parent_call, to: each.root, kind: "started" });
  }
  for (const call of graph.calls) {
    for (const from of call.carries) if (known.has(from) && from !== call.parent) out.push({ from, to: call.n, kind: "carried" });
  }
  return out;
}
