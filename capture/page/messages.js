/* What an agent asked and what it got, in one form whatever dialect it spoke. Pure.

   A message is {role, parts, key}: parts are {kind, text, name, id, failed}, kind one of "text", "thinking", "call" (of a
   tool), "result", "media", "ids", "other". `key` tells messages apart: equal keys, equal messages. What isn't known here
   is shown as its JSON, never left out. */

import { canonical } from "./difference.js";

/* A request of any dialect → [message]. */
export function messagesOf(request) {
  if (!request || typeof request !== "object") return [];
  const out = [];
  const system = request.system ?? request.systemInstruction ?? request.system_instruction ?? request.instructions;
  if (system) out.push(message("system", system.parts ? listOf(system.parts).map(geminiPart) : parts(system)));
  if (Array.isArray(request.messages)) out.push(...request.messages.map(chatMessage));
  else if (Array.isArray(request.contents)) out.push(...request.contents.map((each) => message(each?.role || "user", listOf(each?.parts).map(geminiPart))));
  else if (request.contents) out.push(message("user", parts(request.contents)));
  else if (typeof request.input === "string") out.push(message("user", parts(request.input)));
  else if (Array.isArray(request.input)) out.push(...request.input.map(item));
  else if (request.prompt !== undefined) out.push(...prompts(request.prompt));
  return out;
}

/* A reply of any dialect → [message], of the choice that is meant where it has several. */
export function replyOf(reply, choice = 0) {
  if (!reply || typeof reply !== "object") return [];
  if (Array.isArray(reply.choices)) {
    const found = reply.choices.find((each) => (each?.index ?? 0) === choice) ?? reply.choices[0];
    if (!found) return [];
    return [found.message ? chatMessage(found.message) : message("assistant", parts(found.text ?? ""))];
  }
  if (Array.isArray(reply.candidates)) {
    const found = reply.candidates.find((each) => (each?.index ?? 0) === choice) ?? reply.candidates[0];
    return found ? [message("assistant", listOf(found.content?.parts).map(geminiPart))] : [];
  }
  if (Array.isArray(reply.output)) return reply.output.map(item);
  if (Array.isArray(reply.content)) return [message("assistant", parts(reply.content))];
  return [];
}

/* → [{name, description, schema}] */
export function toolsOf(request) {
  const out = [];
  for (const tool of Array.isArray(request?.tools) ? request.tools : []) {
    if (!tool || typeof tool !== "object") continue;
    const declared = tool.functionDeclarations || tool.function_declarations;
    if (Array.isArray(declared)) out.push(...declared.map((each) => toolOf(each)));
    else out.push(toolOf(tool.function || tool));
  }
  return out;
}

const toolOf = (each) => ({
  name: written(each?.name || each?.type || Object.keys(each ?? {})[0] || "unnamed"),
  description: written(each?.description || ""),
  schema: each?.parameters ?? each?.parametersJsonSchema ?? each?.input_schema ?? each?.format ?? null,
});

/* What is named so in a request may be anything: an agent wrote it. */
const listOf = (value) => (Array.isArray(value) ? value : []);
const nameOf = (value) => (value === undefined || value === null ? undefined : written(value));

function message(role, list) {
  const kept = list.map((part) => ({ ...part, text: written(part.text), name: nameOf(part.name), id: nameOf(part.id) }));
  const said = typeof role === "string" ? (role === "model" ? "assistant" : role) : "unknown";
  return { role: said, parts: kept, key: canonical([said, kept]) };
}

function chatMessage(given) {
  if (!given || typeof given !== "object") return message("unknown", [other(given)]);
  const list = [];
  const thinking = given.reasoning_content ?? given.reasoning;
  if (typeof thinking === "string" && thinking) list.push({ kind: "thinking", text: thinking });
  const content = parts(given.content);
  if (given.role === "tool") list.push({ kind: "result", id: given.tool_call_id, name: given.name, text: content.map((part) => written(part.text)).join("\n") });
  else list.push(...content);
  if (typeof given.refusal === "string" && given.refusal) list.push({ kind: "text", text: given.refusal });
  for (const call of listOf(given.tool_calls)) list.push({ kind: "call", id: call?.id, name: call?.function?.name ?? call?.custom?.name, text: written(call?.function?.arguments ?? call?.custom?.input) });
  if (given.function_call) list.push({ kind: "call", name: given.function_call.name, text: written(given.function_call.arguments) });
  return message(given.role || "unknown", list);
}

function parts(content) {
  if (content === null || content === undefined || content === "") return [];
  if (typeof content === "string") return [{ kind: "text", text: content }];
  return (Array.isArray(content) ? content : [content]).map(block);
}

/* A part of a chat message, a block of Anthropic's, or an item's content. */
function block(part) {
  if (typeof part === "string") return { kind: "text", text: part };
  switch (part?.type) {
    case "text": case "input_text": case "output_text": case "summary_text": case "reasoning_text": return { kind: "text", text: part.text ?? "" };
    case "refusal": return { kind: "text", text: part.refusal ?? "" };
    case "thinking": return { kind: "thinking", text: part.thinking ?? "" };
    case "redacted_thinking": return { kind: "thinking", text: "(redacted)" };
    case "tool_use": case "server_tool_use": return { kind: "call", id: part.id, name: part.name, text: written(part.input) };
    case "tool_result": return { kind: "result", id: part.tool_use_id, failed: part.is_error === true, text: parts(part.content).map((each) => written(each.text)).join("\n") };
    case "image_url": return media("image", part.image_url?.url ?? part.image_url);
    case "input_image": return media("image", part.image_url ?? part.file_id);
    case "image": return media("image", part.source?.url ?? part.source?.media_type);
    case "input_audio": case "audio": case "video_url": case "document": case "file": case "input_file": return media(part.type, null);
    default: return other(part);
  }
}

function item(given) {
  switch (given?.type) {
    case "function_call": return message("assistant", [{ kind: "call", id: given.call_id, name: given.name, text: written(given.arguments) }]);
    case "custom_tool_call": return message("assistant", [{ kind: "call", id: given.call_id, name: given.name, text: written(given.input) }]);
    case "local_shell_call": return message("assistant", [{ kind: "call", id: given.call_id, name: "local_shell", text: written(given.action) }]);
    case "function_call_output": case "custom_tool_call_output": case "local_shell_call_output":
      return message("tool", [{ kind: "result", id: given.call_id, text: Array.isArray(given.output) ? parts(given.output).map((each) => written(each.text)).join("\n") : written(given.output) }]);
    case "reasoning": {
      const said = [...parts(given.content), ...parts(given.summary)].map((each) => written(each.text)).join("\n");
      return message("assistant", [{ kind: "thinking", text: said || (given.encrypted_content ? "(encrypted)" : "") }]);
    }
    default:
      if (given?.role) return message(given.role, parts(given.content));
      return message("item", [other(given)]);
  }
}

function geminiPart(part) {
  if (typeof part?.text === "string") return { kind: part.thought ? "thinking" : "text", text: part.text };
  const call = part?.functionCall || part?.function_call;
  if (call) return { kind: "call", id: call.id, name: call.name, text: written(call.args ?? {}) };
  const result = part?.functionResponse || part?.function_response;
  if (result) return { kind: "result", id: result.id, name: result.name, text: written(result.response ?? {}) };
  const data = part?.inlineData || part?.inline_data || part?.fileData || part?.file_data;
  if (data) return media(data.mimeType || data.mime_type || "media", data.fileUri || null);
  return other(part);
}

function prompts(prompt) {
  if (Array.isArray(prompt) && prompt.length && typeof prompt[0] === "number") return [message("prompt", [{ kind: "ids", text: prompt.join(" ") }])];
  return (Array.isArray(prompt) ? prompt : [prompt]).map((each) => message("prompt", typeof each === "string" ? parts(each) : [{ kind: "ids", text: listOf(each).join(" ") }]));
}

/* Of media only what it is: the bytes are in the raw request. */
function media(what, where) {
  const text = typeof where === "string" ? (where.startsWith("data:") ? `${where.slice(0, where.indexOf(",") + 1 || 40)}…` : where) : "";
  return { kind: "media", name: what, text };
}

const other = (part) => ({ kind: "other", name: part?.type, text: written(part) });

const written = (value) => (typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value, null, 2));

/* JSON text as it is easier to read; anything else as it is. */
export function pretty(text) {
  const trimmed = text.trim();
  if (!/^[{[]/.test(trimmed) || trimmed.length > 200000) return text;
  try {
    return JSON.stringify(JSON.parse(trimmed), null, 2);
  } catch {
    return text;
  }
}
