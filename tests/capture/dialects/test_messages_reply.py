"""Chat streams in, Anthropic events out, read like a packet capture; and whole replies beside them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import sse
from capture.dialects.messages_blocks import signature
from capture.dialects.messages_content import UNPARSED
from capture.dialects.messages_reply import MessagesTranslator, usage_of

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
ROLE = {"role": "assistant", "content": ""}
START = {
    "type": "message_start",
    "message": {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    },
}
STOP = {"type": "message_stop"}
USAGE = {"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **choice: Any) -> bytes:
    one = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish, **choice}
    return json.dumps({**HEAD, "choices": [one]}).encode()


def counted(**usage: Any) -> bytes:
    return json.dumps({**HEAD, "choices": [], "usage": {**USAGE, **usage}}).encode()


DONE = b"[DONE]"


def tool(index: int | None, id_: str | None = None, name: str | None = None, arguments: str | None = None) -> bytes:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    part = {"index": index, "id": id_, "type": "function" if id_ else None, "function": function}
    return chunk({"tool_calls": [{key: value for key, value in part.items() if value is not None}]})


def events(stream: bytes) -> list[dict[str, Any]]:
    decoder = sse.Decoder()
    found = []
    for event in decoder.feed(stream):
        assert event.data is not None
        data = json.loads(event.data)
        assert event.name == data["type"]
        found.append(data)
    assert decoder.rest == b""
    return found


def opens(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
    }
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **empty[kind], **fields}}


def calls(index: int, id_: str, name: str) -> dict[str, Any]:
    return opens(index, "tool_use", id=id_, name=name)


def gives(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def args(index: int, text: str) -> dict[str, Any]:
    return gives(index, "input_json_delta", partial_json=text)


def closes(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ends(reason: str | None, *, stop: str | None = None, **usage: int) -> dict[str, Any]:
    usage = usage or {"input_tokens": 14, "output_tokens": 3}
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": usage}


def play(*steps: tuple[bytes, list[dict[str, Any]]]) -> MessagesTranslator:
    """Feed each chunk and compare what comes of it at once; then end the stream, which gives nothing more."""
    translator = MessagesTranslator()
    for data, expected in steps:
        assert events(translator.event(data)) == expected, data
    assert translator.end() == b""
    return translator


def reply(translator: MessagesTranslator) -> dict[str, Any]:
    raw = translator.reply()
    assert raw is not None
    found: dict[str, Any] = json.loads(raw)
    return found


def assembled(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a message together as a client does: an oracle of its own."""
    message: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    for event in stream:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1
            block, delta = message["content"][-1], event["delta"]
            if delta["type"] == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
                continue
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[delta["type"]]
            block[name] += delta[name]
        elif event["type"] == "content_block_stop":
            if event["index"] in arguments:
                message["content"][event["index"]]["input"] = json.loads(arguments[event["index"]])
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    return message


def test_text() -> None:
    translator = play(
        (chunk(ROLE), [START]),
        (chunk({"content": "He"}), [opens(0, "text"), gives(0, "text_delta", text="He")]),
        (chunk({"content": "llo"}), [gives(0, "text_delta", text="llo")]),
        (chunk({}, "stop", stop_reason=None), [closes(0)]),
        (counted(), [ends("end_turn"), STOP]),
        (DONE, []),
    )
    assert reply(translator) == {
        **START["message"],  # type: ignore[dict-item]  # an object, as written above
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 14, "output_tokens": 3},
    }


def test_thinking_then_text() -> None:
    signed = signature("be cause")
    translator = play(
        (chunk(ROLE), [START]),
        (chunk({"reasoning": "be"}), [opens(0, "thinking"), gives(0, "thinking_delta", thinking="be")]),
        (chunk({"reasoning": " cause"}), [gives(0, "thinking_delta", thinking=" cause")]),
        (
            chunk({"content": "so"}),
            [
                gives(0, "signature_delta", signature=signed),
                closes(0),
                opens(1, "text"),
                gives(1, "text_delta", text="so"),
            ],
        ),
        (chunk({}, "length"), [closes(1)]),
        (counted(), [ends("max_tokens"), STOP]),
        (DONE, []),
    )
    assert reply(translator)["content"] == [
        {"type": "thinking", "thinking": "be cause", "signature": signed},
        {"type": "text", "text": "so"},
    ]


def test_thinking_alone_is_signed_at_the_finish() -> None:
    play(
        (chunk({"reasoning_content": "a"}), [START, opens(0, "thinking"), gives(0, "thinking_delta", thinking="a")]),
        (chunk({}, "length"), [gives(0, "signature_delta", signature=signature("a")), closes(0)]),
        (DONE, [ends("max_tokens", input_tokens=0, output_tokens=0), STOP]),
    )


def test_thinking_under_both_names_is_said_once() -> None:
    both = {"reasoning": "a", "reasoning_content": "a"}
    play((chunk(both), [START, opens(0, "thinking"), gives(0, "thinking_delta", thinking="a")]))


def test_parallel_calls_are_consecutive_blocks() -> None:
    translator = play(
        (chunk(ROLE), [START]),
        (tool(0, "a", "add"), [calls(0, "a", "add")]),
        (tool(0, arguments='{"x": '), [args(0, '{"x": ')]),
        (tool(0, arguments="1}"), [args(0, "1}")]),
        (tool(1, "b", "look", ""), [closes(0), calls(1, "b", "look")]),
        (chunk({}, "tool_calls"), [closes(1)]),
        (counted(), [ends("tool_use"), STOP]),
        (DONE, []),
    )
    assert reply(translator)["content"] == [
        {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "look", "input": {}},
    ]


def test_interleaved_calls_wait_for_the_one_before() -> None:
    play(
        (tool(0, "a", "f", '{"x"'), [START, calls(0, "a", "f"), args(0, '{"x"')]),
        (tool(1, "b", "g", '{"y"'), []),
        (
            tool(0, arguments=":1}"),
            [
                args(0, ":1}"),
                closes(0),
                calls(1, "b", "g"),
                args(1, '{"y"'),
            ],
        ),
        (tool(1, arguments=":2}"), [args(1, ":2}")]),
        (chunk({}, "tool_calls"), [closes(1)]),
        (counted(), [ends("tool_use"), STOP]),
    )


def test_a_call_that_never_ends_its_arguments_does_not_keep_the_next_one_back_for_ever() -> None:
    play(
        (tool(0, "a", "f", '{"x"'), [START, calls(0, "a", "f"), args(0, '{"x"')]),
        (tool(1, "b", "g", '{"y":2}'), []),
        (
            chunk({}, "length"),
            [
                closes(0),
                calls(1, "b", "g"),
                args(1, '{"y":2}'),
                closes(1),
            ],
        ),
        (counted(), [ends("max_tokens"), STOP]),
    )


def test_a_new_id_on_a_used_index_is_another_call() -> None:
    translator = play(
        (tool(0, "a", "f", "{}"), [START, calls(0, "a", "f"), args(0, "{}")]),
        (tool(0, "b", "g", "{}"), [closes(0), calls(1, "b", "g"), args(1, "{}")]),
    )
    assert [block["id"] for block in reply(translator)["content"]] == ["a", "b"]
    assert reply(translator)["stop_reason"] is None


def test_calls_without_an_index() -> None:
    play(
        (tool(None, "a", "f", "{"), [START, calls(0, "a", "f"), args(0, "{")]),
        (tool(None, arguments="}"), [args(0, "}")]),
        (tool(None, "b", "g"), [closes(0), calls(1, "b", "g")]),
    )


def test_a_call_waits_for_its_name() -> None:
    play(
        (tool(0, "a", None, "{"), [START]),
        (tool(0, None, "f", "}"), [calls(0, "a", "f"), args(0, "{}")]),
    )
    translator = MessagesTranslator()
    nameless = events(translator.event(tool(0, "a", None, "{}")) + translator.event(chunk({}, "tool_calls")))
    assert nameless == [
        START,
        calls(0, "a", ""),
        args(0, "{}"),
        closes(0),
    ]


def test_arguments_that_are_no_object_are_kept_for_the_end_of_the_call() -> None:
    held = json.dumps({UNPARSED: "[1]"})
    translator = play(
        (tool(0, "a", "f", "[1"), [START, calls(0, "a", "f")]),
        (tool(0, arguments="]"), []),
        (chunk({}, "tool_calls"), [args(0, held), closes(0)]),
        (counted(), [ends("tool_use"), STOP]),
    )
    assert reply(translator)["content"][0]["input"] == {UNPARSED: "[1]"}


def test_text_behind_a_call_is_a_block_of_its_own() -> None:
    translator = play(
        (tool(0, "a", "f", "{}"), [START, calls(0, "a", "f"), args(0, "{}")]),
        (chunk({"content": "so"}), [closes(0), opens(1, "text"), gives(1, "text_delta", text="so")]),
    )
    with pytest.raises(ValueError, match="came after"):
        translator.event(tool(0, arguments="}"))


def test_a_chunk_may_hold_all_of_it() -> None:
    delta = {
        "content": "b",
        "reasoning": "a",
        "tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}],
    }
    play(
        (
            chunk(delta, "tool_calls"),
            [
                START,
                opens(0, "thinking"),
                gives(0, "thinking_delta", thinking="a"),
                gives(0, "signature_delta", signature=signature("a")),
                closes(0),
                opens(1, "text"),
                gives(1, "text_delta", text="b"),
                closes(1),
                calls(2, "x", "f"),
                args(2, "{}"),
                closes(2),
            ],
        ),
        (counted(), [ends("tool_use"), STOP]),
    )


def test_an_empty_reply_has_no_blocks() -> None:
    translator = play((chunk(ROLE), [START]), (chunk({}, "stop"), []), (counted(), [ends("end_turn"), STOP]))
    assert reply(translator)["content"] == []


REASONS: list[tuple[str, Any, list[bytes], str, str | None]] = [
    ("stop", None, [], "end_turn", None),
    ("stop", 151643, [], "end_turn", None),
    ("stop", "END", [], "stop_sequence", "END"),
    ("length", None, [], "max_tokens", None),
    ("length", "END", [], "max_tokens", None),
    ("tool_calls", None, [], "tool_use", None),
    ("content_filter", None, [], "refusal", None),
    ("abort", None, [], "abort", None),
    # A forced call; a whole call before a stop string; a call that the stop string cut short.
    ("stop", None, [tool(0, "a", "f", "{}")], "tool_use", None),
    ("stop", "END", [tool(0, "a", "f", "{}")], "tool_use", None),
    ("stop", "END", [tool(0, "a", "f", '{"a"')], "stop_sequence", "END"),
    ("length", None, [tool(0, "a", "f", '{"a"')], "max_tokens", None),
]


@pytest.mark.parametrize(("finish", "stop", "before", "reason", "sequence"), REASONS)
def test_stop_reasons(finish: str, stop: Any, before: list[bytes], reason: str, sequence: str | None) -> None:
    translator = MessagesTranslator()
    for data in [chunk(ROLE), *before, chunk({}, finish, stop_reason=stop)]:
        translator.event(data)
    assert events(translator.event(counted()))[0] == ends(reason, stop=sequence)


USAGES: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"prompt_tokens": 162, "completion_tokens": 60}, {"input_tokens": 162, "output_tokens": 60}),
    (
        {"prompt_tokens": 162, "completion_tokens": 60, "prompt_tokens_details": {"cached_tokens": 128}},
        {"input_tokens": 34, "output_tokens": 60, "cache_read_input_tokens": 128},
    ),
    (
        {
            "prompt_tokens": 162,
            "completion_tokens": 60,
            "prompt_tokens_details": {"cached_tokens": 128, "created_cache_tokens": 4},
        },
        {
            "input_tokens": 30,
            "output_tokens": 60,
            "cache_creation_input_tokens": 4,
            "cache_read_input_tokens": 128,
        },
    ),
    (
        {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
        {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 9},
    ),
    ({"prompt_tokens": None, "prompt_tokens_details": None}, {"input_tokens": 0, "output_tokens": 0}),
]


@pytest.mark.parametrize(("given", "expected"), USAGES)
def test_usage(given: dict[str, Any], expected: dict[str, int]) -> None:
    assert usage_of(given) == expected


def test_usage_that_never_came_is_told_as_zeros_at_the_end() -> None:
    translator = MessagesTranslator()
    translator.event(chunk({"content": "a"}, "stop"))
    assert events(translator.end()) == [ends("end_turn", input_tokens=0, output_tokens=0), STOP]
    assert translator.end() == translator.event(DONE) == b""


def test_running_usage_is_told_at_the_start() -> None:
    translator = MessagesTranslator()
    first = {**HEAD, "choices": [{"index": 0, "delta": ROLE}], "usage": {"prompt_tokens": 14, "completion_tokens": 0}}
    (start,) = events(translator.event(json.dumps(first).encode()))
    assert start["message"]["usage"] == {"input_tokens": 14, "output_tokens": 0}


def test_a_stream_that_broke_has_no_end() -> None:
    translator = MessagesTranslator()
    translator.event(chunk({"content": "a"}))
    assert translator.event(DONE) == b""
    assert translator.end() == b""
    assert reply(translator)["stop_reason"] is None


def test_an_error_in_the_stream() -> None:
    dead = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
    told = {
        "type": "error",
        "error": {"type": "api_error", "message": "EngineCore encountered an issue."},
        "request_id": None,
    }
    play(
        (chunk({"content": "a"}, "stop"), [START, opens(0, "text"), gives(0, "text_delta", text="a"), closes(0)]),
        (json.dumps(dead).encode(), [told]),
        (counted(), []),
        (DONE, []),
    )
    busy = {"object": "error", "message": "full", "code": 503}
    (event,) = events(MessagesTranslator().event(json.dumps(busy).encode()))
    assert event["error"]["type"] == "overloaded_error"


def test_nothing_came() -> None:
    translator = MessagesTranslator()
    assert translator.reply() is None
    assert translator.event(DONE) == b""
    assert translator.reply() is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b'"x"'])
def test_a_chunk_that_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        MessagesTranslator().event(data)


ODD: list[Any] = [None, 5, "x", [], {}, [None], [5], [{}], {"a": 1}, True]


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize(
    "name",
    [
        "id",
        "model",
        "choices",
        "usage",
        "error",
        "delta",
        "index",
        "finish_reason",
        "stop_reason",
        "content",
        "reasoning",
        "tool_calls",
        "function",
        "arguments",
        "name",
    ],
)
def test_odd_values_do_no_harm(name: str, value: Any) -> None:
    function: dict[str, Any] = {"name": "f", "arguments": "{}"}
    call: dict[str, Any] = {"index": 0, "id": "a", "function": function}
    delta: dict[str, Any] = {"content": "a", "reasoning": "b", "tool_calls": [call]}
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": "stop", "stop_reason": None}
    whole: dict[str, Any] = {**HEAD, "choices": [choice], "usage": USAGE}
    for part in (function, call, delta, choice, whole):
        if name in part:
            part[name] = value
    if name == "error":
        whole[name] = value
    translator = MessagesTranslator()
    stream = translator.event(json.dumps(whole).encode()) + translator.end()
    events(stream)
    translator.reply()


def test_a_character_cut_between_two_chunks() -> None:
    translator = MessagesTranslator()
    for piece in ("\ud83d", "\ude00"):
        translator.event(chunk({"content": piece}))
    assert reply(translator)["content"] == [{"type": "text", "text": "😀"}]


def completion(message: dict[str, Any], finish: str = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, "stop_reason": None}
    head = {**HEAD, "object": "chat.completion"}
    return json.dumps({**head, "choices": [choice], "usage": USAGE, **more}).encode()


def test_a_whole_reply() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": [1.0]}'}}]
    translator = MessagesTranslator()
    body = translator.whole(completion({"content": None, "reasoning": "because", "tool_calls": calls}, "tool_calls"))
    assert json.loads(body) == {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "because", "signature": signature("because")},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1, "a": [1.0]}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 14, "output_tokens": 3},
    }
    assert translator.reply() == body
    assert b'{"b":1,"a":[1.0]}' in body


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[5]}', b'{"choices":[{"message":null}]}']
)
def test_a_whole_reply_that_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        MessagesTranslator().whole(body)


def test_a_failure_keeps_the_engine_s_words() -> None:
    said = b'{"error":{"message":"This model\'s maximum context length is 16384 tokens.","type":"BadRequestError"}}'
    assert json.loads(MessagesTranslator().failed(400, said)) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "This model's maximum context length is 16384 tokens.",
        },
        "request_id": None,
    }
    assert json.loads(MessagesTranslator().failed(502, b"<html>\xff"))["error"]["message"] == "<html>\ufffd"


def test_repr() -> None:
    translator = MessagesTranslator()
    assert repr(translator) == "<MessagesTranslator new blocks=0 closed=0>"
    translator.event(chunk({"content": "a"}))
    assert repr(translator) == "<MessagesTranslator open blocks=1 closed=0>"
    translator.event(chunk({}, "stop"))
    assert repr(translator) == "<MessagesTranslator finished blocks=1 closed=1>"
    translator.end()
    assert repr(translator) == "<MessagesTranslator over blocks=1 closed=1>"


WORDS = st.text(max_size=6)
ARGUMENTS = st.dictionaries(WORDS, st.integers() | WORDS | st.lists(st.booleans()), max_size=3)


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    calls = [
        {
            "id": f"call-{n}",
            "type": "function",
            "function": {"name": draw(st.sampled_from("fgh")), "arguments": json.dumps(draw(ARGUMENTS))},
        }
        for n in range(draw(st.integers(0, 3)))
    ]
    message: dict[str, Any] = {"content": draw(WORDS) or None}
    if thought := draw(WORDS):
        message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def cut(draw: Any, text: str) -> list[str]:
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


@given(replies(), st.data())
def test_a_stream_put_together_is_the_whole(message: dict[str, Any], data: Any) -> None:
    finish = data.draw(st.sampled_from(["stop", "length"])) if "tool_calls" not in message else "tool_calls"
    chunks = [chunk(ROLE)]
    for name in ("reasoning", "content"):
        chunks += [chunk({name: piece}) for piece in cut(data.draw, message.get(name) or "")]
    for n, call in enumerate(message.get("tool_calls", ())):
        chunks.append(tool(n, call["id"], call["function"]["name"]))
        chunks += [tool(n, arguments=piece) for piece in cut(data.draw, call["function"]["arguments"])]
    chunks += [chunk({}, finish), counted(), DONE]
    streaming, whole = MessagesTranslator(), MessagesTranslator()
    stream = b"".join(streaming.event(one) for one in chunks) + streaming.end()
    expected = json.loads(whole.whole(completion(message, finish)))
    assert assembled(events(stream)) == expected == reply(streaming)


@given(replies(), st.integers(0, 30))
def test_a_stream_that_is_cut_anywhere_has_no_clean_end(message: dict[str, Any], at: int) -> None:
    chunks = [chunk(ROLE)]
    chunks += [chunk({name: message[name]}) for name in ("reasoning", "content") if message.get(name)]
    chunks += [
        tool(n, call["id"], call["function"]["name"], call["function"]["arguments"])
        for n, call in enumerate(message.get("tool_calls", ()))
    ]
    translator = MessagesTranslator()
    stream = b"".join(translator.event(one) for one in chunks[:at]) + translator.end()
    assert not [event for event in events(stream) if event["type"] in ("message_delta", "message_stop")]
    translator.reply()
