"""The short way of a translated stream: what the long way says of it, whatever it is and wherever it is cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.dialects.base import Request, Target
from capture.dialects.express import Express, Terse, maybe_express
from capture.dialects.gemini import Gemini
from capture.dialects.messages import Messages
from capture.dialects.responses import Responses
from capture.engines.base import Choice
from capture.engines.sglang import SglangReader
from capture.engines.vllm import VllmReader
from capture.recorder import Recorder
from capture.sse import encode

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
DIALECTS = ("messages", "responses", "gemini", "gemini thoughts", "gemini list")


def asked(dialect: str) -> tuple[Any, Request]:
    if dialect == "messages":
        body: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        return Messages(), Messages().read(json.dumps(body | {"stream": True}).encode())
    if dialect == "responses":
        tool = {"type": "custom", "name": "f"}
        body = {"model": "m", "input": "hi", "stream": True, "tools": [tool]}
        return Responses(), Responses().read(json.dumps(body).encode())
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    if dialect == "gemini thoughts":
        body["generationConfig"] = {"thinkingConfig": {"includeThoughts": True}}
    target = Target(model="m", streamed=True, sse=dialect != "gemini list")
    return Gemini(), Gemini().read(json.dumps(body).encode(), target=target)


def compact(form: Any) -> bytes:
    return json.dumps(form, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def chunk(delta: Any, *, n: int = 1, **more: Any) -> dict[str, Any]:
    """A chunk as vLLM writes it."""
    said = next(iter(delta.values()), "x") if isinstance(delta, dict) else "x"
    entry = {"token": said if isinstance(said, str) else "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
    choice = {"index": 0, "delta": delta, "logprobs": {"content": [entry] * n}, "finish_reason": None}
    return {**HEAD, "choices": [{**choice, "token_ids": [5] * n, **more}]}


FIRST = {**HEAD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
FIELDS = ("content", "reasoning", "reasoning_content")

words = st.sampled_from(
    [
        "x",
        " the",
        "",
        "é",
        "\n",
        '"',
        "a\\b",
        "\x7f",
        " <|x|> ",
        "\u2028",
        "\b\f\r\t",
        "/",
        "\x1b",
        "\ud83d",
        "\U0001f600",
    ]
)
tokens = st.builds(lambda name, text: chunk({name: text}), st.sampled_from(FIELDS), words)
runs = st.builds(
    lambda name, texts: [chunk({name: text}) for text in texts], st.sampled_from(FIELDS), st.lists(words, max_size=5)
)
calls = st.builds(
    lambda index, id_, name, arguments: chunk(
        {"tool_calls": [{"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}]}
    ),
    st.integers(0, 1),
    st.sampled_from([None, "c1", "c2"]),
    st.sampled_from([None, "f", "g"]),
    st.sampled_from(["", "{", '{"input":"x"}', '"}', "{}"]),
)
odd = st.one_of(
    st.builds(lambda a, b: chunk({"content": a, "reasoning": b}), words, words),
    st.builds(lambda a: chunk({"refusal": a}), words),
    st.builds(lambda a: chunk({"refusal": "no", "content": a}), words),
    st.builds(lambda a: chunk({"content": a}, index=1), words),
    st.builds(lambda a: chunk({"content": a}, n=2), words),
    st.builds(lambda a: chunk({"content": a}, stop_reason=None), words),
    st.builds(lambda a: chunk({"content": a}) | {"id": "other"}, words),
    st.builds(lambda a: chunk({"content": a}) | {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}, words),
    st.just(chunk({})),
    st.just(chunk(None)),
    st.just({**HEAD, "choices": []}),
    st.just({**HEAD, "error": {"message": "broke"}, "choices": []}),
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    made: list[Any] = [FIRST] if draw(st.booleans()) else []
    for some in draw(st.lists(runs | st.lists(tokens | calls | odd, max_size=2), max_size=6)):
        made += some
    if draw(st.booleans()):
        made.append(chunk({}, finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls", "abort"]))))
        made.append({**HEAD, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    return [*map(compact, made), b"[DONE]"]


def recorders(dialect: str) -> tuple[Recorder, Recorder, list[VllmReader], list[Any]]:
    """Two recorders, of which the second one may not take the short way; with their readers and translators."""
    spoken, request = asked(dialect)
    readers = [VllmReader(request) for _ in range(2)]
    translators = [spoken.translator(request) for _ in range(2)]
    quick, full = (Recorder(request, r, translator=t) for r, t in zip(readers, translators, strict=True))
    assert isinstance(quick._express, Express)
    full._express = None
    for one in (quick, full):
        one.answered(200)
    return quick, full, readers, translators


def agree(dialect: str, pieces: list[bytes]) -> None:
    """Feed both; the quick one as the relay does, by its lane where it has one."""
    quick, full, readers, translators = recorders(dialect)
    lane = None
    for at, piece in enumerate(pieces):
        told = None if lane is None else lane.event(piece)
        if told is None:
            told = quick.feed(piece, at)
            lane = quick.maybe_lane()
        assert told == full.feed(piece, at)
        assert (quick.state, quick.first_token_ms, quick.error) == (full.state, full.first_token_ms, full.error)
        assert quick.untranslatable == full.untranslatable
    for one in (quick, full):
        one.eof()
    assert quick.status == full.status
    assert quick.release() == full.release()
    told_of = [[(c.index, c.finish_reason, c.reply, arrays(c)) for c in reader.choices()] for reader in readers]
    assert told_of[0] == told_of[1]
    assert (readers[0].reply(), readers[0].undecoded) == (readers[1].reply(), readers[1].undecoded)
    assert translators[0].reply() == translators[1].reply()


def arrays(choice: Choice) -> Any:
    return [None if a is None else (a.dtype.str, a.tobytes()) for a in (choice.sampled_ids, choice.logprobs)]


@given(st.sampled_from(DIALECTS), streams())
@example("gemini", [compact(chunk({"reasoning": "a"})) for _ in range(4)])
@example(
    "gemini", [compact(chunk(delta, index=i)) for delta, i in (({"content": "a"}, 1), ({}, 0), ({"content": "a"}, 0))]
)
@example(
    "messages",
    [compact(chunk({"content": "a"}) | {"id": "b"}), compact(chunk({})), *[compact(chunk({"content": "c"}))] * 3],
)
@example("responses", [compact(chunk({"content": "a"}, index=i)) for i in (0, 1, 1, 1, 0, 0)])
def test_the_short_way_is_the_long_way(dialect: str, stream: list[bytes]) -> None:
    agree(dialect, [encode(data) for data in stream])


@given(st.sampled_from(DIALECTS), streams(), st.lists(st.integers(0, 3000), max_size=6))
def test_it_is_that_wherever_the_network_cuts(dialect: str, stream: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(encode(data) for data in stream)
    at = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    agree(dialect, [whole[a:b] for a, b in pairwise(at) if a < b])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_cut_at_every_byte(dialect: str) -> None:
    stream = [FIRST, *(chunk({"content": text}) for text in ("a", "b", "\n", "c", "d"))]
    events = [encode(compact(one)) for one in stream]
    last = events[-1]
    for cut in range(1, len(last)):
        agree(dialect, [*events[:-1], last[:cut], last[cut:] + last + last])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("field", FIELDS)
def test_an_ordinary_stream_goes_the_short_way(dialect: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lest the equality above be that of the long way with itself."""
    quick, _, readers, translators = recorders(dialect)
    for one in (FIRST, chunk({field: "a"}), chunk({field: "b"})):
        quick.feed(encode(compact(one)), 1)
    for long in (readers[0], translators[0]):
        monkeypatch.setattr(long, "event", None)
    hidden = field != "content" and dialect in ("gemini", "gemini list")
    assert isinstance(quick._express, Express)
    # Before anything has been relayed there is none.
    lane = quick.maybe_lane() or quick._express.maybe_lane()
    assert lane is not None
    assert (quick.maybe_lane() is None) == hidden
    for text, spelled in (("c d", b'"c d"'), ('"\n', rb'"\"\n"'), ("é\U0001f600", '"é\U0001f600"'.encode())):
        # By the lane of the relay's, and without.
        event = encode(compact(chunk({field: text})))
        shown = lane.event(event)
        assert shown is not None
        assert (shown == quick.feed(event, 1)) == (dialect != "responses")
        assert (spelled in shown, shown == b"") == (not hidden, hidden)
    (choice,) = readers[0].choices()
    assert choice.sampled_ids is not None
    assert choice.sampled_ids.tolist() == [5] * 8


def test_a_fault_of_the_readers_costs_the_record_and_not_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(token: Any) -> None:
        raise KeyError("x")

    quick, full, readers, _ = recorders("messages")
    for one in (quick, full):
        for text in ("a", "b"):
            one.feed(encode(compact(chunk({"content": text}))), 1)
    monkeypatch.setattr(quick._express, "_take", fail)
    event = encode(compact(chunk({"content": "c"})))
    assert quick.feed(event, 2) == full.feed(event, 2)
    assert readers[0].undecoded == ["the reader failed: KeyError: 'x'"]


def test_a_piece_of_text_and_what_stands_around_it() -> None:
    kept: list[str] = []
    terse = Terse(b"content", b"<", b">", (kept,))
    assert terse.maybe_tell(b"content", b"x", "x") == b"<x>"
    assert terse.maybe_tell(b"reasoning", b"x", "x") is None
    assert terse.maybe_tell(b"content", b"", "") is None
    assert Terse(b"content", b"", b"", (kept,), hidden=True).maybe_tell(b"content", b"y", "y") == b""
    assert kept == ["x", "y"]


def test_an_engine_without_a_short_way_has_none() -> None:
    spoken, request = asked("messages")
    reader = SglangReader(request)
    assert maybe_express(reader, spoken.translator(request), print) is None
    assert maybe_express(VllmReader(request), object(), print) is None
    assert repr(maybe_express(VllmReader(request), spoken.translator(request), print)) == "<Express new>"
