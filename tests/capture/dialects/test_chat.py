"""Chat requests, errors and last replies: checked with OpenAI's own types, since agents read them with those."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from capture import rawjson
from capture.dialects.base import Asked, Dialect, with_fields
from capture.dialects.chat import MAX_CHOICES, Chat
from capture.engines.vllm import Vllm
from capture.errors import CaptureError, ClientError, EngineError, StoreError
from tests.playbook import body, case, data_of

dialect: Dialect = Chat()


def read(**fields: Any) -> Any:
    return dialect.read(body(**fields))


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b"", None, "byte 0"),
        (b'{"messages":[]', None, "byte 14"),
        (b"[]", None, "JSON object"),
        (b'"text"', None, "JSON object"),
        (b"{}", "messages", "missing"),
        (b'{"messages":{}}', "messages", "list"),
        (b'{"messages":null}', "messages", "list"),
        (b'{"messages":[],"model":1}', "model", "string"),
        (b'{"messages":[],"stream":"yes"}', "stream", "true or false"),
        (b'{"messages":[],"stream":1}', "stream", "true or false"),
        (b'{"messages":[],"n":0}', "n", "1 to 128"),
        (b'{"messages":[],"n":129}', "n", "1 to 128"),
        (b'{"messages":[],"n":true}', "n", "1 to 128"),
        (b'{"messages":[],"n":1.5}', "n", "1 to 128"),
        (b'{"messages":[],"n":NaN}', "n", "1 to 128"),
        (b'{"messages":[],"n":' + b"1" * 5000 + b"}", "n", "1 to 128"),
    ],
)
def test_what_no_engine_could_take_is_refused_in_the_agents_own_shape(raw: bytes, param: str | None, says: str) -> None:
    with pytest.raises(ClientError) as caught:
        dialect.read(raw)
    error = json.loads(dialect.error(caught.value))["error"]
    assert caught.value.status == 400
    assert error["param"] == param
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] in ("invalid_json", "missing_field", "wrong_type")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": "hot"},
        {"messages": ["no object"]},
        {"messages": [{"role": 3, "content": {}}]},
        {"tools": "none"},
        {"stream_options": 7},
        {"logprobs": 5},
        {"top_logprobs": True},
        {"tool_choice": 4},
        {"response_format": []},
        {"n": None, "stream": None, "model": None},
    ],
)
def test_all_else_is_for_the_engine_to_judge(fields: dict[str, Any]) -> None:
    request = read(**fields)
    assert {name: json.loads(request.fields[name]) for name in fields} == fields


def test_what_a_request_says() -> None:
    tools = [
        {"type": "function", "function": {"name": "add", "parameters": {}}},
        {"type": "function", "function": {"name": "weather"}},
    ]
    request = read(
        stream=True,
        n=3,
        model="gpt",
        tools=tools,
        temperature=0.5,
        max_tokens=None,
        stop=["x"],
        logprobs=True,
        top_logprobs=2,
        return_token_ids=True,
        stream_options={"include_usage": True},
    )
    assert (request.streamed, request.choices, request.model) == (True, 3, "gpt")
    assert request.asked == Asked(token_ids=True, logprobs=True, top_logprobs=2, usage=True)
    assert [(message.role, message.text) for message in request.messages] == [("user", "hi")]
    assert request.tool_names == ("add", "weather")
    assert request.tools is not None
    assert request.sampling == {"temperature": 0.5, "stop": ["x"], "n": 3}
    assert request.constrained == ()
    assert request.undecoded is None


def test_what_a_request_does_not_say() -> None:
    request = dialect.read(b'{"messages":[]}')
    assert (request.streamed, request.choices, request.model, request.asked) == (False, 1, None, Asked())
    assert (request.tools, request.tool_names, request.sampling, request.messages) == (None, (), {}, ())
    # Usage is a whole reply's in any case; asking for it means something in a stream alone.
    assert not read(stream_options={"include_usage": True}).asked.usage


@pytest.mark.parametrize(
    ("fields", "constrained"),
    [
        ({"response_format": {"type": "json_object"}}, ("response_format",)),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, ("response_format",)),
        ({"response_format": {"type": "text"}}, ()),
        ({"response_format": None}, ()),
        ({"structured_outputs": {"regex": "a"}}, ("structured_outputs",)),
        ({"guided_json": {"type": "object"}}, ("guided_json",)),
        (
            {"guided_regex": "a", "guided_choice": ["a"], "guided_grammar": "g"},
            ("guided_regex", "guided_choice", "guided_grammar"),
        ),
        ({"grammar": "g", "regex": "r", "ebnf": "e"}, ("grammar", "regex", "ebnf")),
        ({"tool_choice": "required"}, ("tool_choice",)),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, ("tool_choice",)),
        ({"tool_choice": "auto"}, ()),
        ({"tool_choice": "none"}, ()),
        ({"logit_bias": {"5": 1.0}}, ("logit_bias",)),
        ({"logit_bias": {}, "bad_words": [], "min_tokens": 0, "allowed_token_ids": None}, ()),
        ({"allowed_token_ids": [1]}, ("allowed_token_ids",)),
        ({"bad_words": ["no"]}, ("bad_words",)),
        ({"min_tokens": 5}, ("min_tokens",)),
    ],
)
def test_constraints_that_a_trainer_can_not_rebuild_are_named(
    fields: dict[str, Any], constrained: tuple[str, ...]
) -> None:
    assert set(read(**fields).constrained) == set(constrained)


def test_the_bodys_digest_does_not_see_key_order_and_spaces() -> None:
    one = dialect.read(b'{"messages":[{"role":"user","content":"x"}],"temperature":0.10,"z":{"a":1,"b":2}}')
    two = dialect.read(b'{ "z":{"b":2,"a":1}, "temperature":1e-1,"messages":[{"content":"\\u0078","role":"user"}] }')
    other = dialect.read(b'{"messages":[{"role":"user","content":"x"}],"temperature":0.2,"z":{"a":1,"b":2}}')
    assert one.body == two.body
    assert one.body != other.body
    assert len(one.body) == 32


@given(
    st.dictionaries(st.text(), st.integers() | st.floats() | st.text(st.characters(codec=None, categories=None))),
    st.randoms(use_true_random=False),
)
def test_any_body_has_a_digest_and_its_keys_can_be_shuffled(extra: dict[str, Any], random: Any) -> None:
    fields = {**extra, "messages": []}
    names = list(fields)
    random.shuffle(names)
    for name in ("stream", "n", "model"):
        fields.pop(name, None)
    shuffled = {name: fields[name] for name in names if name in fields}
    first = dialect.read(json.dumps(fields).encode())
    assert first.body == dialect.read(json.dumps(shuffled).encode()).body
    msgspec.json.encode(first.sampling)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (rb'{"messages":[{"role":"user","content":"a \ud800 b"}],"stream":true}', "messages"),
        (b'{"messages":[{"role":"user","content":"a"}],"vendor":NaN,"stream":true}', "vendor"),
        (
            b'{"messages":[{"role":"user","content":"a"}],"vendor":'
            + b"[" * 50_000
            + b"]" * 50_000
            + b',"stream":true}',
            "vendor",
        ),
    ],
    ids=["half a pair", "NaN", "deep"],
)
def test_what_cannot_be_decoded_is_forwarded_and_named(raw: bytes, name: str) -> None:
    request = dialect.read(raw)
    assert request.streamed
    assert len(request.messages) == 1
    assert request.undecoded is not None
    assert name in request.undecoded
    assert request.fields[name] in raw
    # It must fit into the store, which is strict.
    msgspec.json.encode(request.messages)


def test_case_15_fields_that_nobody_knows_reach_the_engine_with_their_values() -> None:
    found = case(15)
    raw = found["client_body"].encode()
    request = dialect.read(raw)
    expected = json.loads(raw) | found["expected"]["upstream_json_equals_client_json_plus"]
    sent = rawjson.join(with_fields(request.fields, Vllm().inject(request)))
    assert json.loads(sent) == expected
    assert list(json.loads(sent))[: len(request.fields)] == list(json.loads(raw))
    for big in found["expected"]["big_ints_exact"]:
        assert str(big).encode() in sent
    assert b'"z":0.10' in sent
    assert rb"\u00e9 \ud83d\ude00" in sent


@pytest.mark.parametrize(
    ("error", "type_"),
    [
        (ClientError("x", "m"), "invalid_request_error"),
        (ClientError("x", "m", status=401), "authentication_error"),
        (ClientError("x", "m", status=403), "permission_error"),
        (ClientError("x", "m", status=404), "invalid_request_error"),
        (ClientError("x", "m", status=429), "rate_limit_error"),
        (EngineError("x", "m"), "server_error"),
        (CaptureError("x", "m"), "server_error"),
        (StoreError("x", "m"), "server_error"),
    ],
)
def test_errors_have_openais_shape(error: Any, type_: str) -> None:
    form = json.loads(dialect.error(error))
    assert form == {"error": {"message": "m", "type": type_, "param": None, "code": error.code}}


def test_an_errors_hint_stands_in_its_message() -> None:
    error = json.loads(dialect.error(ClientError("c", "It is wrong.", hint="Do it right.", param="n")))["error"]
    assert error == {"message": "It is wrong. Do it right.", "type": "invalid_request_error", "param": "n", "code": "c"}


@pytest.mark.parametrize("choices", [1, 3])
def test_a_last_reply_is_one_that_openais_client_reads(choices: int) -> None:
    kind, raw = dialect.last_reply(read(n=choices, model="gpt"), reply_id="chatcmpl-9", created=7, text="Stop.")
    assert kind == "application/json"
    reply = ChatCompletion.model_validate_json(raw, strict=True)
    assert (reply.id, reply.created, reply.model) == ("chatcmpl-9", 7, "gpt")
    assert [choice.index for choice in reply.choices] == list(range(choices))
    for choice in reply.choices:
        assert choice.message.content == "Stop."
        assert choice.message.tool_calls is None
        assert choice.finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 0


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("choices", [1, 2])
def test_a_last_reply_is_streamed_where_the_request_was(choices: int, usage: bool) -> None:
    request = read(n=choices, stream=True, stream_options={"include_usage": usage})
    kind, raw = dialect.last_reply(request, reply_id="chatcmpl-9", created=7, text="Stop.")
    assert kind.startswith("text/event-stream")
    *forms, done = data_of(raw)
    assert done == "[DONE]"
    chunks = [ChatCompletionChunk.model_validate(form, strict=True) for form in forms]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-9"}
    if usage:
        last = chunks.pop()
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.total_tokens == 0
    for index in range(choices):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in own) == "Stop."
        assert [choice.finish_reason for choice in own] == [None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_the_most_choices_are_openais() -> None:
    assert read(n=MAX_CHOICES).choices == 128
