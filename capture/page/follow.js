/* A rollout followed as it runs: its events say when to read the graph anew. Between two readings lies a pause that
   grows with the graph, so that a long rollout that calls fast costs no more than a short one; and while nobody sees the
   tab, nothing is read. */

import { ApiError, pause } from "./api.js";
import { graphOf } from "./held.js";

const PAUSE_MS = 400;
const PER_CALL_MS = 4;

/* on.seen() is the graph that is shown, on.onGraph(graph) shows another (what it returns is waited for), on.onGone()
   says that it was deleted. Returns at once; ends with ctx.signal. */
export function live(id, ctx, on) {
  let asked = false;
  let reading = false;
  let again = false;
  const name = encodeURIComponent(id);
  const stop = new AbortController();
  const signal = AbortSignal.any([ctx.signal, stop.signal]);
  const gone = () => {
    if (signal.aborted) return;
    stop.abort();
    ctx.live("deleted");
    on.onGone();
  };

  const read = async () => {
    asked = true;
    if (reading) return;
    reading = true;
    try {
      while (asked && !signal.aborted) {
        await seen(signal);
        asked = false;
        const graph = await graphOf(ctx.api, id, { signal, fresh: true });
        if (signal.aborted) return;
        await on.onGraph(graph);
        await pause(PAUSE_MS + PER_CALL_MS * graph.calls.length, signal);
      }
    } catch (error) {
      if (!signal.aborted && error instanceof ApiError && error.status === 404) gone();
    } finally {
      reading = false;
    }
  };

  const state = (up) => {
    if (signal.aborted) return;
    const open = on.seen().rollout.state === "open";
    ctx.live(open ? (up ? "live" : "reconnecting…") : "closed");
  };

  const follow = async () => {
    for (;;) {
      try {
        await ctx.api.stream(`rollouts/${name}/events`, {
          signal,
          onState: (up) => {
            state(up);
            /* What happened while the line was down, or before it was up, is in the graph. */
            if (up && (again || on.seen().rollout.state === "open")) read();
            again = true;
          },
          onEvent: ({ event }) => {
            if (event === "rollout.deleted") gone();
            else read();
          },
        });
        return;
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404) {
          gone();
          return;
        }
        /* Events that are gone: read on from now. Anything else that trying again doesn't mend: say so. */
        if (error.status !== 410) {
          ctx.live("not live");
          return;
        }
        await pause(1000, signal);
      }
    }
  };
  follow();
}

/* Resolves when the tab can be seen, or the signal aborts. */
function seen(signal) {
  if (!document.hidden) return null;
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}
