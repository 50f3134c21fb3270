"""Events of completions read by a stamp: what the full reader says of them, whatever they are and wherever cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.dialects.completions import Completions
from capture.engines.base import Choice
from capture.engines.completions_stamp import maybe_stamp
from capture.engines.vllm_completions import VllmCompletionsReader
from capture.rawjson import objects, split
from capture.recorder import Recorder
from capture.sse import encode

HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m"}
BEGIN = b'{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":'


def compact(form: Any) -> bytes:
    return json.dumps(form, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def event(text: Any, *, token: str | None = None, n: int = 1, **more: Any) -> dict[str, Any]:
    """An event as vLLM writes it."""
    said = text if token is None else token
    logprobs = {
        "text_offset": [3] * n,
        "token_logprobs": [-0.5] * n,
        "tokens": [said] * n,
        "top_logprobs": [{str(said): -0.5}] * n,
    }
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": None, "stop_reason": None}
    return {**HEAD, "choices": [{**choice, "prompt_token_ids": None, "token_ids": [5] * n, **more}]}


def maybe(data: bytes) -> Any:
    top = split(data)
    return maybe_stamp(data, top, objects(top["choices"]), model=b'"theirs"')


def test_a_stamp_is_made_of_what_stands_before_the_text() -> None:
    stamp = maybe(compact(event("x")))
    token = stamp.maybe_token(encode(compact(event(' "é"\n'))))
    assert (token.text, token.logprob, token.id) == (' "é"\n', -0.5, 5)
    assert token.shown == b"data: " + BEGIN.replace(b'"m"', b'"theirs"') + (
        rb'" \"' + "é".encode() + rb'\"\n","logprobs":null,"finish_reason":null,"stop_reason":null,'
        rb'"prompt_token_ids":null,"token_ids":null}]}' + b"\n\n"
    )
    assert "cmpl-1" in repr(stamp)


@pytest.mark.parametrize(
    "form",
    [
        {**event("x"), "usage": None},
        {**event("x"), "error": None},
        {"choices": event("x")["choices"], **HEAD},
        {**HEAD, "choices": event("x")["choices"] * 2},
        event("x", more=1),
    ],
)
def test_no_stamp_is_made_of_another_shape(form: dict[str, Any]) -> None:
    assert maybe(compact(form)) is None
    assert maybe(b" " + compact(event("x"))) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"created":7', b'"created":8'),
        (b'"finish_reason":null', b'"finish_reason":"stop"'),
        (b'"stop_reason":null', b'"stop_reason":7'),
        (b'"prompt_token_ids":null', b'"prompt_token_ids":[1]'),
        (b"[5]}]}", b"[5,6]}]}"),
        (b"[5]}]}", b"[-5]}]}"),
        (b"[5]}]}", b"[05]}]}"),
        (b"[5]}]}", b'[5]}],"usage":null}'),
        (b'"token_logprobs":[-0.5]', b'"token_logprobs":[null]'),
        (b'"token_logprobs":[-0.5]', b'"token_logprobs":[-0.5,-0.5]'),
        (b'"text":"x"', b'"text":"\\u0078"'),
        (b'"text":"x"', b'"text":"\xc3"'),
        (b'"text":"x"', b'"text":null'),
        (b'"tokens":["x"]', b'"tokens":["\xc3"]'),
    ],
)
def test_what_is_in_doubt_is_left_to_the_full_reader(old: bytes, new: bytes) -> None:
    data = compact(event("x"))
    assert old in data
    assert maybe(data).maybe_token(encode(data)) is not None
    assert maybe(data).maybe_token(encode(data.replace(old, new))) is None


# -- the same as the full reader

words = st.sampled_from(
    ["x", " the", "", "é", "\n", '"', "a\\b", "\x7f", "\b\f\r\t", "/", "\x1b", "\ud83d", "\U0001f600"]
)
odd = st.one_of(
    st.builds(lambda a, b: event(a, token=b), words, words),
    st.builds(lambda a: event(a, n=2), words),
    st.builds(lambda a: event(a, index=1), words),
    st.builds(lambda a: event(a, prompt_token_ids=[1, 2]), words),
    st.builds(lambda a: event(a, stop_reason=7), words),
    st.builds(lambda a: event(a, token_ids=None), words),
    st.builds(lambda a: event(a, logprobs=None), words),
    st.builds(lambda a: {**event(a), "usage": {"prompt_tokens": 2}}, words),
    st.builds(lambda a: {**event(a), "id": "other"}, words),
    st.builds(lambda a: {**event(a), "model": "other"}, words),
    st.just({**HEAD, "choices": []}),
    st.just({**HEAD, "error": {"message": "broke"}, "choices": []}),
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    made = [event("a", prompt_token_ids=[1, 2, 3])] if draw(st.booleans()) else []
    for some in draw(st.lists(st.lists(st.builds(event, words), max_size=5) | st.lists(odd, max_size=2), max_size=6)):
        made += some
    if draw(st.booleans()):
        made.append(event("", finish_reason=draw(st.sampled_from(["stop", "abort"]))))
        made.append({**HEAD, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    return [*map(compact, made), b"[DONE]"]


def told(choice: Choice) -> Any:
    arrays = [None if a is None else (a.dtype.str, a.tobytes()) for a in (choice.sampled_ids, choice.logprobs)]
    return choice.index, choice.finish_reason, choice.reply, arrays


def agree(pieces: list[bytes], *, model: str | None, **asked: Any) -> None:
    request = Completions().read(compact({"model": "m", "prompt": "hi", "stream": True, **asked}))
    readers = [VllmCompletionsReader(request, model=model) for _ in range(2)]
    quick, full = (Recorder(request, reader) for reader in readers)
    full._express = None
    for one in (quick, full):
        one.answered(200)
    for at, piece in enumerate(pieces):
        assert quick.feed(piece, at) == full.feed(piece, at)
        assert (quick.state, quick.first_token_ms, quick.error) == (full.state, full.first_token_ms, full.error)
    for one in (quick, full):
        one.eof()
    assert repr(quick) == repr(full)
    assert quick.release() == full.release()
    assert list(map(told, readers[0].choices())) == list(map(told, readers[1].choices()))
    assert (readers[0].reply(), readers[0].undecoded) == (readers[1].reply(), readers[1].undecoded)
    assert (readers[0].usage, readers[0].top_logprobs()) == (readers[1].usage, readers[1].top_logprobs())


MODELS = st.sampled_from([None, "m", "theirs"])


@given(streams(), MODELS, st.sampled_from([{}, {"n": 2}, {"echo": True}, {"logprobs": 0}, {"return_token_ids": True}]))
@example([compact(event("x", index=i)) for i in (0, 1, 1, 0)], None, {})
def test_the_short_way_is_the_long_way(stream: list[bytes], model: str | None, asked: dict[str, Any]) -> None:
    agree([encode(data) for data in stream], model=model, **asked)


@given(streams(), MODELS, st.lists(st.integers(0, 3000), max_size=6))
def test_it_is_that_wherever_the_network_cuts(stream: list[bytes], model: str | None, cuts: list[int]) -> None:
    whole = b"".join(map(encode, stream))
    at = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    agree([whole[a:b] for a, b in pairwise(at) if a < b], model=model)


def test_a_stream_cut_at_every_byte() -> None:
    events = [encode(compact(event(text))) for text in ("a", "b", "\n", "c")]
    for cut in range(1, len(events[-1])):
        agree([*events, events[-1][:cut], events[-1][cut:] + events[0] + events[1]], model=None)


def test_an_ordinary_stream_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lest the equality above be that of the full reader with itself."""
    request = Completions().read(compact({"model": "m", "prompt": "hi", "stream": True}))
    reader = VllmCompletionsReader(request)
    recorder = Recorder(request, reader)
    recorder.answered(200)
    recorder.feed(encode(compact(event("a", prompt_token_ids=[1, 2]))), 1)
    monkeypatch.setattr(reader, "event", None)
    for text in (" b", "\n", '"é"'):
        shown = recorder.feed(encode(compact(event(text))), 2)
        assert json.loads(shown[6:])["choices"][0]["text"] == text
    (choice,) = reader.choices()
    assert choice.sampled_ids is not None
    assert choice.sampled_ids.tolist() == [5] * 4
    assert reader.prompt_ids is not None
