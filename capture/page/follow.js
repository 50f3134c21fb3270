/* A rollout followed as it runs: its events say when to read the graph anew. Between two readings lies a pause that
   grows with the graph, so that a long rollout that calls fast costs no more than a short one. */

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

  const read = async () => {
    asked = true;
    if (reading) return;
    reading = true;
    try {
      while (asked && !ctx.signal.aborted) {
        asked = false;
        const graph = await graphOf(ctx.api, id, { signal: ctx.signal, fresh: true });
        if (ctx.signal.aborted) return;
        await on.onGraph(graph);
        await pause(PAUSE_MS + PER_CALL_MS * graph.calls.length, ctx.signal);
      }
    } catch (error) {
      if (!ctx.signal.aborted && error instanceof ApiError && error.status === 404) on.onGone();
    } finally {
      reading = false;
    }
  };

  const state = (up) => {
    if (ctx.signal.aborted) return;
    const open = on.seen().rollout.state === "open";
    ctx.live(open ? (up ? "live" : "reconnecting…") : "closed");
  };

  const follow = async () => {
    for (;;) {
      try {
        await ctx.api.stream(`rollouts/${name}/events`, {
          signal: ctx.signal,
          onState: (up) => {
            state(up);
            /* What happened while the line was down, or before it was up, is in the graph. */
            if (up && (again || on.seen().rollout.state === "open")) read();
            again = true;
          },
          onEvent: ({ event }) => {
            if (event === "rollout.deleted") on.onGone();
            else read();
          },
        });
        return;
      } catch (error) {
        if (ctx.signal.aborted) return;
        if (error.status === 404) {
          on.onGone();
          return;
        }
        /* Events that are gone: read on from now. Anything else that trying again doesn't mend: say so. */
        if (error.status !== 410) {
          ctx.live("not live");
          return;
        }
        await pause(1000, ctx.signal);
      }
    }
  };
  follow();
}
