"""Replies of the Responses dialect, written down like packet captures, and judged by OpenAI's own types."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from capture import sse
from capture.dialects.base import Translator
from capture.dialects.responses_events import ResponsesTranslator
from capture.engines.vllm import Vllm
from capture.recorder import Recorder
from tests.capture.dialects.responses_wire import (
    CUSTOM,
    FUNCTION,
    NAMESPACE,
    USAGE,
    call,
    chunk,
    events,
    read,
    told,
    translator,
    whole,
)

WIRE = Path(__file__).parents[2] / "fixtures" / "vllm_wire"
START = chunk({"role": "assistant", "content": ""})
END = [chunk({}, "stop"), chunk(usage=USAGE), b"[DONE]"]

_event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def stream(made: Translator, *data: bytes) -> bytes:
    """Translate a stream that ends cleanly."""
    return b"".join([*map(made.event, data), made.end()])


def judged(out: bytes) -> dict[str, Any]:
    """Check a stream as the SDK reads it: types, numbers, and its own assembling; return the last response."""
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    found = events(out)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        _event.validate_python(event)
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))
    last = found[-1]["response"]
    assert isinstance(last, dict)
    Response.model_validate(last)
    return last


def test_text_passes_as_it_comes() -> None:
    made = translator(stream=True)
    assert told(made.event(START)) == ["created", "in_progress"]
    assert told(made.event(chunk({"content": "Go"}))) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta Go",
    ]
    assert told(made.event(chunk({"content": "od"}))) == ["output_text.delta od"]
    assert made.event(b"") == made.event(chunk({})) == b""
    assert told(made.event(chunk({}, "stop"))) == ["output_text.done Good", "content_part.done", "output_item.done"]
    assert told(made.event(chunk(usage=USAGE))) == ["completed"]
    assert made.event(b"[DONE]") == made.end() == b""


def test_reasoning_then_text_then_calls() -> None:
    made = translator(stream=True, tools=[FUNCTION, NAMESPACE])
    out = stream(
        made,
        START,
        chunk({"reasoning": "Hm"}),
        chunk({"reasoning_content": "m."}),
        chunk({"content": "I look."}),
        chunk(call(0, id="c0", name="look")),
        chunk(call(0, arguments='{ "a"')),
        chunk(call(0, arguments=":1}")),
        chunk(call(1, id="c1", name="agents__spawn", arguments="{}")),
        chunk({}, "tool_calls"),
        chunk(usage=USAGE),
        b"[DONE]",
    )
    assert told(out) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta Hm",
        "reasoning_text.delta m.",
        "reasoning_text.done Hmm.",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta I look.",
        "output_text.done I look.",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        'function_call_arguments.delta { "a"',
        "function_call_arguments.delta :1}",
        'function_call_arguments.done { "a":1}',
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta {}",
        "function_call_arguments.done {}",
        "output_item.done",
        "completed",
    ]
    assert judged(out)["output"] == [
        {
            "id": "rs_chatcmpl-1_0",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hmm."}],
            "encrypted_content": None,
            "status": "completed",
        },
        {
            "id": "msg_chatcmpl-1_1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
            "status": "completed",
        },
        {
            "id": "fc_chatcmpl-1_2",
            "type": "function_call",
            "call_id": "c0",
            "name": "look",
            "arguments": '{ "a":1}',
            "status": "completed",
        },
        {
            "id": "fc_chatcmpl-1_3",
            "type": "function_call",
            "call_id": "c1",
            "name": "spawn",
            "arguments": "{}",
            "status": "completed",
            "namespace": "agents",
        },
    ]


def test_a_custom_tools_text_passes_as_it_comes() -> None:
    made = translator(stream=True, tools=[CUSTOM])
    out = stream(
        made,
        START,
        chunk(call(0, id="c0", name="patch", arguments='{"in')),
        chunk(call(0, arguments='put": "*** Begin\\')),
        chunk(call(0, arguments='n+a\\"')),
        chunk(call(0, arguments='"}')),
        chunk({}, "tool_calls"),
        b"[DONE]",
    )
    assert told(out)[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta *** Begin",
        'custom_tool_call_input.delta \n+a"',
        'custom_tool_call_input.done *** Begin\n+a"',
        "output_item.done",
        "completed",
    ]
    (item,) = judged(out)["output"]
    assert (item["type"], item["call_id"], item["name"]) == ("custom_tool_call", "c0", "patch")
    assert item["id"] == "ctc_chatcmpl-1_0"


def test_a_response_repeats_its_request_and_says_its_usage() -> None:
    asked = {
        "instructions": "Be kind.",
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "tools": [FUNCTION],
        "store": False,
    }
    last = judged(stream(translator(stream=True, **asked), START, chunk({"content": "x"}), *END))
    assert {name: last[name] for name in asked} == asked
    assert (last["id"], last["created_at"], last["model"], last["status"]) == ("chatcmpl-1", 7, "m", "completed")
    assert last["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }


@pytest.mark.parametrize(
    ("finish", "status", "details", "item"),
    [
        ("stop", "completed", None, "completed"),
        ("tool_calls", "completed", None, "completed"),
        ("surprise", "completed", None, "completed"),
        ("length", "incomplete", {"reason": "max_output_tokens"}, "incomplete"),
        ("content_filter", "incomplete", {"reason": "content_filter"}, "incomplete"),
        ("abort", "failed", None, "incomplete"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_finish_becomes_a_status(
    finish: str, status: str, details: dict[str, str] | None, item: str, streamed: bool
) -> None:
    made = translator(stream=streamed)
    if streamed:
        out = stream(made, START, chunk({"content": "x"}), chunk({}, finish), chunk(usage=USAGE), b"[DONE]")
        assert events(out)[-1]["type"] == f"response.{status}"
        last = judged(out)
    else:
        last = json.loads(made.whole(whole({"role": "assistant", "content": "x"}, finish)))
    assert (last["status"], last["incomplete_details"]) == (status, details)
    assert (last["error"] is None) is (status != "failed")
    assert [one["status"] for one in last["output"]] == [item]


@pytest.mark.parametrize("ending", [[], [b"[DONE]"]])
def test_usage_may_not_come(ending: list[bytes]) -> None:
    out = stream(translator(stream=True), START, chunk({"content": "x"}, "stop"), *ending)
    assert told(out)[-1] == "completed"
    assert judged(out)["usage"] is None


def test_usage_on_every_chunk_ends_nothing_early() -> None:
    made = translator(stream=True)
    assert "completed" not in told(made.event(chunk({"content": "x"}, "stop", usage=USAGE)))
    assert told(made.event(b"[DONE]")) == ["completed"]


def test_without_a_finish_there_is_no_end() -> None:
    made = translator(stream=True)
    out = stream(made, START, chunk({"content": "half"}), b"[DONE]")
    assert told(out)[-1] == "output_text.delta half"
    reply = json.loads(made.reply() or b"")
    assert reply["status"] == "in_progress"
    assert reply["output"][0]["content"][0]["text"] == "half"


def test_an_empty_reply_is_a_reply() -> None:
    last = judged(stream(translator(stream=True), START, *END))
    assert (last["status"], last["output"]) == ("completed", [])


def test_an_error_in_the_stream_is_told_and_ends_as_failed() -> None:
    made = translator(stream=True)
    made.event(START)
    made.event(chunk({"content": "half"}))
    out = made.event(b'{"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}')
    assert events(out) == [
        {"type": "error", "code": None, "message": "engine died", "param": None, "sequence_number": 5}
    ]
    assert made.event(chunk({"content": "more"})) == b""
    (failed,) = events(made.event(b"[DONE]"))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "engine died"}
    assert failed["response"]["output"][0]["status"] == "in_progress"
    assert made.end() == b""


def test_an_error_before_all_else_is_told_alone() -> None:
    made = translator(stream=True)
    assert told(stream(made, b'{"error": "engine died"}', b"[DONE]")) == ["error"]
    assert made.reply() is None


@pytest.mark.parametrize("data", [b"{", b"[]", b"3", b'"text"'])
def test_what_is_no_chunk_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        translator().event(data)
    with pytest.raises(ValueError, match="no JSON object"):
        translator().whole(data)


@pytest.mark.parametrize("body", [b"{}", b'{"choices": []}', b'{"choices": [{"message": null}]}', b'{"choices": {}}'])
def test_a_whole_reply_without_a_message_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="message"):
        translator().whole(body)


def test_what_is_no_strict_json_is_mended() -> None:
    made = translator(stream=True)
    made.event(START)
    out = made.event(rb'{"choices": [{"index": 0, "delta": {"content": "\ud83d"}, "logprobs": NaN}]}')
    assert told(out)[-1] == "output_text.delta �"


def test_an_engines_refusal_keeps_its_words() -> None:
    body = {
        "error": {
            "message": "the maximum context length is 9",
            "type": "BadRequestError",
            "param": "messages",
            "code": 400,
        }
    }
    assert json.loads(translator().failed(400, json.dumps(body).encode())) == {
        "error": {
            "message": "the maximum context length is 9",
            "type": "BadRequestError",
            "param": "input",
            "code": "context_length_exceeded",
        }
    }


def pieces() -> st.SearchStrategy[list[bytes]]:
    """Chat streams of every shape: reasoning, text and calls cut anywhere."""
    words = st.lists(st.text(max_size=4), max_size=3)

    def made(reasoning: list[str], text: list[str], calls: list[tuple[str, list[str]]], finish: str) -> list[bytes]:
        deltas = [{"reasoning": one} for one in reasoning] + [{"content": one} for one in text]
        for i, (name, arguments) in enumerate(calls):
            deltas += [call(i, id=f"c{i}", name=name), *(call(i, arguments=one) for one in arguments)]
        return [START, *map(chunk, deltas), chunk({}, finish), chunk(usage=USAGE), b"[DONE]"]

    names = st.sampled_from(["look", "patch", "agents__spawn", "unheard_of"])
    arguments = words | st.just(['{"input": "a', '\\u00e9"}'])
    return st.builds(
        made, words, words, st.lists(st.tuples(names, arguments), max_size=3), st.sampled_from(["stop", "length"])
    )


@settings(deadline=None)
@given(pieces(), st.data())
def test_streamed_and_whole_are_equal_and_every_cut_is_a_beginning(data: list[bytes], draw: Any) -> None:
    asked: dict[str, Any] = {"tools": [FUNCTION, CUSTOM, NAMESPACE]}
    made = translator(stream=True, **asked)
    last = judged(stream(made, *data))
    assert json.loads(made.reply() or b"") == last
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    finish = "stop"
    for one in map(json.loads, data[:-1]):
        for choice in one["choices"]:
            finish = choice["finish_reason"] or finish
            for name in ("content", "reasoning"):
                message[name] += choice["delta"].get(name, "")
            for piece in choice["delta"].get("tool_calls", []):
                if "id" in piece:
                    message["tool_calls"].append({"id": piece["id"], "function": {"name": "", "arguments": ""}})
                for name, value in piece["function"].items():
                    message["tool_calls"][-1]["function"][name] += value
    assert json.loads(translator(**asked).whole(whole(message, finish))) == last
    cut = draw.draw(st.integers(0, len(data)))
    half = translator(stream=True, **asked)
    begun = b"".join(map(half.event, data[:cut]))
    assert stream(translator(stream=True, **asked), *data).startswith(begun)
    assert (half.reply() is None) is (begun == b"")
    if begun:
        Response.model_validate_json(half.reply() or b"")


WORDS = ("index", "delta", "content", "reasoning", "refusal", "tool_calls", "id", "function", "name", "arguments")
MORE_WORDS = ("finish_reason", "logprobs", "token", "bytes", "top_logprobs", "message", "error", "prompt_tokens")
NAMES = st.sampled_from(WORDS + MORE_WORDS)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=10,
)
CHUNKS = st.dictionaries(st.sampled_from(["id", "created", "model", "choices", "usage", "error"]), ODD)
CHOICES = st.builds(lambda head, choices: {**head, "choices": choices}, CHUNKS, st.lists(ODD, max_size=2))


@settings(deadline=None, max_examples=200)
@given(st.lists(CHUNKS | CHOICES, max_size=5))
def test_whatever_an_engine_sends_is_told_or_is_no_reply(chunks: list[Any]) -> None:
    made = translator(stream=True, tools=[CUSTOM], include=["message.output_text.logprobs"])
    out = b""
    for one in chunks:
        with contextlib.suppress(ValueError):
            out += made.event(json.dumps(one).encode())
        with contextlib.suppress(ValueError):
            Response.model_validate_json(translator().whole(json.dumps(one).encode()))
    found = events(out + made.end())
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    if made.reply() is not None:
        json.loads(made.reply() or b"")


def recorded(pattern: str) -> list[Any]:
    return [pytest.param(json.loads(path.read_text("utf-8")), id=path.stem) for path in sorted(WIRE.glob(pattern))]


@pytest.mark.parametrize(
    "exchange",
    [one for pattern in ("0[1-4]*", "06*", "07*", "08*", "10*", "20*", "21*", "22*") for one in recorded(pattern)],
)
def test_what_a_real_vllm_sends_is_a_response(exchange: dict[str, Any]) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    made = translator(tools=[tool], include=["message.output_text.logprobs"], stream="events" in exchange)
    if "events" in exchange:
        decoded = [event if isinstance(event, str) else json.dumps(event) for event in exchange["events"]]
        out = stream(made, *(event.encode() for event in decoded))
        if exchange["cut"]:
            # The recording was: what there is must be right, and have no end.
            assert made.reply() is not None
            assert not {"completed", "incomplete"} & set(told(out))
            return
        last = judged(out)
    else:
        last = json.loads(made.whole(json.dumps(exchange["body"]).encode()))
        Response.model_validate(last)
    assert last["status"] in ("completed", "incomplete")


def test_a_reply_leaves_as_it_comes_and_its_end_after_the_record() -> None:
    request = read(stream=True, tools=[FUNCTION])
    reader = Vllm().reader(request, model="asked")
    made = ResponsesTranslator(request.original)
    recorder = Recorder(request, reader, translator=made)
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    sent = [START, chunk({"content": "a"}, logprobs=logprobs), *END]
    recorder.answered(200)
    relayed = [told(recorder.feed(sse.encode(data), 1.0)) for data in sent]
    recorder.eof()
    assert relayed == [
        ["created", "in_progress"],
        ["output_item.added", "content_part.added", "output_text.delta a"],
        [],
        [],
        [],
    ]
    assert recorder.clean
    held = recorder.release()
    assert told(held) == ["output_text.done a", "content_part.done", "output_item.done", "completed"]
    last = events(held)[-1]["response"]
    assert (last["model"], last["usage"]["output_tokens"]) == ("asked", 5)
    assert json.loads(made.reply() or b"") == last


@pytest.mark.parametrize("relay_abort", [False, True])
def test_an_aborted_reply_has_no_end_unless_the_operator_wants_it(relay_abort: bool) -> None:
    request = read(stream=True)
    made = ResponsesTranslator(request.original)
    recorder = Recorder(request, Vllm().reader(request), translator=made, relay_abort=relay_abort)
    recorder.answered(200)
    for data in (START, chunk({"content": "half"}), chunk({}, "abort"), chunk(usage=USAGE), b"[DONE]"):
        recorder.feed(sse.encode(data), 1.0)
    recorder.eof()
    assert recorder.clean is relay_abort
    assert told(recorder.release())[-1:] == (["failed"] if relay_abort else [])


def test_the_bytes_are_server_sent_events() -> None:
    out = translator(stream=True).event(START)
    assert [event.name for event in sse.Decoder().feed(out)] == ["response.created", "response.in_progress"]
    assert out.startswith(b"event: response.created\ndata: {")
