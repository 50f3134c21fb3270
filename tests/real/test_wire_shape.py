"""The comparison of shapes finds what differs and nothing else."""

import json
from typing import Any

import pytest

from tests.real.wire_shape import Exchange, differences, events


def whole(reply: dict[str, Any], *, status: int = 200) -> Exchange:
    return Exchange(status=status, content_type="application/json", body=json.dumps(reply).encode())


def stream(*chunks: dict[str, Any]) -> Exchange:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return Exchange(status=200, content_type="text/event-stream", body="".join([*lines, "data: [DONE]\n\n"]).encode())


def chunk(*, index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


ROLE = chunk(role="assistant", content="")


def test_values_and_lengths_are_not_shape():
    one = whole({"id": "a", "usage": {"n": 1}, "ids": [1, 2, 3]})
    other = whole({"usage": {"n": 99}, "ids": [7], "id": "b"})
    assert differences(one, other) == []


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        ({"a": 1}, {"a": 1.5}, "reply a: vllm integer; scripted number"),
        ({"a": None}, {"a": "x"}, "reply a: vllm null; scripted string"),
        ({"a": None}, {}, "reply a: vllm null; scripted absent"),
        ({}, {"a": True}, "reply a: vllm absent; scripted boolean"),
        ({"a": []}, {"a": [1]}, "reply a: vllm empty array; scripted array"),
        ({"a": {"b": 1}}, {"a": None}, "reply a: vllm object; scripted null"),
        ({"a": [{"b": 1}, {}]}, {"a": [{"b": 1}]}, "reply a[].b: vllm absent|integer; scripted integer"),
        ({"role": "user"}, {"role": "assistant"}, 'reply role: vllm "user"; scripted "assistant"'),
    ],
)
def test_each_difference_is_one_line(one, other, line):
    assert differences(whole(one), whole(other)) == [line]


def test_a_map_from_token_ids_has_no_keys_of_its_own():
    one, other = whole({"a": [{"151644": {"rank": 1}}]}), whole({"a": [{"7": {"rank": 2}, "9": {"rank": 3}}]})
    assert differences(one, other) == []
    other = whole({"a": [{"7": {"rank": None}}]})
    assert differences(one, other) == ["reply a[][].rank: vllm integer; scripted null"]


def test_a_key_below_a_parent_that_differs_is_still_found():
    assert differences(whole({"a": [{"b": 1}]}), whole({"a": [None, {}]})) == [
        "reply a[]: vllm object; scripted null|object",
        "reply a[].b: vllm integer; scripted absent",
    ]


def test_the_status_and_the_content_type_are_shape():
    assert differences(whole({}, status=400), stream()) == [
        "status: vllm 400; scripted 200",
        "content type: vllm application/json; scripted text/event-stream",
        "order of choice 0: vllm reply; scripted [DONE]",
    ]


def test_runs_of_one_kind_count_once():
    one = stream(ROLE, chunk(content="a"), chunk(content="b"), chunk(finish="stop"))
    other = stream(ROLE, chunk(content="a"), chunk(finish="stop"))
    assert differences(one, other) == []


def test_an_event_out_of_order_is_found():
    one = stream(ROLE, chunk(reasoning="a"), chunk(content="b"))
    other = stream(ROLE, chunk(content="b"), chunk(reasoning="a"))
    assert differences(one, other) == [
        "order of choice 0: vllm role reasoning content [DONE]; scripted role content reasoning [DONE]"
    ]


def test_another_finish_is_found():
    assert differences(stream(chunk(content="b", finish="length")), stream(chunk(content="b", finish="stop"))) == [
        "order of choice 0: vllm content+length [DONE]; scripted content+stop [DONE]"
    ]


def test_choices_may_interleave_as_they_like():
    first, second = chunk(content="a"), chunk(content="b", index=1)
    assert differences(stream(first, second, first), stream(first, first, second)) == []
    assert differences(stream(first, second), stream(first)) == [
        "order of choice 1: vllm content [DONE]; scripted absent"
    ]


def test_a_key_that_some_chunks_lack_is_found():
    with_ids = {**chunk(content="a"), "token_ids": [1]}
    assert differences(stream(with_ids, with_ids), stream(with_ids, chunk(content="a"))) == [
        "content token_ids: vllm array; scripted absent|array"
    ]


def test_tool_calls_are_a_name_then_arguments():
    name = chunk(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}])
    arguments = chunk(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])
    kinds = [kind for kind, _ in events(stream(ROLE, chunk(), name, arguments, chunk(finish="tool_calls")))]
    assert kinds == ["role", "empty", "tool", "arguments", "empty+tool_calls", "[DONE]"]


def test_anything_but_data_lines_is_refused():
    broken = Exchange(status=200, content_type="text/event-stream", body=b": hello\n\ndata: [DONE]\n\n")
    with pytest.raises(ValueError, match="not one data line"):
        events(broken)
