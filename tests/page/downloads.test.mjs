/* What a download asks for: capture/page/download-plan.js. */

import assert from "node:assert/strict";
import test from "node:test";

import { commands, fileName, MOST_AT_ONCE, obstacle, paths } from "../../capture/page/download-plan.js";

const native = { format: "native", roles: "main", open: false };

test("one rollout is one path, with its name escaped", () => {
  assert.deepEqual(paths({ rollout: "a b/c" }, native), ["rollouts/a%20b%2Fc/sequences?format=native"]);
});

test("what is as the server has it by itself isn't asked for", () => {
  const [path] = paths({ rollout: "r" }, { format: "trl", roles: "main,summary,subagent,auxiliary", drift: "split", open: true });
  assert.equal(path, "rollouts/r/sequences?format=trl&roles=main%2Csummary%2Csubagent%2Cauxiliary&open=1");
});

test("some rollouts are a path each, a list is one", () => {
  assert.equal(paths({ ids: ["a", "b"] }, native).length, 2);
  const query = { state: "closed", group: "", label: ["split:train", "env:x"] };
  assert.deepEqual(paths({ query }, native), ["sequences?state=closed&group=&label=split%3Atrain&label=env%3Ax&format=native"]);
  assert.deepEqual(paths({ query: { state: null, group: null, label: [] } }, native), ["sequences?format=native"]);
});

test("files are named by what is in them", () => {
  assert.equal(fileName({ rollout: "r/1" }, native), "r_1.native.json");
  assert.equal(fileName({ ids: ["a", "b"] }, { format: "trl" }), "rollouts.trl.jsonl");
  assert.equal(fileName({ query: { group: "g7" }, count: 8 }, { format: "parquet" }), "g7.parquet");
});

test("what a tab can't hold is said before it is tried", () => {
  assert.equal(obstacle({ query: {}, count: MOST_AT_ONCE }, native), null);
  assert.match(obstacle({ query: {}, count: MOST_AT_ONCE + 1 }, native), /copy the command/);
  assert.match(obstacle({ ids: ["a", "b"] }, { format: "parquet" }), /one file/);
  assert.equal(obstacle({ ids: ["a"] }, { format: "parquet" }), null);
});

test("commands name the file of each rollout", () => {
  const said = commands({ ids: ["a", "b"] }, native, (path) => `curl '${path}'`);
  assert.equal(said, "curl 'rollouts/a/sequences?format=native' -o 'a.native.json'\ncurl 'rollouts/b/sequences?format=native' -o 'b.native.json'");
});
