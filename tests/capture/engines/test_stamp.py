"""Chunks read by a stamp: what the full reader says of them, whatever they are."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.dialects.chat import Chat
from capture.dialects.express import Lane
from capture.engines.base import Choice, Seen
from capture.engines.chat_reader import ChatReader
from capture.engines.sampled import MAX_DOUBTS
from capture.engines.stamp import Stamp, begin_of, maybe_begin
from capture.engines.vllm import VllmReader
from capture.recorder import Recorder
from capture.sse import encode
from tests.engine import chunk, usage_chunk
from tests.playbook import body

HEAD = b'{"id":"a","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":'
TOKEN = HEAD + (
    b'{"content":"x"},"logprobs":{"content":[{"token":"x","logprob":-0.5,"bytes":[120],"top_logprobs":[]}]}'
    b',"finish_reason":null,"token_ids":[5]}]}'
)


LAST = TOKEN.replace(b'"finish_reason":null', b'"finish_reason":"stop","stop_reason":null')
LASTS = [
    LAST,
    LAST.replace(b'{"content":"x"}', b"{}"),
    LAST.replace(b'{"content":"x"}', b'{"content":""}'),
    LAST.replace(b'{"content":"x"}', b'{"reasoning":"\\n"}'),
    LAST.replace(b"[5]", b"null"),
    LAST.replace(b'"stop"', b'"abort"'),
    LAST.replace(b'"stop"', b'""'),
    LAST.replace(b'"stop_reason":null', b'"stop_reason":7'),
    LAST[:-1] + b',"system_fingerprint":"f"}',
]
USAGE = HEAD.partition(b'{"index"')[0] + b'],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
USAGES = [
    USAGE,
    USAGE[:-1] + b',"system_fingerprint":"f"}',
    USAGE[:-1] + b',"system_fingerprint":null}',
    USAGE[:-1] + b',"more":{}}',
    USAGE[:-1] + b',"system_fingerprint":"f","more":{}}',
    USAGE.replace(b"3", b'{"system_fingerprint":"f"}'),
    USAGE.replace(b"{", b'{"error":{"message":"x"},', 1),
    USAGE.replace(b'"prompt_tokens":3,', b'"prompt_tokens":1e999,'),
    USAGE.replace(b"[]", b"[5]"),
]


def stamp(*, logprobs: bool = False, ids: bool = False) -> Stamp:
    return Stamp(HEAD, shown=HEAD.replace(b'"m"', b'"theirs"'), logprobs=logprobs, ids=ids)


def test_a_chunk_in_three_pieces() -> None:
    piece = stamp().maybe_read(TOKEN)
    assert piece is not None
    assert piece[1::2] == ({"content": "x"}, [-0.5], [5])
    assert stamp().maybe_read(b"data: " + TOKEN + b"\n\n", 6, 2) == piece
    assert stamp().shown(TOKEN, piece) == (
        b'{"id":"a","object":"chat.completion.chunk","created":7,"model":"theirs","choices":[{"index":0,"delta":'
        b'{"content":"x"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
    )
    assert stamp(logprobs=True, ids=True).shown(TOKEN, piece) == TOKEN.replace(b'"m"', b'"theirs"')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"created":7', b'"created":8'),
        (b'"finish_reason":null', b'"finish_reason":"stop"'),
        (b"[5]}]}", b'[5]}],"usage":null}'),
        (b"[5]}]}", b'[5],"more":1}]}'),
        (b"[5]", b"[5,6]"),
        (b"[5]", b"[-5]"),
        (b"[5]", b"null"),
        (b"-0.5", b"NaN"),
        (b'"x"}', b'"\\ud800"}'),
        (b'{"content":"x"}', b"null"),
        (b'"delta":{', b'"delta": {'),
        (b'}]},"fini', b'}]} ,"fini'),
        (b'{"content":[{', b'null,"logprobs":{"content":[{'),
        (b'{"content":"x"}', b'{"x":{"a":1,"logprobs":{"content":[]}}}'),
    ],
)
def test_what_is_in_doubt_is_left_to_the_full_reader(old: bytes, new: bytes) -> None:
    assert old in TOKEN
    assert stamp().maybe_read(TOKEN.replace(old, new)) is None


def test_a_stamp_is_made_of_what_stands_before_the_delta() -> None:
    fields = {"index": b"0", "delta": b"{}", "logprobs": b"null", "finish_reason": b"null", "token_ids": b"null"}
    top = {"id": b'"a"', "choices": b"[]"}
    data = b'{"id":"a","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
    assert maybe_begin(data, top, [fields]) == begin_of(top, fields) == data[: data.index(b"{}")]
    assert begin_of({"choices": b"[]"}, fields) == b'{"choices":[{"index":0,"delta":'
    # Spaces, another order, another key, more choices, a value that is looked at each time.
    assert maybe_begin(b" " + data, top, [fields]) is None
    assert maybe_begin(data, top, [{**fields, "stop_reason": b"null"}]) is None
    assert maybe_begin(data, top, [fields, fields]) is None
    assert maybe_begin(data, {"choices": b"[]", "id": b'"a"'}, [fields]) is None
    assert maybe_begin(data, {"usage": b"null", **top}, [fields]) is None


# -- the same as the full reader


MARKS = ',"logprobs":{"content":[', ',"finish_reason":null,"token_ids":[', '"delta":', "}]}", "x", "", "é", "\ud800"
text = st.sampled_from(MARKS) | st.text(max_size=3)
number = st.sampled_from([-0.5, 0, 1e400, float("nan"), None, "x", True])
entry = st.fixed_dictionaries(
    {"token": text, "logprob": number}, optional={"bytes": st.just([1]), "top_logprobs": st.just([])}
)
nested = st.fixed_dictionaries({"a": st.just(1), "logprobs": st.just({"content": []})})
delta = (
    st.fixed_dictionaries({}, optional={"role": text, "content": text, "reasoning": text, "x": nested})
    | st.just({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]})
    | st.sampled_from([None, 5, "x"])
)
ids = st.lists(st.integers(0, 99), max_size=3) | st.sampled_from([None, [-1], [2**31], ["x"], [1.0], 5])


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    some = draw(st.lists(st.integers(0, 99), min_size=1, max_size=2))
    form = chunk(*some, text="x")
    form = {"id": form["id"], "object": form["object"], "created": 7, "model": "m", "choices": form["choices"]}
    (choice,) = form["choices"]
    choice = {key: choice[key] for key in ("index", "delta", "logprobs", "finish_reason", "token_ids")}
    form["choices"] = [choice]
    for _ in range(draw(st.integers(0, 2))):
        what = draw(st.integers(0, 9))
        if what == 0:
            choice["delta"] = draw(delta)
        elif what == 1:
            choice["logprobs"] = draw(st.none() | st.builds(lambda c: {"content": c}, st.lists(entry, max_size=2)))
        elif what == 2:
            choice["token_ids"] = draw(ids)
        elif what == 3:
            choice["finish_reason"] = draw(st.sampled_from(["stop", "", "abort", 5]))
        elif what == 4:
            choice["stop_reason"] = draw(st.sampled_from([None, 5]))
        elif what == 5:
            choice["index"] = draw(st.sampled_from([1, "x", None]))
        elif what == 6:
            form[draw(st.sampled_from(["usage", "error", "prompt_token_ids", "more"]))] = draw(
                st.sampled_from([None, {"message": "x"}, [1]])
            )
        elif what == 7:
            form["choices"] = draw(st.sampled_from([[], [choice, choice], None]))
        elif what == 8:
            form[draw(st.sampled_from(["id", "created", "model", "system_fingerprint"]))] = draw(text)
        else:
            form = dict(reversed(form.items()))
    return compact(form)


def compact(form: Any) -> bytes:
    return json.dumps(form, separators=(",", ":"), ensure_ascii=True).encode()


@st.composite
def events(draw: st.DrawFn) -> list[bytes]:
    """A stream: as an engine sends it, and then damaged anywhere."""
    plain = compact(chunk(5, text="y"))
    made = [compact(chunk(role=True))]
    for one in draw(st.lists(st.just(plain) | chunks(), min_size=1, max_size=8)):
        if draw(st.integers(0, 5)) == 0:
            at, more = draw(st.integers(0, len(one))), draw(st.integers(0, 3))
            one = (
                one[:at]
                + draw(st.sampled_from([b"", b" ", b",", b'"', b"}", b"]}", b"\xff", b'"a":1,']))
                + one[at + more :]
            )
        made.append(one)
    if draw(st.booleans()):
        return [*made, compact(chunk(1, finish="stop")), compact(usage_chunk(1)), b"[DONE]"]
    ends = [draw(st.sampled_from(LASTS)), draw(st.sampled_from(USAGES))]
    for _ in range(draw(st.integers(0, 2))):
        which, some = draw(st.integers(0, 1)), draw(st.sampled_from([b"", b" ", b",", b'"', b"}", b"\xff", b'"a":1,']))
        at, more = draw(st.integers(0, len(ends[which]))), draw(st.integers(0, 3))
        ends[which] = ends[which][:at] + some + ends[which][at + more :]
    return [*made, TOKEN, *draw(st.permutations(ends) | st.just(ends)), b"[DONE]"]


def told(choice: Choice) -> Any:
    arrays = [None if a is None else (a.dtype.str, a.tobytes()) for a in (choice.sampled_ids, choice.logprobs)]
    return choice.index, choice.finish_reason, choice.reply, arrays


def same(seen: Seen, data: bytes) -> Any:
    # Bytes that nobody touched are the very object, by which the recorder knows that it needn't write the event anew.
    return seen, seen.data is data


@given(events(), st.booleans(), st.booleans(), st.sampled_from([None, "m", "theirs"]), st.sampled_from([1, 2]))
@example([TOKEN, TOKEN.replace(b'{"content":"x"}', b"{}"), TOKEN], False, False, None, 1)
@example([TOKEN, TOKEN, TOKEN], True, True, "theirs", 1)
def test_a_stamp_says_what_the_full_reader_says(
    stream: list[bytes], token_ids: bool, logprobs: bool, model: str | None, choices: int
) -> None:
    request = Chat().read(body(stream=True, return_token_ids=token_ids, logprobs=logprobs, top_logprobs=1, n=choices))
    quick, full = VllmReader(request, model=model), VllmReader(request, model=model)
    for data in stream:
        full._stamp = full._ended = None  # so that it reads each event in full
        assert same(quick.event(data), data) == same(full.event(data), data)
        assert (quick.reply_id, quick.usage, quick.undecoded) == (full.reply_id, full.usage, full.undecoded)
    assert list(map(told, quick.choices())) == list(map(told, full.choices()))
    assert (quick.reply(), quick.top_logprobs()) == (full.reply(), full.top_logprobs())


def test_an_ordinary_stream_is_read_by_its_stamp() -> None:
    """Lest the equality above be that of the full reader with itself."""
    read = VllmReader(Chat().read(body(stream=True)))
    for data in (TOKEN, TOKEN, TOKEN):
        assert msgspec.json.decode(read.event(data).data or b"")["choices"][0]["token_ids"] is None
    assert read._stamp is not None
    assert read._stamp.maybe_read(TOKEN) is not None
    (choice,) = read.choices()
    assert choice.sampled_ids is not None
    assert choice.sampled_ids.tolist() == [5, 5, 5]


@pytest.mark.parametrize("last", LASTS[:4])
@pytest.mark.parametrize("usage", USAGES[:2])
def test_an_ordinary_end_is_read_by_it_too(last: bytes, usage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Chat().read(body(stream=True))
    quick, full = VllmReader(request), VllmReader(request)
    for reader in (quick, full):
        reader.event(TOKEN)
    full._stamp = None
    wanted = [full.event(last), full.event(usage)]
    monkeypatch.setattr(ChatReader, "event", None)
    assert [quick.event(last), quick.event(usage)] == wanted
    assert wanted[0].finished == ((0, "stop"),)
    assert wanted[1].data is None
    assert (quick.usage, quick.reply()) == (full.usage, full.reply())
    assert quick.usage == {"prompt_tokens": 3, "completion_tokens": 2}


@given(events(), st.booleans(), st.booleans(), st.sampled_from([None, "m", "theirs"]))
def test_the_short_way_of_an_event_is_the_long_way(
    stream: list[bytes], token_ids: bool, logprobs: bool, model: str | None
) -> None:
    """Two recorders, of which one may not take the short way."""
    request = Chat().read(body(stream=True, return_token_ids=token_ids, logprobs=logprobs, top_logprobs=1))
    readers = [VllmReader(request, model=model) for _ in range(2)]
    quick, full = (Recorder(request, reader) for reader in readers)
    full._express = None
    for one in (quick, full):
        one.answered(200)
    for at, data in enumerate(stream):
        raw = encode(data)
        if raw.count(b"\n\n") == 1:
            assert quick.feed(raw, at) == full.feed(raw, at)
            assert (quick.state, quick.first_token_ms, quick.error) == (full.state, full.first_token_ms, full.error)
    for one in (quick, full):
        one.eof()
    assert repr(quick) == repr(full)
    assert quick.release() == full.release()
    assert list(map(told, readers[0].choices())) == list(map(told, readers[1].choices()))
    assert (readers[0].reply(), readers[0].undecoded) == (readers[1].reply(), readers[1].undecoded)


class Laned:
    """A recorder that is fed as the relay feeds it: by its lane, and all that the lane leaves in full."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.lane: Lane | None = None
        self.taken = 0

    def feed(self, raw: bytes, at_ms: float) -> bytes:
        relayed = None if self.lane is None else self.lane.event(raw)
        if relayed is None:
            relayed = self.recorder.feed(raw, at_ms)
            self.lane = self.recorder.maybe_lane()
        else:
            self.taken += 1
        return relayed


def number_of(reader: VllmReader) -> int:
    """The number of the next event that can't be read, as the record would say it."""
    reader.event(b"{" + b" " * 20)
    return int(reader.undecoded[-1].split()[1])


@given(events(), st.booleans(), st.booleans(), st.sampled_from([None, "m", "theirs"]), st.integers(0, 9))
@example([TOKEN] * 5, False, False, None, 3)
def test_a_lane_is_the_long_way(
    stream: list[bytes], token_ids: bool, logprobs: bool, model: str | None, looked_at: int
) -> None:
    """Two recorders, one read in between, of which one may go neither the lane nor the short way."""
    request = Chat().read(body(stream=True, return_token_ids=token_ids, logprobs=logprobs, top_logprobs=1))
    readers = [VllmReader(request, model=model) for _ in range(2)]
    quick, full = (Recorder(request, reader) for reader in readers)
    full._express = None
    laned = Laned(quick)
    for one in (quick, full):
        one.answered(200)
    for at, data in enumerate(stream):
        raw = encode(data)
        if raw.count(b"\n\n") == 1:
            assert laned.feed(raw, at) == full.feed(raw, at)
            assert (quick.state, quick.first_token_ms, quick.error) == (full.state, full.first_token_ms, full.error)
        if at == looked_at:
            assert list(map(told, readers[0].choices())) == list(map(told, readers[1].choices()))
    for one in (quick, full):
        one.eof()
    assert (quick.status, quick.clean, quick.refuse) == (full.status, full.clean, full.refuse)
    assert quick.release() == full.release()
    assert list(map(told, readers[0].choices())) == list(map(told, readers[1].choices()))
    assert (readers[0].reply(), readers[0].undecoded) == (readers[1].reply(), readers[1].undecoded)
    if len(readers[0].undecoded) < MAX_DOUBTS:
        assert number_of(readers[0]) == number_of(readers[1])


def test_an_ordinary_stream_goes_by_the_lane() -> None:
    """Lest the equality above be that of the long way with itself."""
    reader = VllmReader(Chat().read(body(stream=True)))
    recorder = Recorder(reader._request, reader)
    laned = Laned(recorder)
    recorder.answered(200)
    for at in range(6):
        assert b'"content":"x"' in laned.feed(encode(TOKEN), at)
    # The first is read in full, for a stamp; from there on there is a lane.
    assert laned.taken == 5
    assert b'"content":"xxxxxx"' in (reader.reply() or b"")
    assert recorder.first_token_ms == 0


def test_a_lane_begins_behind_the_first_token_and_at_an_events_border() -> None:
    reader = VllmReader(Chat().read(body(stream=True)))
    recorder = Recorder(reader._request, reader)
    recorder.answered(200)
    recorder.feed(encode(compact(chunk(role=True))), 0)
    assert recorder.maybe_lane() is None
    recorder.feed(encode(TOKEN), 1)
    assert recorder.maybe_lane() is not None
    recorder.feed(encode(TOKEN)[:9], 2)
    assert recorder.maybe_lane() is None
    recorder.feed(encode(TOKEN)[9:], 3)
    assert recorder.maybe_lane() is not None
    # A client that gets the ids has none.
    asked = VllmReader(Chat().read(body(stream=True, return_token_ids=True)))
    recorder = Recorder(asked._request, asked)
    recorder.answered(200)
    recorder.feed(encode(TOKEN), 1)
    assert recorder.maybe_lane() is None


@given(st.floats(-100, 0, allow_nan=False) | st.floats(-1e15, 1e15))
def test_logprobs_of_a_lane_are_read_as_in_full(logprob: float) -> None:
    raw = encode(TOKEN).replace(b"-0.5", json.dumps(logprob).encode())
    readers = [VllmReader(Chat().read(body(stream=True))) for _ in range(2)]
    for reader in readers:
        reader.event(TOKEN)
    lane = readers[0].maybe_lane()
    assert lane is not None
    if lane.event(raw) is None:
        # Written without a fraction, or with a longer exponent: no number of a token's.
        readers[0].event(raw[6:-2])
    readers[1].event(raw[6:-2])
    assert list(map(told, readers[0].choices())) == list(map(told, readers[1].choices()))


def test_an_ordinary_stream_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Chat().read(body(stream=True))
    reader = VllmReader(request)
    recorder = Recorder(request, reader)
    recorder.answered(200)
    recorder.feed(encode(TOKEN), 1)
    recorder.feed(encode(TOKEN), 2)
    monkeypatch.setattr(reader, "event", None)
    assert b'"content":"x"' in recorder.feed(encode(TOKEN), 3)
    assert reader.choices()[0].sampled_ids is not None


def test_a_fault_on_the_short_way_costs_the_record_and_not_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Chat().read(body(stream=True))
    reader = VllmReader(request)
    recorder = Recorder(request, reader)
    recorder.answered(200)
    recorder.feed(encode(TOKEN), 1)

    def fail(raw: bytes) -> None:
        raise KeyError("x")

    monkeypatch.setattr(recorder, "_express", fail)
    assert recorder.feed(encode(TOKEN), 2) == encode(TOKEN)
    assert reader.undecoded == ["the reader failed: KeyError: 'x'"]


SPELLINGS = [b"x", b" <|y|> ", b"", "é\u2028\U0001f600".encode(), b"\xc3", b"\xed\xa0\xbd", b"\x7f"]
ESCAPES = [b"", rb"\n", rb"\"", rb"\\", rb"\b\f\r\t", rb"\/", rb"\u00e9", rb"\ud83d", b"\\", b"\n"]


@pytest.mark.parametrize("text", SPELLINGS)
@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("token", [b"x", None, rb"\n", "é".encode(), b"\xc3"])
def test_text_in_any_spelling_is_read_as_by_the_long_way(text: bytes, escape: bytes, token: bytes | None) -> None:
    said = text + escape
    event = encode(TOKEN).replace(b':"x"}', b':"%b"}' % said)
    event = event.replace(b'"token":"x"', b'"token":"%b"' % (said if token is None else token))
    request = Chat().read(body(stream=True))
    readers = [VllmReader(request) for _ in range(2)]
    quick, full = (Recorder(request, reader) for reader in readers)
    full._express = None
    for one in (quick, full):
        one.answered(200)
    for at, raw in enumerate((encode(TOKEN), encode(TOKEN), event, encode(TOKEN))):
        assert quick.feed(raw, at) == full.feed(raw, at)
    assert list(map(told, readers[0].choices())) == list(map(told, readers[1].choices()))
    assert (readers[0].reply(), readers[0].undecoded) == (readers[1].reply(), readers[1].undecoded)


def test_quotes_line_ends_and_other_scripts_are_plain_text() -> None:
    request = Chat().read(body(stream=True))
    reader = VllmReader(request)
    reader.event(TOKEN)
    for text in (r"\n", r"\"", "é", "\U0001f600", " x"):
        event = encode(TOKEN).replace(b'"x"', f'"{text}"'.encode())
        assert reader.maybe_token(event) is not None
