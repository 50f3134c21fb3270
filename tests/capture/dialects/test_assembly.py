"""A message put together from its deltas."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capture.dialects.assembly import Assembly


def assembled(*deltas: dict[str, Any]) -> dict[str, Any]:
    assembly = Assembly()
    for delta in deltas:
        assembly.add(delta)
    return assembly.message()


def call(
    index: int | None, id_: str | None = None, name: str | None = None, arguments: str | None = None
) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    part = {"index": index, "id": id_, "type": "function" if id_ else None, "function": function}
    return {"tool_calls": [{key: value for key, value in part.items() if value is not None}]}


ROLE = {"role": "assistant", "content": ""}


def test_text_in_pieces() -> None:
    assert assembled(ROLE, {"content": "He"}, {}, {"content": None}, {"content": "llo"}) == {
        "role": "assistant",
        "content": "Hello",
    }


def test_reasoning_keeps_the_name_that_the_engine_used() -> None:
    assert assembled(ROLE, {"reasoning": "a"}, {"reasoning": "b"}) == {
        "role": "assistant",
        "content": None,
        "reasoning": "ab",
    }
    assert assembled(ROLE, {"reasoning_content": "a"}, {"content": "b"})["reasoning_content"] == "a"
    assert assembled(ROLE, {"refusal": "I "}, {"refusal": "won't"})["refusal"] == "I won't"


def test_a_role_alone_is_an_empty_message() -> None:
    assembly = Assembly()
    assert assembly.empty
    assert not assembly.add(ROLE)
    assert assembly.empty
    assert assembly.message() == ROLE
    assert assembly.add({"content": "x"})
    assert not assembly.empty


def test_tool_calls_by_index() -> None:
    message = assembled(
        ROLE,
        call(0, "a", "add"),
        call(1, "b", "weather", '{"city":'),
        call(0, arguments='{"x"'),
        call(1, arguments='"Rome"}'),
        call(0, arguments=":1}"),
    )
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
    ]


def test_a_new_id_on_a_used_index_is_a_new_call() -> None:
    calls = assembled(call(0, "a", "f", "{}"), call(0, "b", "g", "{"), call(0, arguments="}"))["tool_calls"]
    assert [(c["id"], c["function"]) for c in calls] == [
        ("a", {"name": "f", "arguments": "{}"}),
        ("b", {"name": "g", "arguments": "{}"}),
    ]


def test_a_call_that_says_its_id_and_name_with_each_piece_is_one_call() -> None:
    (one,) = assembled(call(0, "a", "f", "{"), call(0, "a", "f", "}"))["tool_calls"]
    assert one == {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_calls_without_an_index() -> None:
    calls = assembled(call(None, "a", "f", "{"), call(None, arguments="}"), call(None, "b", "g", "{}"))["tool_calls"]
    assert [(c["id"], c["function"]["arguments"]) for c in calls] == [("a", "{}"), ("b", "{}")]


def test_an_id_that_comes_late_belongs_to_its_call() -> None:
    (one,) = assembled(call(0, None, "f", "{"), call(0, "a", arguments="}"))["tool_calls"]
    assert (one["id"], one["function"]["arguments"]) == ("a", "{}")


def test_fields_that_nobody_knows_stay() -> None:
    assert assembled(ROLE, {"audio": {"id": "1"}}, {"x": 3})["audio"] == {"id": "1"}
    assert assembled(ROLE, {"note": "a"}, {"note": "b"})["note"] == "ab"


def test_a_character_cut_between_two_chunks_is_whole_again() -> None:
    assert assembled({"content": "\ud83d"}, {"content": "\ude00"})["content"] == "😀"
    assert assembled({"content": "a\ud83d"}, {"content": "b"})["content"] == "a\ufffdb"


def test_odd_shapes_do_no_harm() -> None:
    assert (
        assembled({"tool_calls": [3, {"index": "x", "function": 4}], "role": 5, "content": [1]})["role"] == "assistant"
    )
    assert repr(Assembly()) == "<Assembly no text, 0 tool calls>"


@given(st.lists(st.text(max_size=4), max_size=8), st.lists(st.text(max_size=4), max_size=8))
def test_pieces_join_to_what_was_cut(content: list[str], arguments: list[str]) -> None:
    deltas = [{"content": piece} for piece in content] + [call(0, "a", "f")]
    deltas += [call(0, arguments=piece) for piece in arguments]
    message = assembled(*deltas)
    assert (message["content"] or "") == "".join(content)
    assert message["tool_calls"][0]["function"]["arguments"] == "".join(arguments)
