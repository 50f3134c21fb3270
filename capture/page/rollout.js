/* A rollout: what is wrong first, then the forest, live as calls stream in, then what a trainer gets of it.

   The graph comes first and is painted at once; words for forks and breaks, and the rows, are asked for behind it, each
   into a place that is kept for it. */

import { copyCurl } from "./copy.js";
import { fill, h, moment, number, plural, short } from "./dom.js";
import { counted, findings } from "./findings.js";
import { amount, stateTags } from "./states.js";
import { causeOf, usable } from "./usable.js";
import { live } from "./follow.js";
import { Forest, legend } from "./forest.js";
import { graphOf } from "./held.js";
import { key } from "./keys.js";
import { put } from "./places.js";
import { prose } from "./prose.js";
import { to } from "./router.js";

/* Between two cuts of a running rollout into rows, which cost the appliance more than its graph does. */
const BETWEEN_MS = 4000;

export async function show(root, { id }, ctx) {
  ctx.title(id, ["Rollouts", "#/"], [id]);
  const forest = new Forest(id, { onSelect: (n) => history.replaceState(null, "", to("rollouts", id, { call: n })) });
  const head = h("div.rollout-head");
  const found = h("div.findings-place");
  const words = h("div.words-place");
  const rows = h("div.rows-place");
  const roles = h("div");
  const calls = h("section.panel", { "aria-labelledby": "forest-head" },
    h("div.row.spread", h("h2", { id: "forest-head" }, "Calls"), h("p.quiet.keys-hint", h("kbd", "j"), h("kbd", "k"), " between calls, ", h("kbd", "Enter"), " opens, ", h("kbd", "n"), " next that parts or failed, ", h("kbd", "t"), " tokens, ", h("kbd", "p"), " parent")),
    legend(), forest.element, forest.detail);
  const graph = await graphOf(ctx.api, id, { signal: ctx.signal, fresh: true });
  let seen = null;
  /* While calls come the forest scrolls in a place of one height, so that nothing below it moves. */
  const open = graph.rollout.state === "open";
  forest.element.classList.toggle("following", open);
  found.classList.toggle("following", open);

  const paint = (next) => {
    seen = next;
    const { rollout } = next;
    put(head, [rollout, next.drift, next.findings], () => headOf(next, ctx));
    put(found, [next.findings, rollout.state, next.calls.length > 0], () => (next.calls.length ? findings(next.findings, rollout, ctx, { scrolls: open }) : silent(next, ctx)));
    forest.update(next);
    if (next.calls.some(isParted)) words.classList.add("known");
  };
  /* What stands below the first sight of it is loaded behind it. */
  let sequences = null;
  let cutAt = Number.NEGATIVE_INFINITY;
  let waiting = null;
  let gone = false;
  const later = async (next) => {
    if (gone || !next.calls.length) return;
    const rest = next.rollout.state === "open" ? cutAt + BETWEEN_MS - performance.now() : 0;
    if (rest > 0) {
      waiting ??= setTimeout(() => {
        waiting = null;
        if (!ctx.signal.aborted) later(seen).catch(() => {});
      }, rest);
      return;
    }
    cutAt = performance.now();
    const [rowsModule, forksModule, verdicts] = await Promise.all([import("./sequences.js"), import("./forks.js"), import("./verdicts.js")]);
    if (gone || ctx.signal.aborted) return;
    if (!sequences) {
      sequences = new rowsModule.Sequences(id, ctx);
      fill(rows, sequences.element);
    }
    const told = sequences.update(next);
    let said = { forks: [], breaks: [] };
    if (next.calls.some(isParted)) {
      try {
        said = await ctx.api.get(`rollouts/${encodeURIComponent(id)}/forks`, { signal: ctx.signal });
      } catch {
        if (ctx.signal.aborted) return;
        said = forksModule.fromGraph(next);
      }
    }
    put(words, said, () => forksModule.forks(said, id));
    put(roles, next.conversations, () => verdicts.conversations(next, id, ctx));
    await told;
  };

  paint(graph);
  fill(root, head, found, calls, words, rows, roles);
  calls.hidden = !graph.calls.length;
  /* So do findings: what is wrong already has the room that it needs. */
  if (open) found.style.setProperty("--held", `${found.offsetHeight}px`);
  const wanted = Number(ctx.query.get("call") ?? Number.NaN);
  if (Number.isInteger(wanted)) forest.select(wanted, { focus: true });
  const chosen = (view) => () => { if (forest.selected !== null) location.hash = to("rollouts", id, view, forest.selected); };
  ctx.keys({
    j: key("next call", () => forest.step(1)),
    k: key("previous call", () => forest.step(-1)),
    n: key("next call that parts, forks or failed", () => { if (!forest.next(1)) ctx.say("No further call parts, forks or failed."); }),
    N: key("the one before", () => { if (!forest.next(-1)) ctx.say("No earlier call parts, forks or failed."); }),
    p: key("parent of the call", () => forest.parent()),
    t: key("tokens of the call", chosen("tokens")),
    Enter: key("open the call", (event) => { if (event.target.closest("a, button, summary")) event.target.closest("a, button, summary").click(); else chosen("calls")(); }),
  });
  later(graph).catch((error) => { if (!ctx.signal.aborted) ctx.say(error.message); });
  live(id, ctx, {
    seen: () => seen,
    onGraph: (next) => {
      calls.hidden = !next.calls.length;
      paint(next);
      return later(next);
    },
    onGone: () => {
      gone = true;
      clearTimeout(waiting);
      fill(root, h("div.notice.warn", { role: "alert" }, h("h1", "This rollout was deleted."), h("p", h("a", { href: "#/" }, "All rollouts"))));
    },
  });
}

const isParted = (call) => call.link === "drift" || call.link === "compaction" || call.fork !== null;

function headOf({ rollout, findings: found, drift }, ctx) {
  const path = `rollouts/${encodeURIComponent(rollout.id)}/graph`;
  const running = rollout.state === "open";
  const pair = (name, value, title) => h("div", h("dt", name), h("dd", { title: title || null }, value));
  return [
    h("div.row.spread",
      h("h1", rollout.id, stateTags(rollout)),
      h("div.row", compareButton(rollout, ctx), copyCurl(path, ctx))),
    rollout.task ? h("p.task", h("span.quiet", "Task: "), rollout.task) : null,
    h("p.verdict", verdict(found, rollout)),
    usableLine(rollout, found),
    h("dl.facts",
      pair("Reward", rollout.reward === null ? "ungraded" : number(rollout.reward)),
      pair("Tier", rollout.tier, rollout.tier_reason),
      pair("Model", rollout.model || "–"),
      rollout.group === null ? null : pair("Group", h("a", { href: to("groups", rollout.group) }, rollout.group)),
      pair("Calls", `${number(rollout.n_calls)}, ${number(rollout.n_main_calls)} main`),
      pair("Tool calls", number(rollout.n_tool_calls)),
      pair("Tokens", `${short(rollout.n_prompt_tokens)} read, ${short(rollout.n_sampled_tokens)} sampled`, `${number(rollout.n_prompt_tokens)} in prompts, ${number(rollout.n_sampled_tokens)} sampled, ${number(rollout.n_distinct_tokens)} distinct`),
      pair("Exact steps", drift.transitions ? `${number(drift.exact)} of ${number(drift.transitions)}` : "–", "Steps of main whose prompt begins with exactly the tokens before it"),
      pair("Logprobs", rollout.logprobs_mode),
      pair("Made", moment(rollout.created_at)),
      pair("First call", moment(rollout.first_call_at)),
      pair(running ? "Last call" : "Closed", moment(running ? rollout.last_call_at : rollout.closed_at)),
      limits(rollout).map(([name, value]) => pair(`Limit ${name}`, value)),
      rollout.stopped ? pair("Stopped by", `${rollout.stopped.limit} at call ${rollout.stopped.at_call}, ${plural(rollout.stopped.stops, "stop")}`) : null,
      Object.entries(rollout.labels || {}).map(([name, value]) => pair(`Label ${name}`, String(value)))),
    rollout.tier === "train" ? null : h("p.notice.warn", `Tier ${rollout.tier}: ${rollout.tier_reason || "no exact token ids"}. It can be graded, and not trained on.`),
  ];
}

/* Goes on to this rollout and another side by side. What there is to compare with is asked for when it is pressed. */
function compareButton(rollout, ctx) {
  const grouped = rollout.group !== null;
  const why = grouped ? `With another rollout of group ${rollout.group}` : rollout.task ? "With another rollout of the same task" : "No group and no task is known, by which to find another";
  return h("button", {
    type: "button", title: why, disabled: !grouped && !rollout.task,
    onclick: () => import("./twin.js").then(({ choose }) => choose(rollout, ctx)).catch((error) => { if (!ctx.signal.aborted) ctx.say(error.message); }),
  }, "Compare");
}

/* Each limit with what it allows and what is left of it. */
function limits(rollout) {
  const left = rollout.budget_left || {};
  return Object.entries(rollout.limits ?? {}).filter(([, value]) => value !== null).map(([name, value]) =>
    [name, left[name] === undefined || left[name] === null ? amount(name, value) : `${amount(name, value)}, ${number(Math.round(left[name]))} left`]);
}

/* Whether its rows and its reward can be used: what somebody who has read the verdict asks next. */
function usableLine(rollout, found) {
  const told = usable({ rollout, findings: found });
  if (!told) return h("p.usable");
  const part = (name, { level, text }) => [h("strong", `${name}: `), h("span", { class: level }, text), ". "];
  return h("p.usable", part("Rows", told.rows), part("Reward", told.reward));
}

function verdict(found, rollout) {
  const faults = [...found.filter((each) => each.level === "error"), ...found.filter((each) => each.level === "warn")];
  if (faults.length) {
    const first = faults[0];
    const cause = causeOf(first, found);
    const rest = faults.filter((each) => each !== first && each !== cause);
    return [first.level === "error" ? h("strong.bad", "Broken: ") : h("strong.warn", "Look first: "), prose(first.message), cause ? [" ", h("strong", "Likely why: "), prose(cause.message)] : "",
      rest.length ? [" Also: ", rest.flatMap((each, i) => [i ? ", " : "", h("code", each.code)]), "."] : ""];
  }
  if (rollout.incomplete) return [h("strong.bad", "Broken: "), "something of it could not be recorded."];
  if (!rollout.n_calls) return [h("strong", "Waiting"), " for its first call."];
  return [h("strong.good", "Sound"), found.length ? `: ${counted(found)}.` : "."];
}

/* A rollout without calls: all that is known of why. */
function silent({ rollout, findings: found }, ctx) {
  if (rollout.state === "open") {
    return [h("div.notice", h("p", "No call has come yet. It is shown here as soon as one does."),
      h("p", "The agent needs this rollout's base URL and secret; from inside a sandbox 127.0.0.1 is the sandbox itself.")),
    found.length ? findings(found, rollout, ctx, { scrolls: true }) : null];
  }
  return [h("div.notice.bad", h("p", "No agent ever called. A reward of this rollout says nothing of the policy.")), findings(found, rollout, ctx)];
}
