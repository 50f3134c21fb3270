"""The dialect as a whole: an agent's bodies read, errors, models and last replies written."""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import rawjson
from capture.dialects import messages, messages_content, messages_request
from capture.dialects.base import Asked, Dialect, Target, with_fields
from capture.dialects.messages import Messages
from capture.dialects.messages_reply import MessagesTranslator
from capture.digests import digest
from capture.engines.vllm import Vllm
from capture.errors import CaptureError, ClientError, EngineError, StoreError
from capture.recorder import Recorder
from tests.playbook import agent, case, committed, data_of, engine, play

dialect: Dialect = Messages()

USER: dict[str, Any] = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CARD = {"id": "tiny", "created": 1_700_000_000, "max_model_len": 16384}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 10, "messages": [USER], **fields}).encode()


def mark(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "cache_control": {"type": "ephemeral"}}


# Shaped as claude-code 2.1 sends its own: blocks in every place, a system message in the middle of the conversation,
# cache marks on the newest one. The words are our own.
CODING: dict[str, Any] = {
    "model": "m",
    "max_tokens": 32000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-client: 1.0.abc;"},
        mark({"type": "text", "text": "You work on code."}),
        mark({"type": "text", "text": "The folder is /src."}),
    ],
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"})},
    "tools": [
        {"name": "Read", "description": "Read a file.", "input_schema": SCHEMA},
        {"name": "Agent", "description": "Start a helper.", "input_schema": {"type": "object", "properties": {}}},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Count the lines of a.py."}]},
        {"role": "system", "content": "The date is the first of May."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I read it.", "signature": "0123456789abcdef0123456789abcdef"},
                {"type": "tool_use", "id": "chatcmpl-tool-1", "name": "Read", "input": {"path": "a.py"}},
            ],
        },
        {
            "role": "user",
            "content": [
                mark(
                    {
                        "type": "tool_result",
                        "tool_use_id": "chatcmpl-tool-1",
                        "content": [{"type": "text", "text": "1\n2\n"}],
                        "is_error": False,
                    }
                ),
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "One helper is done."}]},
    ],
}


def test_a_coding_agent_s_request() -> None:
    request = dialect.read(json.dumps(CODING).encode())
    assert {name: json.loads(raw) for name, raw in request.fields.items()} == {
        "model": "m",
        "max_tokens": 32000,
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "high",
        "tools": [
            {"type": "function", "function": {"name": "Read", "description": "Read a file.", "parameters": SCHEMA}},
            {
                "type": "function",
                "function": {
                    "name": "Agent",
                    "description": "Start a helper.",
                    "parameters": {"type": "object", "properties": {}},
                },
            },
        ],
        "messages": [
            {"role": "system", "content": "x-client: 1.0.abc;\nYou work on code.\nThe folder is /src."},
            {"role": "user", "content": "Count the lines of a.py."},
            {"role": "system", "content": "The date is the first of May."},
            {
                "role": "assistant",
                "content": None,
                "reasoning": "I read it.",
                "tool_calls": [
                    {
                        "id": "chatcmpl-tool-1",
                        "type": "function",
                        "function": {"name": "Read", "arguments": '{"path": "a.py"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "chatcmpl-tool-1", "content": "1\n2\n"},
            {"role": "system", "content": "One helper is done."},
        ],
    }
    assert (request.model, request.streamed, request.asked) == ("m", True, Asked(usage=True))
    assert request.path == "/v1/chat/completions"
    assert request.repairs == ("tool:web_search_20250305",)
    assert request.tool_names == ("Read", "Agent")
    assert request.sampling == {"max_tokens": 32000}
    assert request.constrained == ()
    assert request.undecoded is None
    assert [message.role for message in request.messages] == ["system", "user", "system", "assistant", "tool", "system"]


def test_moving_cache_marks_leave_the_messages_as_they_were() -> None:
    moved = copy.deepcopy(CODING)
    del moved["messages"][3]["content"][0]["cache_control"]
    moved["messages"].append({"role": "user", "content": [mark({"type": "text", "text": "Go on."})]})
    before, after = (dialect.read(json.dumps(one).encode()) for one in (CODING, moved))
    assert after.messages[: len(before.messages)] == before.messages
    assert after.body != before.body


def test_a_title_call_is_constrained() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    request = dialect.read(body(tools=[], output_config={"format": form}, stop_sequences=["END"], temperature=1))
    assert request.constrained == ("response_format",)
    assert request.tools is None
    assert request.sampling == {"max_tokens": 10, "stop": ["END"], "temperature": 1}


def test_case_67_what_an_agent_echoes_is_taken_as_it_is() -> None:
    found = case(67)
    request = dialect.read(json.dumps(found["request"]).encode())
    assert json.loads(request.fields["messages"]) == found["translated"]["messages"]
    assert list(request.repairs) == found["translated"]["repairs"]


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="it wants Anthropic's own messages at the engine; no engine that gives token ids speaks that dialect, so "
    "they are translated (the case above), and what can't be told to the engine is named among the repairs",
)
def test_case_67_as_it_stands() -> None:
    found = case(67)
    assert (
        json.loads(Messages().read(json.dumps(found["request"]).encode()).fields["messages"])
        == (found["request"]["messages"])
    )


def test_the_target_decides_on_a_stream_if_it_says_so() -> None:
    assert dialect.read(body(), target=Target(streamed=True)).streamed
    assert not dialect.read(body(stream=True), target=Target(streamed=False)).streamed
    assert not dialect.read(body(stream=None)).streamed
    with pytest.raises(ClientError, match="'stream'"):
        dialect.read(body(stream="yes"))


def test_capture_s_own_fields_are_set_and_what_an_agent_adds_passes() -> None:
    request = dialect.read(body(stream=True, seed=12345678901234567890123, chat_template_kwargs={"x": 0.10}))
    sent = json.loads(rawjson.join(with_fields(request.fields, Vllm().inject(request))))
    assert sent["return_token_ids"] is True
    assert sent["logprobs"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert (sent["seed"], sent["chat_template_kwargs"]) == (12345678901234567890123, {"x": 0.1})


def test_a_body_s_digest_knows_neither_key_order_nor_spaces() -> None:
    one = dialect.read(b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}]}')
    other = dialect.read(b'{"max_tokens":5, "messages": [{"content":"a", "role":"user"}], "model": "m"}')
    assert one.body == other.body
    assert len(one.body) == 32
    assert one.body != dialect.read(body()).body


def test_what_is_no_strict_json_still_reaches_the_engine() -> None:
    raw = rb'{"model":"m","max_tokens":5,"x":[NaN,1e999],"messages":[{"role":"user","content":"a \ud800 b"}]}'
    request = dialect.read(raw)
    assert json.loads(request.fields["messages"])[0]["content"] == "a \ud800 b"
    assert request.fields["x"] == b"[NaN,Infinity]"
    assert request.undecoded is not None
    assert len(request.body) == 32
    msgspec.json.encode(request.messages)
    assert dialect.read(raw).body == request.body


def test_a_count() -> None:
    raw = json.dumps({"model": "m", "system": "s", "messages": [USER], "thinking": {"type": "disabled"}}).encode()
    request = Messages().read_count(raw)
    assert json.loads(request.fields["messages"]) == [{"role": "system", "content": "s"}, USER]
    assert not request.streamed
    assert "max_tokens" not in request.fields
    assert Messages().read_count(body()).fields["max_tokens"] == b"10"
    assert json.loads(dialect.counted(14)) == {"input_tokens": 14}
    with pytest.raises(ClientError, match="max_tokens"):
        dialect.read(raw)


def test_each_request_brings_its_whole_history() -> None:
    assert dialect.refers_to(body()) is None
    assert dialect.refers_to(b"{") is None


def test_models() -> None:
    card = {
        "type": "model",
        "id": "tiny",
        "display_name": "tiny",
        "created_at": "2023-11-14T22:13:20Z",
        "lifecycle": "active",
        "max_input_tokens": 16384,
    }
    other = {**card, "id": "b", "display_name": "b", "max_input_tokens": None}
    assert json.loads(dialect.model(CARD)) == card
    listed = json.loads(dialect.models([CARD, {**CARD, "id": "b", "max_model_len": None}]))
    assert listed == {"data": [card, other], "has_more": False, "first_id": "tiny", "last_id": "b"}
    assert json.loads(dialect.models([])) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ClientError("wrong_type", "No.", hint="Yes.", param="messages.0"), "invalid_request_error", "No. Yes."),
        (ClientError("unknown_secret", "No.", status=401), "authentication_error", "No."),
        (ClientError("too_large", "No.", status=413), "request_too_large", "No."),
        (EngineError("engine_down", "No."), "api_error", "No."),
        (EngineError("busy", "No.", status=503), "overloaded_error", "No."),
        (StoreError("store_full", "No.", hint="make room"), "api_error", "No. Make room"),
        (CaptureError("fault", "No."), "api_error", "No."),
    ],
)
def test_errors(error: Any, kind: str, message: str) -> None:
    told = json.loads(dialect.error(error))
    assert told == {
        "type": "error",
        "error": {"type": kind, "message": message, "code": error.code, "param": error.param},
        "request_id": None,
    }


@pytest.mark.parametrize("streamed", [False, True])
def test_the_last_reply_ends_an_agent_s_loop(streamed: bool) -> None:
    request = dialect.read(body(stream=streamed, model="asked"))
    kind, raw = dialect.last_reply(request, reply_id="chatcmpl-stop-1", created=1, text="[It is over.]")
    message = {
        "id": "chatcmpl-stop-1",
        "type": "message",
        "role": "assistant",
        "model": "asked",
        "content": [{"type": "text", "text": "[It is over.]"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    if not streamed:
        assert (kind, json.loads(raw)) == ("application/json", message)
        return
    assert kind.startswith("text/event-stream")
    events = data_of(raw)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"] == {**message, "content": [], "stop_reason": None}
    assert events[4]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def recorder(**fields: Any) -> Recorder:
    request = dialect.read(body(**fields))
    return Recorder(request, Vllm().reader(request, model="asked"), translator=dialect.translator(request))


HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def sent(*choices: dict[str, Any], **more: Any) -> bytes:
    return b"data: " + json.dumps({**HEAD, "choices": list(choices), **more}).encode() + b"\n\n"


def test_a_stream_through_the_recorder() -> None:
    """Ids and logprobs stay out; from the finish on all is held; the last events carry the usage."""
    one = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    start = {"id": "chatcmpl-1", "type": "message", "role": "assistant", "model": "asked", "content": []}
    nothing = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
    play(
        recorder(stream=True),
        engine.answers(200),
        engine.sends(
            sent(
                {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None},
                prompt_token_ids=[1, 2, 3],
            )
        ),
        agent.gets_json({"type": "message_start", "message": {**start, **nothing}}),
        engine.sends(sent({"index": 0, "delta": {"content": "a"}, "logprobs": one, "token_ids": [7]})),
        agent.gets_json(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        ),
        engine.sends(sent({"index": 0, "delta": {}, "logprobs": one, "token_ids": [8], "finish_reason": "stop"})),
        agent.gets_nothing,
        engine.sends(sent(usage=usage), b"data: [DONE]\n\n"),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets_json(
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"input_tokens": 3, "output_tokens": 2},
            },
            {"type": "message_stop"},
        ),
        agent.sees_a_clean_end,
    )


def test_an_error_through_the_recorder_keeps_its_words() -> None:
    told = {"error": {"message": "This model's maximum context length is 16 tokens.", "type": "BadRequestError"}}
    play(
        recorder(),
        engine.answers(400),
        engine.sends_whole(told),
        committed,
        agent.gets(
            b'{"type":"error","error":{"type":"invalid_request_error",'
            b'"message":"This model\'s maximum context length is 16 tokens."},"request_id":null}'
        ),
    )


# A body with every field of the schema, one path of which the fuzz replaces.
EVERYTHING: dict[str, Any] = {
    **CODING,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "stop_sequences": ["END"],
    "tool_choice": {"type": "tool", "name": "Read", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "summarized"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "service_tier": "auto",
    "container": "c",
    "mcp_servers": [{"type": "url", "url": "https://example.org", "name": "s"}],
    "chat_template_kwargs": {"x": 1},
    "messages": [
        *CODING["messages"],
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                {"type": "document", "title": "t", "context": "c", "source": {"type": "text", "data": "d"}},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}},
                {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "d"}]},
                {"type": "tool_result", "tool_use_id": "nobody's", "content": "x", "is_error": True},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "zz"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "text", "text": "so", "citations": []},
            ],
        },
    ],
}


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, one in inner for path in paths(one, (*at, key)))]


def replaced(path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(EVERYTHING)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


SCALARS = st.sampled_from(
    [None, True, False, 0, -1, 1.5, 2**70, float("nan"), "", "x", "\ud800", [], {}, [None], {"type": 5}]
)
KEYS = st.sampled_from(["type", "text", "content", "x"])
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=5
)


def taken(raw: bytes, read: Any = dialect.read) -> bool:
    """Read a body and say if it was taken; what is refused must be a 4xx in the dialect's shape."""
    refusal: ClientError | None = None
    try:
        request = read(raw)
    except ClientError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400
        assert json.loads(dialect.error(refusal))["error"]["type"] == "invalid_request_error"
        return False
    msgspec.json.encode(request.messages)
    rawjson.split(rawjson.join(with_fields(request.fields, Vllm().inject(request))))
    return True


def test_everything_is_taken() -> None:
    assert taken(json.dumps(EVERYTHING).encode())
    assert dialect.read(json.dumps(EVERYTHING).encode()).repairs == (
        "block:server_tool_use",
        "container",
        "mcp_servers",
        "tool:web_search_20250305",
        "thinking.budget_tokens",
    )


@given(st.sampled_from(paths(EVERYTHING)), JSON)
def test_a_wrong_value_anywhere_is_taken_or_refused_by_name(path: tuple[Any, ...], value: Any) -> None:
    raw = json.dumps(replaced(path, value)).encode()
    # Without a limit a body is one to count, and nothing else of it is read in another way.
    assert taken(raw, Messages().read_count) >= taken(raw)


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, True], ids=repr)
def test_each_value_of_a_wrong_type(value: Any) -> None:
    refused = sum(not taken(json.dumps(replaced(path, value)).encode()) for path in paths(EVERYTHING))
    assert refused > 30


@given(st.integers(0, 10_000))
def test_a_body_that_was_cut_is_refused(at: int) -> None:
    raw = json.dumps(EVERYTHING).encode()
    assert not taken(raw[: at % len(raw)])


@pytest.mark.parametrize("depth", [100, 2_000, 100_000])
def test_a_body_that_is_too_deep_is_refused_at_most(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    for place in (b'"metadata":' + deep, b'"system":' + deep, b'"vendor":' + deep):
        taken(b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}],' + place + b"}")


def test_a_translator_is_made_for_each_reply() -> None:
    request = dialect.read(body())
    one, other = dialect.translator(request), dialect.translator(request)
    assert isinstance(one, MessagesTranslator)
    assert one is not other


def test_the_docs_tables_are_the_code_s() -> None:
    text = (Path(__file__).parents[3] / "docs" / "dialects" / "messages.md").read_text()
    tables = [
        messages_request.IGNORED,
        messages_request.TOOL_IGNORED,
        messages_content.UNSAID,
        messages_content.LEFT_OUT,
    ]
    for table in tables:
        assert "|---|---|\n" + "".join(f"| `{name}` | {why} |\n" for name, why in table.items()) + "\n" in text
    for name, why in messages_request.LEFT_OUT.items():
        assert f"| `{name}` | `{name}` | {why} |\n" in text


# -- of what came before only what is new is read: and that is what a body says when it is read in whole

texts = st.sampled_from(["", "a", "é", "\n", "\U0001f600"])
BLOCKS: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda text: mark({"type": "text", "text": text}), texts),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, texts),
    st.builds(lambda a: {"type": "tool_use", "id": "t1", "name": "Read", "input": {"b": a, "a": 1.0}}, texts),
    st.builds(lambda a: {"type": "tool_result", "tool_use_id": "t1", "content": a}, texts),
    st.sampled_from(
        [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}], "is_error": True},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            {"type": "document", "source": {"type": "text", "data": "d"}, "citations": {"enabled": True}},
            {"type": "server_tool_use", "id": "s"},
            {"type": "never_heard_of"},
            {"type": "container_upload"},
            {"type": "text", "text": 5},
            {"type": "tool_use", "id": "t", "name": "n", "input": {"n": 2**70}},
            5,
        ]
    ),
)
SAID = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "user", "assistant", "system", "tool"]),
    texts | st.lists(BLOCKS, max_size=3),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "system": st.sampled_from([None, [], "s", [{"type": "text", "text": "s"}, mark({"type": "text", "text": "t"})], 5]),
    "tools": st.sampled_from(
        [
            None,
            [],
            CODING["tools"],
            [{"name": "Read", "input_schema": SCHEMA, "input_examples": [1], "strict": True}],
            [{"name": "x"}],
        ]
    ),
    "tool_choice": st.sampled_from([{"type": "auto"}, {"type": "tool", "name": "Read"}, {"type": "any"}, 5]),
    "stream": st.sampled_from([True, False, None, 5]),
    "stop_sequences": st.sampled_from([None, ["x"], [5]]),
    "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 5}, {"type": "disabled"}, None]),
    "temperature": st.sampled_from([0.5, 1, "x"]),
    "container": st.just("c"),
    "top_logprobs": st.sampled_from([2, float("nan"), "\ud800"]),
    "n": st.sampled_from([1, 2]),
}


def outcome(read: Any, given: bytes) -> Any:
    try:
        return msgspec.structs.replace(read(given, streamed=None, counting=False), own=None)
    except ClientError as error:
        return error.status, error.code, error.message, error.hint, error.param


@given(st.lists(SAID, max_size=4), st.fixed_dictionaries({}, optional=VALUES), st.booleans())
def test_what_is_read_apart_is_what_is_read_in_whole(said: list[Any], values: dict[str, Any], spaces: bool) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    given = json.dumps({"model": "m", "max_tokens": 9, "messages": said, **values}, separators=separators).encode()
    whole = outcome(messages._read_whole, given)
    # Of which nothing is known, and of which all is.
    assert outcome(messages._read, given) == whole
    assert outcome(messages._read, given) == whole


def test_a_conversation_that_grows_is_read_by_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lest the equality above be that of the long way with itself."""
    monkeypatch.setattr(messages, "_read_whole", None)
    first = dialect.read(json.dumps(CODING).encode())
    more = copy.deepcopy(CODING)
    more["messages"] += [{"role": "assistant", "content": "Three."}, USER]
    second = dialect.read(json.dumps(more).encode())
    assert first.elements is not None
    assert second.elements is not None
    assert all(a is b for a, b in zip(first.elements, second.elements, strict=False))
    assert second.own is not None
    assert (second.own.key, len(second.own.elements)) == ("messages", len(more["messages"]))
    assert second.own.names == [digest(raw) for raw in second.own.elements]
    assert list(map(json.loads, second.own.elements)) == more["messages"]
