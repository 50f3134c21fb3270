/* Whether a rollout's rows can be trained on, and its reward believed, as its findings have it. Pure.

   Every finding of level error or warn says something of both, or nothing; the worst is told. A test holds the table to
   graph/findings.py's. */

const [FINE, CARE, NOT] = [0, 1, 2];

/* Calls that a finding names, as words. */
const calls = ({ calls: all }) => {
  if (!all.length) return "those calls";
  const shown = all.slice(0, 6).map((n) => `#${n}`);
  const rest = all.length - shown.length;
  return `${all.length === 1 ? "call" : "calls"} ${[shown.slice(0, -1).join(", "), shown.at(-1)].filter(Boolean).join(rest ? ", " : " and ")}${rest ? ` and ${rest} more` : ""}`;
};
const left = (finding) => `${calls(finding)} ${finding.calls.length === 1 ? "is" : "are"} in none of them`;
const sound = [FINE, "each is exactly what the engine scored, and there are more of them"];

const JUDGED = { title: "a title", summary: "a summary", probe: "a probe", subagent: "a subagent's work", auxiliary: "a call of the agent for itself", other: "a call of the agent for itself" };

/* code → {rows, reward}: [how bad, why]; why may be a function of the finding. */
export const USE = {
  no_calls: { rows: [NOT, "no call was made"], reward: [NOT, "it grades nothing that the policy did"] },
  capture_incomplete: { rows: [NOT, "something of it is missing from the record"] },
  parent_lost: { rows: [CARE, "what the lost call said is context in them"] },
  unreadable_body: {},
  expired: { reward: [CARE, "the rollout ran out of its time to live, and may not have been done"] },
  graded_without_calls: { reward: [NOT, "nothing was sampled that could have earned it"] },
  unknown_secret_calls: {},
  tunnel_lost: { rows: [CARE, "they go as far as the tunnel did"], reward: [CARE, "the agent may have been cut off before it was done"] },
  secret_in_content: { rows: [CARE, "a key of the rollout stands in them: don't publish them"] },
  nothing_trainable: { rows: [NOT, "no token passes every condition"], reward: [NOT, "there is no token that it could go to"] },
  no_token_ids: { rows: [CARE, left] },
  no_logprobs: { rows: [CARE, left] },
  count_mismatch: { rows: [CARE, left] },
  invalid_logprobs: { rows: [CARE, left] },
  positive_logprob: { rows: [CARE, (finding) => `logprobs of ${calls(finding)} are above zero`] },
  token_out_of_vocabulary: { rows: [CARE, left] },
  drift_over_threshold: { rows: sound },
  volatile_prefix: { rows: sound },
  per_turn_roots: { rows: [FINE, "there is one for each turn"] },
  pin_fallback: {},
  ambiguous_main: { rows: [CARE, "which conversation they are of was a tie"] },
  role_hint_disagrees: { rows: [CARE, (finding) => `a header says that ${calls(finding)} ${finding.calls.length === 1 ? "is" : "are"} of another role`] },
  role_overruled: {
    rows: [CARE, ({ data }) => (data.role === "main" ? `${JUDGED[data.judged] ?? "something else"} is trained in them as part of the task, because somebody ruled so` : "a conversation is in none of them because somebody ruled so")],
    reward: [CARE, ({ data }) => (data.role === "main" ? `it goes to ${JUDGED[data.judged] ?? "something else"} too` : "what earned it may be left out")],
  },
  sampling_truncates: { rows: [CARE, "the trainer must cut the distribution as the sampler did"] },
  sampling_changed: { rows: [CARE, "their tokens are of different distributions"] },
  constrained_sampling: { rows: [FINE, (finding) => `replies of ${calls(finding)} are context in them`] },
  logprob_mode_unknown: { rows: [CARE, "nobody knows whether their logprobs are raw"] },
  logprobs_not_of_sampler: { rows: [CARE, "their logprobs are of another distribution than the one drawn from"] },
  truncated_reply: { rows: [FINE, "those that end in a reply that was cut say so"], reward: [CARE, "a reply was cut, and what it grades may be unfinished"] },
  time_limit: { rows: [FINE, left] },
  aborted_calls: { rows: [FINE, left] },
  undelivered_calls: { rows: [FINE, left] },
  delivery_unknown: { rows: [FINE, left] },
  engine_errors: { rows: [FINE, left] },
  limit_stop: { rows: [FINE, "the last turn says that a limit cut it"], reward: [CARE, "it grades work that a limit cut"] },
  weights_changed: { rows: [CARE, (finding) => `tokens of ${calls(finding)} are of two versions of the weights`] },
  engine_changed: {},
  request_refused: {},
  reply_id_reused: { reward: [CARE, "rewards of single calls may be another call's"] },
  injection_refused: { rows: [CARE, "what the engine would not give is missing"] },
};

const SAID = ["usable", "usable with care", "not usable"];

/* → {rows: {level: "good" | "warn" | "bad", text}, reward: the same}; null where there is nothing to say yet. */
export function usable({ rollout, findings }) {
  if (rollout.state === "open" && !rollout.n_calls) return null;
  const told = { rows: [], reward: [] };
  for (const finding of findings) {
    if (finding.level === "info" && finding.code !== "nothing_trainable") continue;
    for (const [what, [level, why]] of Object.entries(USE[finding.code] ?? {})) told[what].push({ level, why: typeof why === "function" ? why(finding) : why });
  }
  if (rollout.tier !== "train") told.rows.push({ level: NOT, why: `of tier ${rollout.tier} there is text alone` });
  if (rollout.incomplete && !told.rows.some((each) => each.level === NOT)) told.rows.push({ level: NOT, why: "something of it is missing from the record" });
  const reward = rollout.reward === null || rollout.reward === undefined
    ? { level: rollout.state === "open" ? "good" : "warn", text: rollout.state === "open" ? "none yet" : "none was given" }
    : worst(told.reward);
  return { rows: worst(told.rows), reward };
}

function worst(told) {
  const level = Math.max(FINE, ...told.map((each) => each.level));
  const why = [...new Set(told.filter((each) => each.level === level).map((each) => each.why))];
  return { level: ["good", "warn", "bad"][level], text: [SAID[level], why.slice(0, 2).join("; ")].filter(Boolean).join(": ") };
}

/* Findings of which another says what came of it: the headline names both. */
const WHY = {
  nothing_trainable: ["time_limit", "undelivered_calls", "engine_errors", "no_token_ids", "no_logprobs", "count_mismatch", "invalid_logprobs", "constrained_sampling", "role_overruled", "limit_stop"],
  no_calls: ["unknown_secret_calls", "tunnel_lost"],
};

/* The finding that is likely the cause of another; null where none is known. */
export const causeOf = (finding, findings) => (WHY[finding.code] ?? []).map((code) => findings.find((each) => each.code === code && each.level !== "info")).find(Boolean) ?? null;
