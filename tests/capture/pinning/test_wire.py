"""What an engine is asked, and how it is handed ids."""

from __future__ import annotations

import json

import numpy as np
import pytest

from capture.pinning.wire import WIRES, ScaleOut, Sglang, Tokenize, shape

FIELDS = {
    "model": b'"m"', "messages": b"[]", "tools": b'[{"type": "function"}]', "temperature": b"0.7", "stream": b"true",
    "chat_template_kwargs": b'{"enable_thinking": false}',
}  # fmt: skip
SAID = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("wire", [Tokenize(), ScaleOut()])
def test_a_rendering_has_what_it_depends_on_and_no_more(wire):
    body = json.loads(wire.body(FIELDS, SAID, closed=False))
    assert body == {
        "model": "m", "tools": [{"type": "function"}], "chat_template_kwargs": {"enable_thinking": False},
        "messages": SAID, "add_generation_prompt": True,
    }  # fmt: skip
    assert json.loads(wire.body(FIELDS, SAID, closed=True))["add_generation_prompt"] is False


def test_reasoning_effort_becomes_template_arguments_as_on_the_chat_route():
    for effort, thinks in (("none", False), ("high", True)):
        body = json.loads(Tokenize().body({"reasoning_effort": json.dumps(effort).encode()}, SAID, closed=False))
        assert body["chat_template_kwargs"] == {"enable_thinking": thinks, "reasoning_effort": effort}
    own = {**FIELDS, "reasoning_effort": b'"high"'}
    assert json.loads(Tokenize().body(own, SAID, closed=False))["chat_template_kwargs"] == {
        "enable_thinking": False,
        "reasoning_effort": "high",
    }
    assert json.loads(ScaleOut().body(own, SAID, closed=False))["reasoning_effort"] == "high"


def test_reasoning_content_is_given_the_name_that_is_rendered():
    said = [*SAID, {"role": "assistant", "content": "a", "reasoning_content": "so"}]
    assert json.loads(Tokenize().body({}, said, closed=False))["messages"][1] == {
        "role": "assistant",
        "content": "a",
        "reasoning": "so",
    }
    assert said[1]["reasoning_content"] == "so"


def test_answers_are_read():
    assert Tokenize().ids(b'{"count": 2, "max_model_len": 9, "tokens": [1, 2]}').tolist() == [1, 2]
    assert ScaleOut().ids(b'{"request_id": "x", "token_ids": [3]}').tolist() == [3]
    with pytest.raises(ValueError, match="tokens"):
        Tokenize().ids(b"{}")


@pytest.mark.parametrize("wire", [Tokenize(), ScaleOut()])
def test_ids_go_into_the_field_that_vllm_reads(wire):
    pinned = wire.pin(np.array([1, 2], np.int32))
    assert {name: json.loads(value) for name, value in pinned.items()} == {
        "kv_transfer_params": {"prompt_token_ids": [1, 2]}
    }


def test_shapes_are_equal_where_the_rendering_is():
    assert shape(FIELDS) == shape({**FIELDS, "temperature": b"1", "messages": b"[1]", "tool_choice": b'"auto"'})
    assert shape({**FIELDS, "tools": b"[]"}) == shape({name: v for name, v in FIELDS.items() if name != "tools"})
    assert shape({"tools": b'[{"a": 1, "b": 2}]'}) == shape({"tools": b'[ {"b":2,"a":1} ]'})
    for other in (
        {"model": b'"n"'}, {"tools": b"[]"}, {"chat_template_kwargs": b"{}"}, {"reasoning_effort": b'"low"'},
        {"tool_choice": b'"none"'}, {"tool_choice": b'{"type": "function", "function": {"name": "f"}}'},
    ):  # fmt: skip
        assert shape({**FIELDS, **other}) != shape(FIELDS)


def test_sglang_renders_as_for_a_chat_unless_closed():
    fields = {
        "model": b'"m"', "tools": b"[1]", "reasoning_effort": b'"low"', "tool_choice": b'"none"', "temperature": b"1",
    }  # fmt: skip
    messages = [{"role": "user", "content": "hi"}]
    asked = json.loads(Sglang().body(fields, messages, closed=False))
    assert asked == {"model": "m", "tools": [1], "reasoning_effort": "low", "tool_choice": "none", "messages": messages}
    assert json.loads(Sglang().body(fields, messages, closed=True))["add_generation_prompt"] is False
    assert Sglang().ids(b'{"tokens": [1, 2], "count": 2}').tolist() == [1, 2]


def test_sglang_takes_ids_and_says_what_it_had():
    one = Sglang()
    assert one.pin(np.array([1, 2], np.int32)) == {"input_ids": b"[1,2]"}
    # A stream is refused with the field of whole replies.
    assert "return_prompt_token_ids" not in one.asks(streamed=True)
    assert one.echo(b'{"choices": [{"index": 0, "prompt_token_ids": [1, 2]}]}') == [1, 2]
    assert one.echo(b'{"choices": [], "sglext": {"input_ids": [3]}}') == [3]
    assert one.echo(b'{"choices": [{"delta": {}}]}') is None
    assert one.echo(b'{"choices": []}') is None


def test_each_kind_of_engine_that_can_be_pinned_has_its_ways():
    assert set(WIRES) == {"vllm", "scripted", "sglang"}
    assert [wire.path for wire in WIRES["vllm"]] == ["/v1/chat/completions/render", "/tokenize"]
