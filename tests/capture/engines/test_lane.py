"""The compiled lane: it takes what the Python lane takes, and makes the same of it."""

import gc
import json
import weakref
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.chunks import framed
from capture.dialects.express import Lane, PlainLane
from capture.engines import stamp
from capture.engines.stamp import Stamp, Tell

pytestmark = pytest.mark.skipif(
    stamp.compiled is None, reason="the lane in C: no compiler built it (`uv pip install -e .` with gcc or clang)"
)

HEAD = b'{"id":"a","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":'
STAMP = Stamp(HEAD, shown=HEAD.replace(b'"m"', b'"theirs"'), logprobs=False, ids=False)


def event(
    text: str = '"x"',
    *,
    field: str = "content",
    token: str | None = None,
    logprob: str = "-0.5",
    raw: str = "[120]",
    id_: str = "5",
) -> bytes:
    """A token's event as vLLM writes it; text and token are JSON."""
    token = text if token is None else token
    entry = f'{{"token":{token},"logprob":{logprob},"bytes":{raw},"top_logprobs":[]}}'
    rest = f'{{"{field}":{text}}},"logprobs":{{"content":[{entry}]}},"finish_reason":null,"token_ids":[{id_}]}}]}}'
    return b"data: " + HEAD + rest.encode("utf-8", "surrogatepass") + b"\n\n"


TOKEN = event()


class Both:
    """A lane of each sort, and where each keeps what it read."""

    def __init__(self, tell: Tell | None = None) -> None:
        self.kept: list[tuple[dict[str, list[str]], tuple[list[bytes], list[bytes]]]] = []
        self.lanes: list[Lane] = []
        for made in (stamp.compiled, None):
            texts: dict[str, list[str]] = {}
            raw: tuple[list[bytes], list[bytes]] = ([], [])

            def keep(name: str, texts: dict[str, list[str]] = texts) -> list[str]:
                return texts.setdefault(name, [])

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stamp, "compiled", made)
                lane = STAMP.maybe_lane(keep, raw, tell=tell)
            assert lane is not None
            assert isinstance(lane, PlainLane) == (made is None)
            self.lanes.append(lane)
            self.kept.append((texts, raw))

    def event(self, data: bytes) -> bytes | None:
        """Give both an event; return what both say."""
        told = [lane.event(data) for lane in self.lanes]
        assert told[0] == told[1]
        assert self.kept[0] == self.kept[1]
        return told[0]

    def chunk(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Give both a chunk; return what both say."""
        told = [lane.chunk(data) for lane in self.lanes]
        assert told[0] == told[1]
        assert self.kept[0] == self.kept[1]
        return told[0]


def test_a_token() -> None:
    both = Both()
    shown = (
        b'data: {"id":"a","object":"chat.completion.chunk","created":7,"model":"theirs","choices":[{"index":0,"delta":'
        b'{"content":"x"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
    )
    assert both.event(TOKEN) == shown
    assert both.chunk(framed(TOKEN)) == (shown, framed(shown))
    assert both.kept[0] == ({"content": ["x", "x"]}, ([b"5", b"5"], [b"-0.5", b"-0.5"]))


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content", "refusal", "contents", "x"])
def test_by_field(field: str) -> None:
    both = Both()
    assert (both.event(event(field=field)) is None) == (field not in ("content", "reasoning", "reasoning_content"))


@pytest.mark.parametrize(
    "text",
    ['""', '"é"', '"\U0001f600"', r'"\""', r'"\\"', r'"\b\f\n\r\t"', r'"\/"', r'"\ud83d\ude00"', r'"\ud800"',
     '"\ud800"', '"\x7f"', '"\n"', '"\\', '"', "null", "5"],
)  # fmt: skip
def test_by_text(text: str) -> None:
    both = Both()
    both.event(event(text))
    both.event(event(text, token='"x"'))
    both.event(event('"x"', token=text))


@pytest.mark.parametrize(
    "logprob",
    ["0.0", "-0.0", "-1e-05", "1E+5", "-9999.0", "-0", "1", "01.5", "1.", ".5", "1e", "1.5e", "1e123", "NaN", "null",
     "-Infinity", "--1.0", "1234567890123456.5", "12345678901234567.5", "0.12345678901234567890", "-",
     "0.123456789012345678901"],
)  # fmt: skip
def test_by_logprob(logprob: str) -> None:
    Both().event(event(logprob=logprob))


@pytest.mark.parametrize("raw", ["null", "[]", "[1,20,255]", "[01]", "[1,]", "[,1]", "[1234]", "[-1]", "nul", "5", "["])
def test_by_bytes(raw: str) -> None:
    Both().event(event(raw=raw))


@pytest.mark.parametrize("id_", ["0", "123456789", "1234567890", "05", "-5", "5,6", "", "null"])
def test_by_id(id_: str) -> None:
    Both().event(event(id_=id_))


def test_cut_anywhere_it_is_nothing() -> None:
    both = Both()
    whole = framed(TOKEN)
    for at in range(len(whole)):
        assert both.chunk(whole[:at]) is None
        assert both.event(TOKEN[: min(at, len(TOKEN) - 1)]) is None
    assert both.kept[0] == ({}, ([], []))


SMALL = [b"", b" ", b",", b'"', b"}", b"]", b"\\", b"\\n", b"\xff", b"\xc3\xa9", b"0", b"7", b"e", b".", b"-", b"\n",
         b"\r\n", b"\0", b"null"]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An event of any text, with a byte or a few of it changed, or none."""
    text = draw(st.text(max_size=6) | st.sampled_from(["x", "\u2028", '"', "\\", "\n"]))
    spelled = json.dumps(text, ensure_ascii=draw(st.booleans()))
    token = draw(st.sampled_from([None, '"x"', spelled]))
    number = json.dumps(draw(st.floats(-100, 0) | st.floats(allow_nan=False)))
    made = event(
        spelled,
        field=draw(st.sampled_from(["content", "reasoning", "reasoning_content"])),
        token=token,
        logprob=number,
        id_=str(draw(st.integers(0, 2**31 - 1))),
    )
    for _ in range(draw(st.integers(0, 2))):
        at, out = draw(st.integers(0, len(made))), draw(st.integers(0, 3))
        made = made[:at] + draw(st.sampled_from(SMALL) | st.binary(max_size=2)) + made[at + out :]
    return made


@given(st.lists(damaged(), max_size=5))
@example([TOKEN, TOKEN + TOKEN, TOKEN])
def test_whatever_comes_both_say_the_same(events: list[bytes]) -> None:
    both = Both()
    for data in events:
        both.event(data)


@given(damaged(), st.integers(-2, 2), st.sampled_from([b"", b"0", b"x"]), st.sampled_from(["%x", "%X", "%03x"]))
@example(TOKEN, 0, b"", "%x")
def test_whatever_chunk_comes_both_say_the_same(data: bytes, off: int, behind: bytes, form: str) -> None:
    size = (form % max(0, len(data) + off)).encode()
    Both().chunk(b"%b\r\n%b\r\n%b" % (size, data, behind))


@given(st.lists(damaged(), max_size=5), st.sampled_from([b"told", b"", None]))
def test_who_tells_is_asked_alike(events: list[bytes], answer: bytes | None) -> None:
    asked: list[Any] = []

    def tell(field: bytes, text: bytes, said: str) -> bytes | None:
        asked.append((field, text, said))
        return answer

    both = Both(tell)
    for data in [TOKEN, *events]:
        both.event(data)
        both.chunk(framed(data))
    # Each by turns.
    assert asked[::2] == asked[1::2] != []


def test_what_the_teller_raises_is_raised_and_nothing_is_kept() -> None:
    def tell(field: bytes, text: bytes, said: str) -> bytes | None:
        raise RuntimeError(said)

    both = Both(tell)
    for lane in both.lanes:
        with pytest.raises(RuntimeError, match="x"):
            lane.event(TOKEN)
    assert both.kept[0] == both.kept[1] == ({}, ([], []))


def test_an_ordinary_token_is_taken() -> None:
    """Lest the equality above be that of two that take nothing."""
    both = Both()
    for text in ("a", "é", '"', "\\", "\n", " word", "\U0001f600"):
        assert both.event(event(json.dumps(text, ensure_ascii=False))) is not None
    assert both.kept[0][0]["content"] == ["a", "é", '"', "\\", "\n", " word", "\U0001f600"]


def test_what_it_is_given_wrongly_is_refused() -> None:
    compiled: Any = stamp.compiled and stamp.compiled.Lane
    good: list[Any] = [b"a", b"b", b"c", lambda _: [], [], [], None]
    compiled(*good)
    for at, wrong in ((0, "a"), (1, None), (4, ()), (5, None)):
        with pytest.raises(TypeError):
            compiled(*[wrong if i == at else one for i, one in enumerate(good)])
    lane = compiled(STAMP._lead, b"", b"", lambda _: (), [], [], None)
    for odd in ("text", None, bytearray(TOKEN)):
        with pytest.raises(TypeError, match="bytes"):
            lane.event(odd)
        with pytest.raises(TypeError, match="bytes"):
            lane.chunk(odd)
    with pytest.raises(TypeError, match="keep must return a list"):
        lane.event(TOKEN)
    for told in ("text", 5):
        with pytest.raises(TypeError, match="tell must return"):
            compiled(STAMP._lead, b"", b"", lambda _: [], [], [], lambda *_, told=told: told).event(TOKEN)


def test_it_holds_nothing_when_it_is_gone() -> None:
    class Kept(list[bytes]):
        pass

    compiled: Any = stamp.compiled and stamp.compiled.Lane
    ids = Kept()
    there = weakref.ref(ids)

    def keep(_: str) -> list[str]:
        return []

    keep.lane = compiled(STAMP._lead, b"", b"", keep, ids, [], None)  # type: ignore[attr-defined] # in a ring on purpose
    keep.lane.event(TOKEN)  # type: ignore[attr-defined]
    assert ids == [b"5"]
    del ids, keep
    gc.collect()
    assert there() is None
