"""Whole replies and streams, as events and as one list, with usage, errors and everything cut anywhere."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects.gemini_reply import Form, GeminiTranslator, usage_of
from capture.dialects.gemini_signature import sign

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "asked"}
TOLD = {"modelVersion": "asked", "responseId": "chatcmpl-1"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
COUNTS = {"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7}


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "logprobs": None, "finish_reason": finish}


def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({**HEAD, "choices": list(choices), **more}).encode()


STREAM = [
    chunk(delta(role="assistant", content="")),
    chunk(delta(reasoning="Hm.")),
    chunk(delta(content="I lo"), delta(1, content="No")),
    chunk(delta(content="ok.")),
    chunk(delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"a":'}}])),
    chunk(delta(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]), delta(1, finish="length")),
    chunk(delta(finish="tool_calls")),
    chunk(usage=USAGE),
    b"[DONE]",
]
MESSAGE = {
    "role": "assistant",
    "content": "I look.",
    "reasoning": "Hm.",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}],
}
WHOLE = {
    **HEAD,
    "choices": [
        {"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"},
        {"index": 1, "message": {"role": "assistant", "content": "No"}, "finish_reason": "length"},
    ],
    "usage": USAGE,
}
CALL = {"functionCall": {"id": "c1", "name": "look", "args": {"a": 1}}, "thoughtSignature": sign("Hm.")}
REPLY = {
    "candidates": [
        {
            "content": {"parts": [{"text": "Hm.", "thought": True}, {"text": "I look."}, CALL], "role": "model"},
            "finishReason": "STOP",
            "index": 0,
        },
        {"content": {"parts": [{"text": "No"}], "role": "model"}, "finishReason": "MAX_TOKENS", "index": 1},
    ],
    "usageMetadata": COUNTS,
    **TOLD,
}


def shown(index: int, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"content": {"parts": list(parts), "role": "model"}, "index": index, **more}


CHUNKS: list[dict[str, Any]] = [
    {"candidates": [shown(0, {"text": "Hm.", "thought": True})], **TOLD},
    {"candidates": [shown(0, {"text": "I lo"}), shown(1, {"text": "No"})], **TOLD},
    {"candidates": [shown(0, {"text": "ok."})], **TOLD},
    {
        "candidates": [shown(0, CALL, finishReason="STOP"), shown(1, {"text": ""}, finishReason="MAX_TOKENS")],
        "usageMetadata": COUNTS,
        **TOLD,
    },
]


def translator(**form: Any) -> GeminiTranslator:
    return GeminiTranslator(Form(**{"thoughts": True, **form}))


def events(out: bytes) -> list[dict[str, Any]]:
    assert out == b"" or (out.startswith(b"data: ") and out.endswith(b"\n\n"))
    return [json.loads(event[6:]) for event in out.split(b"\n\n")[:-1]]


def test_a_whole_reply() -> None:
    made = translator()
    assert json.loads(made.whole(json.dumps(WHOLE).encode())) == REPLY
    assert json.loads(made.reply() or b"") == REPLY


def test_a_stream_chunk_by_chunk() -> None:
    made = translator()
    out = [events(made.event(data)) for data in STREAM]
    # Nothing waits but a call, and the finish for the usage.
    assert out == [[], [CHUNKS[0]], [CHUNKS[1]], [CHUNKS[2]], [], [], [], [CHUNKS[3]], []]
    assert made.end() == b""
    assert made.stream_type == "text/event-stream"
    assert json.loads(made.reply() or b"") == REPLY


def test_a_stream_as_one_list() -> None:
    made = translator(sse=False)
    assert made.stream_type == "application/json"
    out = [made.event(data) for data in STREAM]
    assert out[1].startswith(b"[{")
    assert out[2].startswith(b",\r\n{")
    assert json.loads(b"".join(out)) == CHUNKS


def test_without_usage_the_last_chunk_comes_at_the_end() -> None:
    made = translator()
    out = [events(made.event(data)) for data in STREAM[:-2]]
    (last,) = events(made.event(b"[DONE]"))
    assert out[-1] == []
    assert last == {name: value for name, value in CHUNKS[3].items() if name != "usageMetadata"}
    assert made.end() == b""


def test_a_running_usage_ends_nothing() -> None:
    made = translator()
    assert len(events(made.event(chunk(delta(content="Hi"), usage=USAGE)))) == 1
    assert made.event(chunk(delta(finish="stop"), usage=USAGE)) == b""
    (last,) = events(made.end())
    assert last == {"candidates": [shown(0, {"text": ""}, finishReason="STOP")], "usageMetadata": COUNTS, **TOLD}


@pytest.mark.parametrize("sse", [True, False])
def test_without_a_finish_there_is_no_end(sse: bool) -> None:
    made = translator(sse=sse)
    made.event(STREAM[0])
    first = made.event(STREAM[1])
    assert first
    assert not first.endswith(b"]")
    assert made.event(b"[DONE]") == made.end() == made.event(chunk(usage=USAGE)) == b""
    assert "finishReason" not in json.loads(made.reply() or b"")["candidates"][0]


@pytest.mark.parametrize(
    ("told", "code", "message"),
    [
        ({"error": {"message": "It died.", "type": "X", "code": 503}}, 503, "It died."),
        ({"error": "It died."}, 500, "It died."),
        ({"object": "error", "message": "It died.", "code": 400}, 400, "It died."),
    ],
)
def test_an_error_in_a_stream_stands_bare(told: dict[str, Any], code: int, message: str) -> None:
    made = translator()
    made.event(STREAM[1])
    out = made.event(json.dumps(told).encode())
    # As google-genai for JavaScript finds it: a piece that is JSON as it stands.
    error = json.loads(out)["error"]
    assert (error["code"], error["message"]) == (code, message)
    assert out.endswith(b"}\n\n")
    assert [made.event(data) for data in STREAM[2:]] == [b""] * 7
    assert made.end() == b""


def test_an_error_in_a_list_leaves_it_open() -> None:
    made = translator(sse=False)
    out = made.event(STREAM[1]) + made.event(b'{"error":{"message":"It died."}}') + made.event(b"[DONE]") + made.end()
    assert json.loads(out + b"]")[1]["error"]["message"] == "It died."


def test_an_engine_s_refusal_keeps_its_words() -> None:
    words = "This model's maximum context length is 16 tokens."
    for said in (json.dumps({"error": {"message": words, "code": 400}}).encode(), words.encode()):
        error = json.loads(translator().failed(400, said))["error"]
        assert error == {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({}, {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0}),
        (
            {
                **USAGE,
                "completion_tokens_details": {"reasoning_tokens": 3},
                "prompt_tokens_details": {"cached_tokens": 2},
            },
            {
                "promptTokenCount": 3,
                "candidatesTokenCount": 1,
                "thoughtsTokenCount": 3,
                "cachedContentTokenCount": 2,
                "totalTokenCount": 7,
            },
        ),
        ({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None}, COUNTS),
        ({"prompt_tokens": True, "completion_tokens": "4", "total_tokens": None},
         {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0}),
    ],
)  # fmt: skip
def test_usage(usage: dict[str, Any], counts: dict[str, int]) -> None:
    assert usage_of(usage) == counts


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"index":0}]}', b'{"choices":[5]}', b"x"]
)
def test_a_reply_that_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        translator().whole(body)


def test_nothing_came() -> None:
    made = translator()
    assert made.reply() is None
    assert made.end() == b""
    assert repr(made) == "<GeminiTranslator new sent=0 []>"


def test_halves_of_a_surrogate_pair_meet() -> None:
    made = translator()
    out = [made.event(data) for data in (chunk(delta(content="\ud83d")), chunk(delta(content="\ude00", finish="stop")))]
    assert [json.loads(one[6:])["candidates"][0]["content"]["parts"][0]["text"] for one in out] == ["\ud83d", "\ude00"]
    assert json.loads(made.reply() or b"")["candidates"][0]["content"]["parts"] == [{"text": "\U0001f600"}]


@given(st.integers(0, len(STREAM)), st.booleans())
def test_a_stream_that_stops_anywhere_has_only_what_was_said(at: int, sse: bool) -> None:
    made = translator(sse=sse)
    out = b"".join(made.event(data) for data in STREAM[:at])
    chunks = events(out) if sse else json.loads(out if out.endswith(b"]") else out + b"]") if out else []
    assert chunks == CHUNKS[: len(chunks)]
    assert (b"finishReason" in out) == (at >= 8)


JSON = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, "", "x", "{}", "{", "\ud800", "stop"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "index", "delta", "message", "content", "reasoning", "tool_calls", "function", "name",
             "arguments", "id", "finish_reason", "usage", "logprobs", "error", "model", "prompt_tokens_details"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(JSON, max_size=4), st.booleans())
def test_garbage_is_shown_or_called_none(forms: list[Any], sse: bool) -> None:
    made = translator(sse=sse)
    for form in forms:
        try:
            made.event(json.dumps(form).encode())
            made.reply()
            translator().whole(json.dumps(form).encode())
        except ValueError:
            pass
    made.end()
