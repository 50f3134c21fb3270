/* Requests and replies of every dialect in one form, and what is new in one: capture/page/messages.js, difference.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { alike, parted, shared, sides } from "../../capture/page/difference.js";
import { messagesOf, pretty, replyOf, toolsOf } from "../../capture/page/messages.js";

const told = (messages) => messages.map(({ role, parts }) => [role, ...parts.map((part) => [part.kind, part.name ? `${part.name}: ${part.text}` : part.text])]);

test("chat", () => {
  const request = {
    messages: [
      { role: "system", content: "Be careful." },
      { role: "user", content: [{ type: "text", text: "See " }, { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } }] },
      { role: "assistant", content: null, reasoning_content: "Hm.", tool_calls: [{ id: "c1", type: "function", function: { name: "ls", arguments: "{}" } }] },
      { role: "tool", tool_call_id: "c1", content: "a.py" },
    ],
    tools: [{ type: "function", function: { name: "ls", description: "List.", parameters: { type: "object" } } }],
  };
  assert.deepEqual(told(messagesOf(request)), [
    ["system", ["text", "Be careful."]],
    ["user", ["text", "See "], ["media", "image: data:image/png;base64,…"]],
    ["assistant", ["thinking", "Hm."], ["call", "ls: {}"]],
    ["tool", ["result", "a.py"]],
  ]);
  assert.deepEqual(toolsOf(request), [{ name: "ls", description: "List.", schema: { type: "object" } }]);
  const reply = { choices: [{ index: 0, message: { role: "assistant", content: "Zero." } }, { index: 1, message: { role: "assistant", content: "One." } }] };
  assert.deepEqual(told(replyOf(reply, 1)), [["assistant", ["text", "One."]]]);
});

test("completions, of text and of ids", () => {
  assert.deepEqual(told(messagesOf({ prompt: "Once" })), [["prompt", ["text", "Once"]]]);
  assert.deepEqual(told(messagesOf({ prompt: [5, 6] })), [["prompt", ["ids", "5 6"]]]);
  assert.deepEqual(told(messagesOf({ prompt: ["a", "b"] })), [["prompt", ["text", "a"]], ["prompt", ["text", "b"]]]);
  assert.deepEqual(told(replyOf({ choices: [{ text: " upon" }] })), [["assistant", ["text", " upon"]]]);
});

test("responses", () => {
  const request = {
    instructions: "Be careful.",
    input: [
      { type: "message", role: "user", content: [{ type: "input_text", text: "Go" }] },
      { type: "reasoning", summary: [{ type: "summary_text", text: "Thinking of it." }] },
      { type: "function_call", call_id: "c1", name: "shell", arguments: "{\"cmd\": \"ls\"}" },
      { type: "function_call_output", call_id: "c1", output: "a.py" },
      { type: "web_search_call", id: "w" },
    ],
    tools: [{ type: "function", name: "shell", parameters: {} }, { type: "web_search" }],
  };
  assert.deepEqual(told(messagesOf(request)).slice(0, 5), [
    ["system", ["text", "Be careful."]],
    ["user", ["text", "Go"]],
    ["assistant", ["thinking", "Thinking of it."]],
    ["assistant", ["call", "shell: {\"cmd\": \"ls\"}"]],
    ["tool", ["result", "a.py"]],
  ]);
  assert.equal(messagesOf(request)[5].parts[0].kind, "other", "what isn't known is shown as its JSON");
  assert.deepEqual(toolsOf(request).map((tool) => tool.name), ["shell", "web_search"]);
  assert.deepEqual(told(messagesOf({ input: "Go" })), [["user", ["text", "Go"]]]);
  assert.deepEqual(told(replyOf({ output: [{ type: "message", role: "assistant", content: [{ type: "output_text", text: "Gone." }] }] })), [["assistant", ["text", "Gone."]]]);
});

test("messages", () => {
  const request = {
    system: [{ type: "text", text: "Be careful.", cache_control: {} }],
    messages: [
      { role: "user", content: "Go" },
      { role: "assistant", content: [{ type: "thinking", thinking: "Hm.", signature: "s" }, { type: "tool_use", id: "t1", name: "Bash", input: { command: "ls" } }] },
      { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", is_error: true, content: [{ type: "text", text: "no such file" }] }] },
    ],
    tools: [{ name: "Bash", description: "Run.", input_schema: { type: "object" } }],
  };
  const messages = messagesOf(request);
  assert.deepEqual(told(messages), [
    ["system", ["text", "Be careful."]],
    ["user", ["text", "Go"]],
    ["assistant", ["thinking", "Hm."], ["call", "Bash: {\n  \"command\": \"ls\"\n}"]],
    ["user", ["result", "no such file"]],
  ]);
  assert.equal(messages[3].parts[0].failed, true);
  assert.deepEqual(toolsOf(request)[0].schema, { type: "object" });
  assert.deepEqual(told(replyOf({ content: [{ type: "text", text: "Gone." }] })), [["assistant", ["text", "Gone."]]]);
});

test("gemini", () => {
  const request = {
    systemInstruction: { parts: [{ text: "Be careful." }] },
    contents: [
      { role: "user", parts: [{ text: "Go" }] },
      { role: "model", parts: [{ text: "Hm.", thought: true }, { functionCall: { name: "ls", args: {} } }] },
      { role: "user", parts: [{ functionResponse: { name: "ls", response: { output: "a.py" } } }, { inlineData: { mimeType: "image/png", data: "AAAA" } }] },
    ],
    tools: [{ functionDeclarations: [{ name: "ls", description: "List." }] }],
  };
  assert.deepEqual(told(messagesOf(request)), [
    ["system", ["text", "Be careful."]],
    ["user", ["text", "Go"]],
    ["assistant", ["thinking", "Hm."], ["call", "ls: {}"]],
    ["user", ["result", "ls: {\n  \"output\": \"a.py\"\n}"], ["media", "image/png: "]],
  ]);
  assert.deepEqual(toolsOf(request).map((tool) => tool.name), ["ls"]);
  assert.deepEqual(told(replyOf({ candidates: [{ content: { parts: [{ text: "Gone." }] } }] })), [["assistant", ["text", "Gone."]]]);
});

test("nothing that an agent may send makes it throw", () => {
  for (const odd of [null, undefined, 5, "text", [], {}, { messages: [null, 5, "x", {}] }, { input: [null, 5] }, { contents: [{ parts: [null] }] }, { messages: [{ role: "user", content: [null, 7, {}] }] }, { prompt: [] }, { prompt: [null] }, { tools: 5 }]) {
    assert.ok(Array.isArray(messagesOf(odd)), JSON.stringify(odd));
    assert.ok(Array.isArray(replyOf(odd)));
    assert.ok(Array.isArray(toolsOf(odd)));
  }
  for (const odd of [{ choices: [] }, { choices: [null] }, { output: [null] }, { candidates: [] }, { content: [null] }, { tools: [null, {}] }]) {
    assert.ok(Array.isArray(replyOf(odd)), JSON.stringify(odd));
    assert.ok(Array.isArray(toolsOf(odd)));
  }
});

test("nor anything that is drawn at random from the names they use", () => {
  let seed = 11;
  const random = (n) => { seed = (seed * 1103515245 + 12345) & 0x7fffffff; return (seed >> 8) % n; };
  const names = ["messages", "role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "input", "output", "contents", "parts", "system", "instructions", "prompt", "tools", "summary", "choices", "message", "candidates", "functionCall", "functionDeclarations", "inlineData", "mimeType", "image_url", "url", "source", "id"];
  const words = ["user", "tool", "text", "tool_use", "tool_result", "function_call", "function_call_output", "reasoning", "thinking", "image", "image_url", "input_image", "message", ""];
  const value = (depth) => {
    const kind = random(depth > 4 ? 4 : 7);
    if (kind === 0) return null;
    if (kind === 1) return random(9);
    if (kind === 2 || kind === 3) return words[random(words.length)];
    if (kind === 4) return Array.from({ length: random(4) }, () => value(depth + 1));
    return Object.fromEntries(Array.from({ length: 1 + random(5) }, () => [names[random(names.length)], value(depth + 1)]));
  };
  for (let round = 0; round < 4000; round += 1) {
    const odd = value(0);
    for (const { role, parts } of [...messagesOf(odd), ...replyOf(odd)]) {
      assert.equal(typeof role, "string");
      for (const part of parts) assert.equal(typeof part.text, "string", JSON.stringify(odd));
    }
    for (const tool of toolsOf(odd)) assert.equal(typeof tool.name, "string");
  }
});

test("what the parent's request had too is told by its content", () => {
  const parent = messagesOf({ messages: [{ role: "user", content: "Go" }] });
  const child = messagesOf({ messages: [{ role: "user", content: [{ type: "text", text: "Go" }] }, { role: "assistant", content: "Gone." }] });
  assert.equal(shared(parent.map((each) => each.key), child.map((each) => each.key)), 1);
});

test("where two texts part", () => {
  assert.deepEqual(parted("{\"a\": 1}", "{\"a\":1}"), { head: "{\"a\":", was: " ", is: "", tail: "1}" });
  assert.deepEqual(parted("same", "same"), { head: "same", was: "", is: "", tail: "" });
  assert.deepEqual(parted("aa", "aaa"), { head: "aa", was: "", is: "a", tail: "" });
  /* Never through the middle of a character. */
  const { head, was, is } = parted("x😀y", "x😁y");
  assert.deepEqual([head, was, is], ["x", "😀", "😁"]);
});

test("asked and sent side by side, what differs first", () => {
  assert.deepEqual(sides({ temperature: 0.7, seed: null, top_p: 1 }, { temperature: 1, seed: null, top_p: 1, top_k: 5 }), [
    { name: "temperature", asked: 0.7, sent: 1, same: false },
    { name: "top_k", asked: null, sent: 5, same: false },
    { name: "top_p", asked: 1, sent: 1, same: true },
  ]);
});

test("JSON is written so that it is read", () => {
  assert.equal(pretty("{\"a\":1}"), "{\n  \"a\": 1\n}");
  assert.equal(pretty("{half"), "{half");
  assert.equal(pretty("text"), "text");
});

test("breaks that say the same of other calls stand together", () => {
  const told = (call, words, changes = []) => ({ kind: "drift", cause: "turn_boundary", call, words, changes });
  const list = [
    told(1, "Call 1 does not begin with the tokens of call 0: 1,024 tokens are gone."),
    told(2, "Call 2 sent `messages[3].content` otherwise.", [{ field: "messages[3].content", was: "a", is: "b" }]),
    told(7, "Call 7 does not begin with the tokens of call 6: 3 tokens are gone."),
    told(8, "Call 8 sent `messages[9].content` otherwise.", [{ field: "messages[9].content", was: "a", is: "c" }]),
  ];
  assert.deepEqual(alike(list).map((group) => group.map((each) => each.call)), [[1, 7], [2], [8]]);
  assert.deepEqual(alike([]), []);
});
