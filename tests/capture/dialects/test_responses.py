"""Requests of the Responses dialect: what the engine is asked for them, what is refused, and what codex sends."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from capture.dialects import responses_tables as tables
from capture.dialects.base import Asked, Dialect, Request
from capture.dialects.responses import Responses, retrieved
from capture.errors import CaptureError, ClientError, EngineError
from tests.capture.dialects.responses_wire import CUSTOM, FUNCTION, NAMESPACE, ask, chat, dialect, events, read

_: Dialect = Responses()

HI = [{"role": "user", "content": "hi"}]
ROOT = Path(__file__).parents[3]
CODEX = [json.loads(line) for line in (ROOT / "tests/fixtures/agents/codex.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, {}),
        ({"model": None}, {"model": None}),
        ({"instructions": "Be kind."}, {"messages": [{"role": "system", "content": "Be kind."}, *HI]}),
        ({"instructions": None}, {}),
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}),
        ({"max_output_tokens": 12}, {"max_completion_tokens": 12}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"summary": "auto"}}, {}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, {
            "stream": True, "stream_options": {"include_usage": True},
        }),
        ({"stream": False}, {}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"top_logprobs": 0, "include": ["reasoning.encrypted_content"]}, {}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"x": 1}, "strict": None}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": 1}}}},
        ),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}, {}),
        ({"store": False, "metadata": {"a": "b"}, "user": "u", "client_metadata": {"x": 1}, "n": 1}, {}),
        ({"background": False, "conversation": None, "prompt": None, "truncation": "disabled"}, {}),
        # The engine's own fields, known here or not, keep their values.
        ({"top_k": 5, "chat_template_kwargs": {"a": [1.0]}, "new": None}, {
            "top_k": 5, "chat_template_kwargs": {"a": [1.0]}, "new": None,
        }),
    ],
)  # fmt: skip
def test_a_request_becomes_a_chat_request(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    wanted = {"model": "m", "messages": HI, **sent}
    assert chat(**asked) == {name: value for name, value in wanted.items() if name != "model" or value}


def test_what_a_request_says() -> None:
    request = read(
        stream=True, tools=[FUNCTION, NAMESPACE, {"type": "web_search"}], temperature=1, max_output_tokens=9,
        text={"verbosity": "low", "format": {"type": "json_object"}}, truncation="auto", tool_choice="required",
        include=["message.output_text.logprobs"],
    )  # fmt: skip
    assert request.path == "/v1/chat/completions"
    assert request.streamed
    assert request.asked == Asked(usage=True, logprobs=True)
    assert request.tool_names == ("look", "agents__spawn")
    assert request.sampling == {"temperature": 1, "max_completion_tokens": 9}
    assert request.constrained == ("response_format", "tool_choice")
    assert request.repairs == ("tool_left_out:web_search", "verbosity_left_out", "truncation_left_out")
    assert [message.text for message in request.messages] == ["hi"]


def test_equal_requests_have_one_digest_whatever_their_key_order() -> None:
    one = dialect.read(b'{"input": "hi", "client_metadata": {"a": 1, "b": 2}}')
    assert one.body == dialect.read(b'{"client_metadata":{"b":2,"a":1},"input":"hi"}').body
    # What the engine never sees counts all the same.
    assert one.body != dialect.read(b'{"client_metadata":{"b":2,"a":2},"input":"hi"}').body


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_field"),
        ({"input": 3}, "input", "wrong_type"),
        ({"input": ["no object"]}, "input[0]", "wrong_type"),
        ({"input": [{"type": "message", "role": "tool", "content": ""}]}, "input[0].role", "wrong_type"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type", "unsupported"),
        ({"input": [{"type": "item_reference", "id": "msg_elsewhere"}]}, "input[0].id", "item_not_found"),
        ({"model": 1}, "model", "wrong_type"),
        ({"stream": "yes"}, "stream", "wrong_type"),
        ({"temperature": "hot"}, "temperature", "wrong_type"),
        ({"temperature": True}, "temperature", "wrong_type"),
        ({"max_output_tokens": 1.5}, "max_output_tokens", "wrong_type"),
        ({"truncation": "middle"}, "truncation", "wrong_type"),
        ({"include": "all"}, "include", "wrong_type"),
        ({"metadata": []}, "metadata", "wrong_type"),
        ({"reasoning": "much"}, "reasoning", "wrong_type"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "wrong_type"),
        ({"text": {"format": "json"}}, "text.format", "wrong_type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "unsupported"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "wrong_type"),
        ({"background": True}, "background", "unsupported"),
        ({"conversation": "conv_1"}, "conversation", "unsupported"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported"),
        ({"messages": []}, "messages", "unknown_field"),
        ({"n": 2}, "n", "unknown_field"),
        ({"max_tokens": 5}, "max_tokens", "unknown_field"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_its_own_name(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ClientError) as caught:
        read(**fields)
    error = json.loads(dialect.error(caught.value))["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == "invalid_request_error"
    assert caught.value.status == (404 if "not_found" in code else 400)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"input": "hi"', b'{"input": nul}', b'{"input": ' + b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ClientError) as caught:
        dialect.read(raw)
    assert (caught.value.code, caught.value.status) == ("invalid_json", 400)


def test_what_is_no_strict_json_is_mended_and_said() -> None:
    request = dialect.read(rb'{"input": "half \ud83d here", "top_k": NaN, "metadata": {"a": 1}}')
    assert json.loads(request.fields["messages"]) == [{"role": "user", "content": "half � here"}]
    assert request.fields["top_k"] == b"null"
    assert request.undecoded is not None
    assert "'input'" in request.undecoded
    assert "'top_k'" in request.undecoded
    with pytest.raises(ClientError, match="temperature"):
        dialect.read(b'{"input": "", "temperature": NaN}')


def test_numbers_keep_their_values() -> None:
    number = 2**70
    tool = {**FUNCTION, "parameters": {"type": "object", "maximum": number, "minimum": 0.1}}
    assert chat(tools=[tool])["tools"][0]["function"]["parameters"] == {
        "type": "object", "maximum": number, "minimum": 0.1,
    }  # fmt: skip


@pytest.mark.parametrize("recorded", CODEX, ids=lambda one: one["name"])
def test_what_codex_sends_is_read(recorded: dict[str, Any]) -> None:
    request = dialect.read(json.dumps(recorded["body"]).encode())
    tools = bool(recorded["body"]["tools"])
    assert request.repairs == (("tool_left_out:web_search",) if tools else ())
    assert ("multi_agent_v1__spawn_agent" in request.tool_names) is tools
    assert ("tool_choice" in request.fields) is tools
    said = json.loads(request.fields["messages"])
    assert said[0] == {"role": "developer", "content": "Work on the code in this folder."}


def test_what_codex_goes_on_from_is_told_to_the_letter() -> None:
    body = next(one["body"] for one in CODEX if one["name"] == "subagent")
    said = json.loads(dialect.read(json.dumps(body).encode()).fields["messages"])
    assert [message["role"] for message in said[4:]] == ["assistant", "tool"] * 3 + ["user"]
    assert said[4] == {
        "role": "assistant",
        "content": None,
        "reasoning": "I think. ",
        "tool_calls": [
            {
                "id": "call_0001",
                "type": "function",
                "function": {"name": "exec_command", "arguments": '{ "cmd" :  "ls -a" }'},
            }
        ],
    }
    assert said[6]["tool_calls"][0]["function"]["name"] == "multi_agent_v1__spawn_agent"


def test_what_a_cut_left_behind_stays_apart() -> None:
    # codex keeps the reasoning of each try that broke, and begins again behind it.
    body = next(one["body"] for one in CODEX if one["name"] == "cut twice")
    said = json.loads(dialect.read(json.dumps(body).encode()).fields["messages"])
    assert said[6:] == [{"role": "assistant", "content": "", "reasoning": "I think. "}] * 2


@pytest.mark.parametrize("streamed", [False, True])
def test_a_last_reply_is_whole(streamed: bool) -> None:
    request = read(stream=streamed, tools=[FUNCTION], tool_choice="required")
    kind, out = dialect.last_reply(request, reply_id="stop-1", created=7, text="This is the end.")
    if streamed:
        assert kind.startswith("text/event-stream")
        said = events(out)[-1]
        assert said["type"] == "response.completed"
        body = said["response"]
    else:
        assert kind == "application/json"
        body = json.loads(out)
    reply = Response.model_validate(body)
    assert (reply.id, reply.status, reply.model, reply.output_text) == ("stop-1", "completed", "m", "This is the end.")
    assert [item.type for item in reply.output] == ["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ClientError("x", "No.", status=401), 401, "authentication_error"),
        (ClientError("x", "No.", status=404), 404, "invalid_request_error"),
        (EngineError("x", "No.", status=503), 503, "server_error"),
        (CaptureError("x", "No."), 500, "server_error"),
    ],
)
def test_an_error_has_openais_shape(error: Any, status: int, kind: str) -> None:
    assert json.loads(dialect.error(error)) == {"error": {"message": "No.", "type": kind, "param": None, "code": "x"}}
    assert error.status == status


def test_counts_and_models_have_openais_shape() -> None:
    card = {"id": "m", "created": 3, "max_model_len": 99}
    assert json.loads(dialect.counted(5)) == {"object": "response.input_tokens", "input_tokens": 5}
    assert json.loads(dialect.models([card]))["data"][0]["id"] == "m"
    assert json.loads(dialect.model(card))["object"] == "model"
    assert dialect.read_count(ask()).fields["messages"] == msgspec.json.encode(HI)


def test_a_stored_response_can_be_fetched() -> None:
    whole = b'{"id":"a","object":"response","status":"completed"}'
    assert retrieved(whole) == whole
    for other in (b'{"object":"chat.completion"}', b"event: x"):
        with pytest.raises(ClientError) as caught:
            retrieved(other)
        assert caught.value.status == 404


def test_every_field_is_in_one_table() -> None:
    names = [*tables.MAPPED, *tables.IGNORED, *tables.REFUSED, *tables.MISPLACED]
    assert len(names) == len(set(names))


def test_the_tables_are_in_the_docs() -> None:
    said = (ROOT / "docs/dialects/responses.md").read_text("utf-8")
    rows = [
        *(
            f"| `{name}` | {why} |"
            for table in (tables.MAPPED, tables.IGNORED, tables.REFUSED)
            for name, why in table.items()
        ),
        *(f"| `{name}` | `{place}` |" for name, place in tables.MISPLACED.items()),
        *(f"| `{kind}` | {why} |" for kind, why in tables.LEFT_OUT_ITEMS.items()),
        *(f"| `{kind}` | `{name}`, with `{field}` |" for kind, (name, field) in tables.CALLS.items()),
        *(f"| `{finish}` | `{status}` | {why or ''} |" for finish, (status, why) in tables.FINISHES.items()),
        ", ".join(f"`{kind}`" for kind in tables.LEFT_OUT_TOOLS),
        ", ".join(f"`{kind}`" for kind in tables.OUTPUTS),
    ]
    assert [row for row in rows if row not in said] == []


# Any JSON, with a taste for the words of this dialect.
WORDS = st.sampled_from(
    [
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
        "local_shell_call", "shell_call_output", "item_reference", "web_search_call", "compaction", "user", "assistant",
        "developer", "input_text", "output_text", "input_image", "input_file", "input_audio", "refusal", "function",
        "custom", "namespace", "web_search", "mcp", "grammar", "allowed_tools", "required", "json_schema", "auto",
        "rs_x_1", "data:image/png;base64,@@@", "",
    ]
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "type", "role", "content", "text", "id", "call_id", "name", "namespace", "arguments", "input", "output",
        "summary", "encrypted_content", "image_url", "file_data", "file_id", "input_audio", "detail", "refusal",
        "tools", "parameters", "description", "format", "definition", "syntax", "mode", "schema", "action", "effort",
    ]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)
FIELDS = st.sampled_from([*tables.MAPPED, *tables.IGNORED, *tables.REFUSED, *tables.MISPLACED, "text", "reasoning"])
ITEM = st.builds(lambda kind, more: {**more, "type": kind}, WORDS, st.dictionaries(KEYS, JSON, max_size=8))


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(FIELDS, JSON, max_size=5),
    st.none() | st.lists(ITEM, max_size=4),
    st.none() | st.lists(ITEM, max_size=3),
    st.none() | st.integers(0, 400),
)
def test_bad_input_is_refused_or_read_and_nothing_else(
    fields: dict[str, Any], items: list[Any] | None, listed: list[Any] | None, cut: int | None
) -> None:
    body = {**({} if items is None else {"input": items}), **({} if listed is None else {"tools": listed}), **fields}
    raw = json.dumps(body).encode()[:cut]
    dialect.refers_to(raw)
    try:
        request = dialect.read(raw)
    except ClientError as refused:
        error = refused
    else:
        _check_request(request)
        return
    assert 400 <= error.status < 500
    assert json.loads(dialect.error(error))["error"]["message"]


def _check_request(request: Request) -> None:
    assert {"messages"} <= set(request.fields)
    for value in request.fields.values():
        msgspec.json.decode(value)
    _, out = dialect.last_reply(request, reply_id="r", created=1, text="end")
    reply = events(out)[-1]["response"] if request.streamed else json.loads(out)
    assert reply["status"] == "completed"
    assert reply["output"][0]["content"][0]["text"] == "end"


@pytest.mark.parametrize("custom", [FUNCTION, CUSTOM, NAMESPACE])
def test_tools_are_repeated_as_they_came(custom: dict[str, Any]) -> None:
    _, out = dialect.last_reply(read(tools=[custom]), reply_id="r", created=1, text="end")
    assert json.loads(out)["tools"] == [custom]
