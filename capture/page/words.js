/* The words of the forest, as people read them: how a call ended, how it hangs on its parent, what is left out and why.
   Pure: no element is made here. The keys are those of the control plane's JSON forms. */

/* A mark is a shape as well as a word: forest.js draws it, the terminal prints it. */
export const STATUS = {
  complete: ["●", "complete", "The reply ended, and the agent has it."],
  undelivered: ["○", "undelivered", "The reply ended, and the agent had hung up before its end."],
  aborted: ["×", "aborted", "The reply broke off before its end."],
  error: ["!", "error", "It ended in an error."],
  stopped: ["■", "stopped", "A limit's last reply: the engine did not sample it."],
  running: ["…", "running", "It runs now."],
};

/* The tone of a status, a class of `.tag`: one colour for it, wherever a call is named. */
export const TONE = { complete: "good", undelivered: "error", aborted: "error", error: "error", stopped: "warning", running: "info" };

export const LINK = {
  root: "begins anew: it goes on from no earlier call",
  exact: "its prompt begins with exactly the tokens that its parent read and sampled",
  drift: "its prompt parts from its parent's tokens",
  compaction: "it goes on from a summary of the conversation",
};

export const FORK = {
  retry: "the same request again, after a try whose reply was not had",
  resample: "the same prompt, drawn again",
  branch: "two different continuations of one reply",
};

export const ROLE = {
  main: "the task itself: what a trainer learns from",
  subagent: "a loop that a tool call of another conversation started",
  auxiliary: "a call that served the agent itself: a title, a summary, a probe",
  unknown: "in no conversation: an error, or a limit's last reply",
};

/* Why a call's tokens are in no row; docs/findings.md prints the same table from the code. */
export const REASON = {
  running: "it has not ended",
  stopped: "a limit's last reply, which the engine did not sample",
  error: "it ended in an error",
  aborted: "it broke off, and no later prompt proves that the agent used it",
  undelivered: "the client had closed before the reply's end",
  delivery_unknown: "the process died before it could tell, and no later call goes on from it",
  discarded: "another branch from the same place went on",
  no_token_ids: "the engine gave no prompt ids or no sampled ids",
  damaged_ids: "an id is none that a vocabulary could have",
  nothing_sampled: "the reply has no tokens",
  no_logprobs: "the engine gave no logprobs",
  count_mismatch: "ids, logprobs and usage disagree in number",
  invalid_logprobs: "a logprob is missing, infinite or clamped",
  constrained: "sampled under a constraint that a trainer can't rebuild",
  role: "its conversation's role was not asked for",
};

export const LEVEL = { error: ["error", "error"], warn: ["warning", "warning"], info: ["info", "note"] };
export const LEVELS = ["error", "warn", "info"];

/* Role and kind of a call's conversation: ["auxiliary", "auxiliary: title"]. */
export function roleOf(call, conversations) {
  const found = call.conversation === null || call.conversation === undefined ? null : conversations.get(call.conversation);
  if (!found) return ["unknown", call.status === "running" ? "not yet" : "none"];
  return [found.role in ROLE ? found.role : "unknown", `${found.kind ? `${found.role}: ${found.kind}` : found.role}${isRuled(found) ? ", ruled" : ""}`];
}

/* Whether somebody ruled what a conversation was for, whatever it did. */
export const isRuled = (conversation) => (conversation.evidence ?? []).some((each) => each.rule === "overruled");

/* The versions of the weights that a call's tokens are known to be drawn from, in order. One that nobody told is none. */
export const versionsOf = ({ start, end, spans }) => [...new Set([start, ...(spans ?? []).map((each) => each.version), end].filter((each) => each !== null && each !== undefined))];

/* Whether the weights changed while a call was being sampled. */
export const straddles = (call) => call.status !== "error" && Boolean(call.weights) && versionsOf(call.weights).length > 1;

/* What a row of the forest says at its end, in the terminal's order. */
export function notesOf(call, conversation, kept) {
  const notes = [];
  if (call.choice) notes.push(`choice ${call.choice}`);
  if (call.fork) notes.push(call.fork + (kept.has(call.n) ? ", kept" : ""));
  if (call.discarded) notes.push("discarded");
  if (call.carries.length) notes.push(`carries ${call.carries.join(", ")}`);
  if (conversation && conversation.root === call.n && conversation.parent_call !== null) notes.push(`started by ${conversation.parent_call}`);
  if (straddles(call)) notes.unshift(`weights ${versionsOf(call.weights).join(" → ")}`);
  if (call.pinned) notes.push(`pinned ${call.pinned.kept}`);
  if (call.constrained) notes.push("constrained");
  if (call.repairs.length) notes.push(call.repairs.map((each) => (typeof each === "string" ? each : each.name || "repaired")).join(", "));
  return notes;
}

/* "turn_boundary" → "turn boundary". */
export const plain = (code) => String(code ?? "").replaceAll("_", " ");
