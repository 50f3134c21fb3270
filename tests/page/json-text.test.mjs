/* JSON as text, and a request as a command: capture/page/json-text.js, resend.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { indented, member } from "../../capture/page/json-text.js";
import { resend } from "../../capture/page/resend.js";

test("numbers stay as they were written", () => {
  const text = "{\"a\": {\"seed\": 9223372036854775807, \"t\": 1.0, \"e\": 1e400}, \"b\": [1.50]}";
  assert.equal(member(text, "a"), "{\"seed\": 9223372036854775807, \"t\": 1.0, \"e\": 1e400}");
  assert.equal(indented(member(text, "a")), "{\n  \"seed\": 9223372036854775807,\n  \"t\": 1.0,\n  \"e\": 1e400\n}");
  assert.equal(member(text, "b"), "[1.50]");
  assert.equal(member(text, "c"), null);
});

test("signs within strings are none", () => {
  const text = "{\"x\":\"}\\\"],{\\\\\",\"y\":\"z\",\"n\":null}";
  assert.equal(member(text, "x"), "\"}\\\"],{\\\\\"");
  assert.equal(member(text, "y"), "\"z\"");
  assert.equal(member(text, "n"), "null");
  assert.deepEqual(JSON.parse(indented(text)), JSON.parse(text));
});

test("what is drawn at random is the same JSON as before, and each member is found", () => {
  let seed = 3;
  const random = (n) => { seed = (seed * 1103515245 + 12345) & 0x7fffffff; return (seed >> 8) % n; };
  const value = (depth) => {
    const kind = random(depth > 3 ? 4 : 6);
    if (kind === 0) return [null, true, false][random(3)];
    if (kind === 1) return random(1000) / 8;
    if (kind < 4) return ["", "a\"b", "\\", "{[,:]}", "é\n\t", "x"][random(6)];
    if (kind === 4) return Array.from({ length: random(4) }, () => value(depth + 1));
    return Object.fromEntries(Array.from({ length: random(5) }, (_, i) => [`${["k", "\"", "\\", ":"][random(4)]}${i}`, value(depth + 1)]));
  };
  for (let round = 0; round < 2000; round += 1) {
    const made = { a: value(0), "b\"": value(0), c: value(0) };
    for (const text of [JSON.stringify(made), JSON.stringify(made, null, 1)]) {
      assert.equal(indented(text), JSON.stringify(made, null, 2));
      for (const [name, each] of Object.entries(made)) assert.deepEqual(JSON.parse(member(text, name)), each);
    }
  }
});

test("a request as the command that sends it again", () => {
  const command = resend({ dialect: "chat" }, "{\"a\": \"it's\"}");
  assert.equal(command, "curl -sN \"$OPENAI_BASE_URL/chat/completions\" \\\n  -H \"Authorization: Bearer $OPENAI_API_KEY\" \\\n  -H \"Content-Type: application/json\" \\\n  --data-binary @- <<'BODY'\n{\"a\": \"it's\"}\nBODY");
  assert.match(resend({ dialect: "messages" }, "{}"), /ANTHROPIC_BASE_URL\/v1\/messages/);
  const [first] = resend({ dialect: "gemini", model_asked: "m/$(id)`!!\"", streamed: true }, "{}").split("\n");
  assert.equal(first, "curl -sN \"$GOOGLE_GEMINI_BASE_URL/v1beta/models/m%2F%24%28id%29%60%21%21%22:streamGenerateContent?alt=sse\" \\");
  assert.match(resend({ dialect: "chat" }, "{\n\"a\":\nBODY\n}"), /<<'BODY_'/);
});
