"""A body read by what is new in it: that it is what the body says when it is read in whole."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.dialects import gemini, gemini_repeats
from capture.dialects.base import Target
from capture.dialects.gemini import Gemini
from capture.dialects.gemini_content import Calls
from capture.dialects.gemini_fields import Node
from capture.dialects.gemini_repeats import Noted
from capture.dialects.gemini_signature import sign
from capture.digests import digest
from capture.errors import ClientError

TARGET = Target(model="m", streamed=True)
PICTURE = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}


def call(id_: str | None, name: str = "f") -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"b": 1.0, "a": []}} | ({} if id_ is None else {"id": id_})}


def result(id_: str | None, **more: Any) -> dict[str, Any]:
    return {
        "functionResponse": {"name": "f", "response": {"output": "x"}, **more} | ({} if id_ is None else {"id": id_})
    }


texts = st.sampled_from(["", "a", "é", "\n", "\U0001f600"])
ids = st.sampled_from(["c1", "c2", "c1", "c2", None, ""])
PARTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda text: {"text": text}, texts),
    st.builds(lambda text: {"text": text, "thought": True}, texts),
    st.builds(lambda text: {"text": text, "thoughtSignature": sign("so")}, texts),
    st.builds(call, ids),
    st.builds(result, ids),
    st.sampled_from(
        [
            PICTURE,
            {"inline_data": {"mime_type": "image/png", "data": "aGk="}},
            {"fileData": {"mimeType": "image/png", "fileUri": "https://x/y.png"}},
            result("c1", parts=[PICTURE]),
            {"text": "v", "videoMetadata": {}},
            {"neverHeardOf": 1},
            {"executableCode": {}},
            {"text": 5},
            {},
            5,
        ]
    ),
)
plain = st.builds(lambda text: {"text": text}, texts)
CONTENTS = st.builds(
    lambda role, parts: {"role": role, "parts": parts},
    st.sampled_from(["user", "model", "user", "model", "function", None, "else"]),
    st.lists(plain | PARTS, max_size=3),
)
AGENTS: st.SearchStrategy[list[Any]] = st.lists(
    st.sampled_from(
        [
            [{"role": "user", "parts": [{"text": "do"}]}],
            [{"role": "model", "parts": [{"text": "I "}]}, {"role": "model", "parts": [{"text": "do"}]}],
            [{"role": "model", "parts": [call("c1"), call("c2")]}, {"role": "user", "parts": [result("c2")]}],
            [{"role": "model", "parts": [call("c3")]}, {"role": "user", "parts": [result("c3"), result("c4")]}],
            [{"role": "model", "parts": [call(None), call(None)]}, {"role": "user", "parts": [result("x")]}],
            [{"role": "model", "parts": [call(None, "g")]}, {"role": "user", "parts": [result(None), result("c2")]}],
        ]
    ),
    max_size=4,
).map(lambda turns: [content for turn in turns for content in turn])
DECLARED = {"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}, "response": {}}]}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "systemInstruction": st.sampled_from(
        [None, {"parts": [{"text": "s"}]}, {"parts": {"text": "s"}}, {"parts": [call("a")]}]
    ),
    "system_instruction": st.just({"parts": [{"text": "t"}]}),
    "tools": st.sampled_from([None, [], DECLARED, [DECLARED, {"googleSearch": {}}], [5]]),
    "toolConfig": st.sampled_from(
        [{"functionCallingConfig": {"mode": "ANY"}}, {"functionCallingConfig": {"allowedFunctionNames": ["g"]}}, 5]
    ),
    "generationConfig": st.sampled_from(
        [{"temperature": 0.5, "thinkingConfig": {"includeThoughts": True}}, {"maxOutputTokens": 5, "other": 1}]
    ),
    "seed_of": st.sampled_from([1, float("nan"), "\ud800"]),
}


def outcome(read: Any, body: bytes, target: Target = TARGET) -> Any:
    try:
        return msgspec.structs.replace(read(body, target=target), own=None)
    except ClientError as error:
        return error.status, error.code, error.message, error.hint, error.param


@given(
    st.lists(CONTENTS, max_size=4) | AGENTS | st.just({"parts": [{"text": "x"}]}),
    st.fixed_dictionaries({}, optional=VALUES),
    st.booleans(),
)
@example([{"role": "user", "parts": [result("c1")]}], {}, False)
def test_what_is_read_apart_is_what_is_read_in_whole(said: Any, values: dict[str, Any], spaces: bool) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    body = json.dumps({"contents": said, **values}, separators=separators).encode()
    whole = outcome(gemini._read_whole, body)
    # Of which nothing is known, and of which all is.
    assert outcome(Gemini().read, body) == whole
    assert outcome(Gemini().read, body) == whole


def test_a_conversation_that_grows_is_read_by_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lest the equality above be that of the long way with itself."""
    monkeypatch.setattr(gemini, "_read_whole", None)
    said: list[Any] = [
        {"role": "user", "parts": [{"text": "do"}]},
        {"role": "model", "parts": [{"text": "I"}]},
        {"role": "model", "parts": [call("c1")]},
        {"role": "user", "parts": [result("c1")]},
    ]
    first = Gemini().read(json.dumps({"contents": said}).encode(), target=TARGET)
    said += [{"role": "model", "parts": [{"text": "Done."}]}, {"role": "user", "parts": [{"text": "more"}]}]
    second = Gemini().read(json.dumps({"contents": said}).encode(), target=TARGET)
    assert first.elements is not None
    assert second.elements is not None
    assert [element.message.role for element in first.elements] == ["user", "assistant", "tool"]
    assert all(a is b for a, b in zip(first.elements, second.elements, strict=False))
    assert second.own is not None
    assert (second.own.key, list(map(json.loads, second.own.elements))) == ("contents", said)
    assert second.own.names == [digest(raw) for raw in second.own.elements]


def test_calls_without_an_id_are_kept_with_what_came_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gemini-cli's subagents have them: the calls' ids are gone, and the results' own are nobody's."""
    said: list[Any] = [{"role": "user", "parts": [{"text": "do"}]}]
    for turn in range(4):
        said += [{"role": "model", "parts": [call(None), call(None, "g")]}]
        said += [{"role": "user", "parts": [result(f"own{turn}"), result(None, name="g")]}]
    body = json.dumps({"contents": said}).encode()
    whole = outcome(gemini._read_whole, body)
    monkeypatch.setattr(gemini, "_read_whole", None)
    for _ in range(2):
        assert outcome(Gemini().read, body) == whole
    monkeypatch.setattr(gemini_repeats, "_said", None)
    request = Gemini().read(body, target=TARGET)
    assert request.elements is not None
    answered = [element.message.tool_call_id for element in request.elements if element.message.role == "tool"]
    made = [one.id for element in request.elements for one in element.message.tool_calls]
    assert answered == made
    assert len(set(made)) == 8


def test_calls_go_on_from_those_before() -> None:
    before = Calls()
    before.go_on([("a", "f"), ("b", "f"), ("c", "g")], ["b"])
    assert before.state(["a", "x"]) == (3, (("a", "f"), ("c", "g")), (True, False))
    noted = Noted(before)
    assert noted.answer(Node({"name": "f"}, "")) == "a"
    assert noted.answer(Node({"name": "g", "id": "c"}, "")) == "c"
    noted.call(Node({"name": "h"}, ""))
    assert (noted.given, noted.answered, noted.is_free) == (["", "c"], ["a", "c"], False)
    assert before.state([]) == (3, (("a", "f"), ("c", "g")), ())


def test_what_a_result_answers_is_seen_in_its_id_alone_where_that_is_known() -> None:
    alone = Noted()
    assert alone.answer(Node({"name": "f", "id": "c"}, "")) == "c"
    alone.call(Node({"name": "f", "id": "d"}, ""))
    assert (alone.called, alone.answered, alone.is_free) == ([("d", "f")], ["c"], True)
