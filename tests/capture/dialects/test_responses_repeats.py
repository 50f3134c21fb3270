"""A body read by what is new in it: that it is what the body says when it is read in whole."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.dialects.responses import Responses
from capture.dialects.responses_repeats import Item, runs
from capture.digests import digest
from capture.errors import ClientError

CODEX = {
    form["name"]: form["body"]
    for form in map(json.loads, Path("tests/fixtures/agents/codex.jsonl").read_text("utf-8").splitlines())
}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "d"}}
SPACE = {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]}
READ = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}


def said(role: str, text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text, **more}


OUT = {"type": "function_call_output", "call_id": "c", "output": "out"}

texts = st.sampled_from(["", "a", "é", "\n", "\U0001f600"])
# Ids of ours, which name their reply, of others, and none.
IDS = st.sampled_from(
    [{}, {"id": "msg_chatcmpl-1_0"}, {"id": "fc_chatcmpl-1_1"}, {"id": "fc_chatcmpl-2_0"}, {"id": "fc_7"}]
)


def thought(text: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}


ITEMS: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda role, text: said(role, text), st.sampled_from(["user", "developer", "system"]), texts),
    st.builds(lambda text, more: said("assistant", [{"type": "output_text", "text": text}], **more), texts, IDS),
    st.builds(lambda text, more: said("assistant", [{"type": "text", "text": text}] * 2, **more), texts, IDS),
    st.builds(thought, texts, IDS),
    st.builds(lambda more: {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}", **more}, IDS),
    st.builds(lambda more: {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x", **more}, IDS),
    st.sampled_from(
        [
            {"type": "function_call", "call_id": "c", "name": "read", "namespace": "files", "arguments": "{}"},
            OUT,
            {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "out"}]},
            {"type": "local_shell_call", "call_id": "e", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "e", "output": "out"},
            {"type": "reasoning", "id": "rs_chatcmpl-2_0", "summary": [], "encrypted_content": "x"},
            {"type": "web_search_call", "id": "ws"},
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]},
            {"role": "assistant", "content": "bare"},
        ]
    ),
)
ODD = st.sampled_from(
    [
        {"type": "item_reference", "id": "msg_chatcmpl-1_0"},
        {"id": "msg_chatcmpl-1_0"},
        {"type": "never_heard_of"},
        said("tool", "x"),
        said("user", 5),
        {"type": "function_call", "name": "read"},
        5,
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "instructions": st.sampled_from([None, "", "be brief", 5]),
    "tools": st.sampled_from(
        [None, [], [READ, PATCH], [SPACE, {"type": "web_search"}], [SPACE, READ], [{"type": "x"}], 5]
    ),
    "tool_choice": st.sampled_from(
        [
            "auto",
            "required",
            {"type": "function", "name": "read"},
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "read"}]},
        ]
    ),
    "stream": st.sampled_from([True, False, None, 5]),
    "text": st.sampled_from([{"verbosity": "low"}, {"format": {"type": "json_object"}}]),
    "include": st.just(["message.output_text.logprobs"]),
    "top_k": st.just(5),
    "previous_response_id": st.sampled_from([None, "chatcmpl-9"]),
    "metadata": st.sampled_from([{"a": 1}, {"a": float("nan")}, {"a": "\ud800"}]),
    "messages": st.just([]),
}


def outcome(read: Any, body: bytes) -> Any:
    try:
        request = read(body)
    except ClientError as error:
        return error.status, error.code, error.message, error.hint, error.param
    original = request.original
    told = original.repeated, original.logprobs, vars(original.tools)
    return msgspec.structs.replace(request, own=None, original=None), told


def whole(body: bytes) -> Any:
    return Responses()._read_whole(body, ())


@given(
    st.lists(ITEMS, max_size=9) | st.lists(ITEMS | ODD, max_size=4) | texts,
    st.fixed_dictionaries({}, optional=VALUES),
    st.booleans(),
)
@example(
    [thought("a", {}), {"type": "function_call_output", "call_id": "c", "output": ""}, thought("", {"id": "rs_x_0"})],
    {},
    False,
)
def test_what_is_read_apart_is_what_is_read_in_whole(given_: Any, values: dict[str, Any], spaces: bool) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    body = json.dumps({"model": "m", "input": given_, **values}, separators=separators).encode()
    expected = outcome(whole, body)
    # Of which nothing is known, and of which all is.
    assert outcome(Responses().read, body) == expected
    assert outcome(Responses().read, body) == expected


@given(st.lists(ITEMS, min_size=1, max_size=12), st.sampled_from([[READ, PATCH], [SPACE], []]))
def test_conversations_that_share_runs_under_other_tools_or_behind_others(items: list[Any], tools: list[Any]) -> None:
    for listed in (tools, [SPACE, READ]):
        for start in range(len(items)):
            body = json.dumps({"model": "m", "input": items[start:], "tools": listed}).encode()
            assert outcome(Responses().read, body) == outcome(whole, body)


@pytest.mark.parametrize("name", CODEX)
def test_an_agents_requests_are_read_apart(name: str) -> None:
    body = json.dumps(CODEX[name]).encode()
    assert outcome(Responses().read, body) == outcome(whole, body)
    own = Responses().read(body).own
    assert own is not None
    assert (own.key, list(map(json.loads, own.elements))) == ("input", CODEX[name]["input"])
    assert own.names == [digest(raw) for raw in own.elements]


def test_a_conversation_that_grows_is_read_by_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lest the equality above be that of the long way with itself."""
    monkeypatch.setattr(Responses, "_read_whole", None)
    items: list[Any] = [said("user", "do")]
    before: tuple[Any, ...] = ()
    for turn in range(4):
        id_ = f"chatcmpl-{turn}"
        items += [
            thought("so", {"id": f"rs_{id_}_0"}),
            {"type": "function_call", "id": f"fc_{id_}_1", "call_id": id_, "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": id_, "output": "out"},
        ]
        request = Responses().read(json.dumps({"model": "m", "input": items, "tools": [READ]}).encode())
        assert request.elements is not None
        assert len(request.elements) == 3 + 2 * turn
        assert all(a is b for a, b in zip(before, request.elements, strict=False))
        before = request.elements


def test_where_runs_begin() -> None:
    user, result, nothing = Item(kind="said"), Item(kind="result"), Item(kind="nothing")

    def reply(id_: str | None = None) -> Item:
        return Item(kind="reply", reply=id_)

    assert runs([]) == []
    assert runs([user, user, reply(), reply(), user]) == [0, 1, 2, 4]
    # A result ends a run where another reply follows, but not where the same one may go on.
    assert runs([reply(), result, reply(), result, nothing, reply()]) == [0, 2, 5]
    assert runs([reply("a"), result, reply("a"), result, reply("b")]) == [0, 4]
    assert runs([reply("a"), result, reply("b"), result, reply("a")]) == [0, 2, 4]
    # Without a result between them, order tells, and that is seen in the texts alone.
    assert runs([reply("a"), reply("b")]) == [0]
    assert runs([result, reply()]) == [0, 1]
