"""Completions: what is asked and sent, what is refused, and the last reply."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import rawjson
from capture.dialects import completions
from capture.dialects.base import Asked, Dialect, with_fields
from capture.dialects.chat import Chat
from capture.dialects.completions import Completions
from capture.engines.vllm import Vllm
from capture.errors import ClientError
from tests.playbook import data_of

dialect: Dialect = Completions()


def body(prompt: Any = "Once", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, **fields}).encode()


def refused(raw: bytes) -> ClientError:
    with pytest.raises(ClientError) as error:
        dialect.read(raw)
    assert error.value.status == 400
    return error.value


def test_the_dialect() -> None:
    assert (dialect.name, dialect.bears_comments) == ("completions", True)
    request = dialect.read(body())
    assert dialect.translator(request) is None
    assert dialect.refers_to(body()) is None


def test_a_request_passes_as_it_came() -> None:
    raw = (
        b'{"prompt": "a\\u00e9",  "temperature": 0.10, "messages": 5, "max_tokens": 3, "n": 2, "best_of": 4,'
        b'"vendor": NaN}'
    )
    request = dialect.read(raw)
    assert request.fields == {
        "prompt": b'"a\\u00e9"', "temperature": b"0.10", "messages": b"5", "max_tokens": b"3", "n": b"2",
        "best_of": b"4", "vendor": b"NaN",
    }  # fmt: skip
    assert request.path == "/v1/completions"
    assert (request.choices, request.streamed, request.model) == (2, False, None)
    assert request.sampling == {"temperature": 0.1, "max_tokens": 3, "n": 2}
    assert request.undecoded is not None


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("Once", ["Once"]),
        ("", [""]),
        (["Once"], ["Once"]),
        ("a\ud800", ["a\ufffd"]),
        ([1, 2, 3], []),
        ([[1, 2, 3]], []),
        ([], []),
        (None, []),
    ],
)
def test_a_text_is_one_message_and_ids_are_none(prompt: Any, texts: list[str]) -> None:
    messages = dialect.read(body(prompt)).messages
    assert [(message.role, message.text) for message in messages] == [("user", text) for text in texts]


def test_digests_tell_prompts_apart() -> None:
    digests = {dialect.read(body(prompt)).body for prompt in ("a", "b", [1], [2], [[2]])}
    assert len(digests) == 5
    assert dialect.read(b'{"prompt":"a","model":"m"}').body == dialect.read(body("a")).body


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, Asked()),
        ({"logprobs": 0}, Asked(logprobs=True, top_logprobs=0)),
        ({"logprobs": 5}, Asked(logprobs=True, top_logprobs=5)),
        ({"logprobs": None, "top_logprobs": 3}, Asked()),
        ({"logprobs": True}, Asked()),
        ({"return_token_ids": True}, Asked(token_ids=True)),
        ({"stream": True, "stream_options": {"include_usage": True}}, Asked(usage=True)),
    ],
)
def test_what_the_client_asked_to_see(fields: dict[str, Any], asked: Asked) -> None:
    assert dialect.read(body(**fields)).asked == asked


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"[]", "invalid_json", None),
        (b'{"prompt": "a"', "invalid_json", None),
        (b'{"model": "m"}', "missing_field", "prompt"),
        (body(["a", "b"]), "several_prompts", "prompt"),
        (body([[1], [2]]), "several_prompts", "prompt"),
        (body([1, "a"]), "several_prompts", "prompt"),
        (body(5), "wrong_type", "prompt"),
        (body({}), "wrong_type", "prompt"),
        (body(prompt_embeds="AAAA"), "untranslatable", "prompt_embeds"),
        (body(stream="yes"), "wrong_type", "stream"),
        (body(model=5), "wrong_type", "model"),
        (body(n=0), "wrong_type", "n"),
        (body(n=[1]), "wrong_type", "n"),
    ],
)
def test_what_is_refused(raw: bytes, code: str, param: str | None) -> None:
    error = refused(raw)
    assert (error.code, error.param) == (code, param)
    assert json.loads(dialect.error(error))["error"]["param"] == param
    assert dialect.error(error) == Chat().error(error)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_the_last_reply_ends_an_agent_s_loop(streamed: bool, usage: bool) -> None:
    more = {"stream_options": {"include_usage": True}} if usage else {}
    request = dialect.read(body(stream=streamed, n=2, **more))
    kind, raw = dialect.last_reply(request, reply_id="chatcmpl-stop-1", created=1, text="[It is over.]")
    head = {"id": "chatcmpl-stop-1", "object": "text_completion", "created": 1, "model": "m"}
    zeros = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}

    def choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}

    if not streamed:
        assert kind == "application/json"
        choices = [choice(index, "[It is over.]", "stop") for index in (0, 1)]
        assert json.loads(raw) == {**head, "choices": choices, "usage": zeros}
        return
    assert kind.startswith("text/event-stream")
    expected: list[Any] = [
        {**head, "choices": [choice(index, text, finish)]}
        for text, finish in (("[It is over.]", None), ("", "stop"))
        for index in (0, 1)
    ]
    assert data_of(raw) == [*expected, *([{**head, "choices": [], "usage": zeros}] if usage else []), "[DONE]"]


EVERYTHING: dict[str, Any] = {
    "model": "m", "prompt": "Once", "echo": True, "logprobs": 2, "max_tokens": 5, "n": 2, "best_of": 3, "stop": ["a"],
    "stream": True, "stream_options": {"include_usage": True}, "suffix": "s", "temperature": 0.5,
    "logit_bias": {"5": 1}, "return_token_ids": True, "truncate_prompt_tokens": 5, "seed": 1, "user": "u",
}  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, False, 0, -1, 1.5, 10**400, float("nan"), "", "x", "\ud800", [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "prompt"]), inner, max_size=2),
    max_leaves=5,
)


def taken(raw: bytes) -> bool:
    refusal: ClientError | None = None
    try:
        request = dialect.read(raw)
    except ClientError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400
        assert json.loads(dialect.error(refusal))["error"]["type"] == "invalid_request_error"
        return False
    msgspec.json.encode(request.messages)
    rawjson.split(rawjson.join(with_fields(request.fields, Vllm().inject(request))))
    Vllm().reader(request)
    return True


@given(st.sampled_from(sorted(EVERYTHING)), JSON)
def test_a_wrong_value_anywhere_is_taken_or_refused(name: str, value: Any) -> None:
    assert taken(json.dumps({**EVERYTHING, name: value}).encode()) or name in ("prompt", "model", "n", "stream")


@given(st.integers(0, 1000))
def test_a_body_that_was_cut_is_refused(at: int) -> None:
    raw = json.dumps(EVERYTHING).encode()
    assert taken(raw)
    assert not taken(raw[: at % len(raw)])


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_prompt_that_is_too_deep_goes_to_the_engine(depth: int) -> None:
    assert taken(b'{"prompt":' + b"[" * depth + b"]" * depth + b"}")


@given(
    st.sampled_from(["Once", "", 'é\n"', "\U0001f600", "x" * 5000]),
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0.5, float("nan")]),
            "logprobs": st.sampled_from([0, 3, None]),
            "stream": st.booleans(),
            "n": st.sampled_from([1, 2]),
            "messages": st.just(5),
            "tools": st.just([{"type": "function", "function": {"name": "f"}}]),
            "prompt_embeds": st.just(None),
            "min_tokens": st.just(3),
            "vendor": st.just("\ud800"),
        },
    ),
)
def test_a_prompt_of_text_is_read_once_and_says_what_it_says_as_a_chat(prompt: str, fields: dict[str, Any]) -> None:
    raw = body(prompt, **fields)
    read, chat = dialect.read(raw), completions._read_any(rawjson.split(raw))
    # What names the body is another thing, and there are no messages whose bytes passed.
    same = {"body": "", "elements": None}
    assert msgspec.structs.replace(read, **same) == msgspec.structs.replace(chat, **same)
    assert read.elements is None or "prompt_embeds" in fields


def test_a_body_is_known_again_by_its_prompt_and_all_else() -> None:
    digest = dialect.read(body("a", temperature=1, seed=2)).body
    assert digest == dialect.read(body("a", seed=2, temperature=1)).body
    others = [body("b", temperature=1, seed=2), body("a", temperature=1, seed=3), body(["a"], temperature=1, seed=2)]
    assert digest not in [dialect.read(other).body for other in others]
