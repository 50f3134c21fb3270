/* A rollout's state, in the same words and colours in every view: open or closed, and beside it what else is to be known. */

import { h } from "./dom.js";

/* [{word, tone, title}]: tone is a class of `.tag`, null for none. */
export function statesOf(rollout) {
  const out = [rollout.state === "open" ? { word: "open", tone: "info", title: "Calls may come" } : { word: "closed", tone: null, title: "No more calls come" }];
  if (rollout.stopped) out.push({ word: "stopped", tone: "warning", title: `By its limit ${rollout.stopped.limit}${valueOf(rollout)}, at call ${rollout.stopped.at_call}` });
  if (rollout.incomplete) out.push({ word: "incomplete", tone: "error", title: "Something of it could not be recorded" });
  return out;
}

function valueOf({ limits, stopped }) {
  const value = limits?.[stopped.limit];
  return value === undefined ? "" : ` of ${amount(stopped.limit, value)}`;
}

/* 2 of max_calls → "2 calls": what a limit counts is how its name ends. */
export function amount(limit, value) {
  const unit = { calls: "call", tokens: "token", s: "second" }[limit.split("_").at(-1)] ?? "";
  return `${value.toLocaleString("en-GB")} ${unit}${value === 1 || !unit ? "" : "s"}`.trim();
}

export const stateTags = (rollout) => statesOf(rollout).flatMap(({ word, tone, title }) => [" ", h("span.tag", { class: tone, title }, word)]);

/* The same where a column is narrow: words, and the colour of what is wrong. */
export const stateWords = (rollout) => statesOf(rollout).flatMap(({ word, tone, title }, at) => [at ? ", " : "", h("span", { class: tone ? `state-${tone}` : null, title }, word)]);
