/* Looking again when something has happened: not at each event, but soon after, and never so often that looking is
   all the appliance does. */

import { pause } from "./api.js";

const GONE_MS = 1000;

/* Runs `work` soon after `ask()`: at most once at a time, at most every `least` ms, and no more than an eighth of the
   time; not while the tab is hidden. Errors go to `failed`. `clock` is for tests. */
export function paced(work, { least = 1000, failed = () => {}, clock = performance, later = setTimeout, hidden = () => document.hidden } = {}) {
  let wanted = false;
  let running = false;
  let timer = null;
  let rest = least;
  let stopped = false;

  function plan(wait) {
    if (timer === null && !running && !stopped) timer = later(run, wait);
  }

  async function run() {
    timer = null;
    if (stopped || hidden()) return;
    wanted = false;
    running = true;
    const begun = clock.now();
    try {
      await work();
    } catch (error) {
      if (!stopped) failed(error);
    }
    running = false;
    rest = Math.max(least, 7 * (clock.now() - begun));
    if (wanted) plan(rest);
  }

  return {
    ask() {
      wanted = true;
      if (!hidden()) plan(rest);
    },
    /* The tab is seen again. */
    awake() {
      if (wanted) plan(0);
    },
    stop() {
      stopped = true;
    },
  };
}

/* Follows a path's events while the view is there: asks for a look after each that `isOurs`, and says how the line is. */
export function follow(path, ctx, pace, isOurs = () => true) {
  document.addEventListener("visibilitychange", () => { if (!document.hidden) pace.awake(); }, { signal: ctx.signal });
  ctx.signal.addEventListener("abort", () => pace.stop(), { once: true });
  let down = false;
  const state = (up) => {
    if (ctx.signal.aborted) return;
    ctx.live(up ? "live" : "reconnecting…");
    // What happened meanwhile may have been told to nobody.
    if (up && down) pace.ask();
    down = !up;
  };
  const on = { signal: ctx.signal, onEvent: (event) => { if (isOurs(event)) pace.ask(); }, onState: state };
  const line = async () => {
    for (;;) {
      try {
        await ctx.api.stream(path, on);
        return;
      } catch (error) {
        if (ctx.signal.aborted) return;
        // Events behind the last one that came are gone: on from now, behind a look. The rest no further try mends.
        if (error.status !== 410) {
          ctx.live("not live");
          return;
        }
        pace.ask();
        await pause(GONE_MS, ctx.signal);
      }
    }
  };
  line();
}
