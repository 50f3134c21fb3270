/* The command that rules what a conversation was for. The page changes nothing by itself: whoever has the key sends it. */

import { request } from "./api.js";

export const ruling = (conversation, role) => JSON.stringify({ conversation, role }).replaceAll(":", ": ").replaceAll(",", ", ");

export const rule = (id, conversation, role) => request("PUT", `rollouts/${encodeURIComponent(id)}/roles`, ruling(conversation, role));

/* What a finding's remedy would rule: [conversation, role]; null for one that has none. */
export function remedy({ code, data }) {
  if (code === "role_overruled") return [data.conversation, data.judged];
  if (code === "role_hint_disagrees") return [data.conversation, data.hinted];
  return null;
}
