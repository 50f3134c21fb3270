"""First events read by an opening: what the full reader says of them, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.dialects.chat import Chat
from capture.engines import vllm
from capture.engines.tips import Known
from capture.engines.vllm import VllmReader
from tests.playbook import body

MORE = b'{"id":"%b","object":"chat.completion.chunk","created":%d,"model":"m","choices":[{"index":0,"delta":'
ROLE = (
    b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
    b',"prompt_token_ids":[%b],"prompt_text":null}'
)
TOKEN = (
    b'{"content":"x"},"logprobs":{"content":[{"token":"x","logprob":-0.5,"bytes":[120],"top_logprobs":[]}]}'
    b',"finish_reason":null,"token_ids":[5]}]}'
)
# Two prompts, of which the second goes on from the first; and one of its own.
PROMPT = b",".join([b"%d" % i for i in range(1000, 1600)])
LONGER = PROMPT + b"," + PROMPT
OTHER = PROMPT[::-1].replace(b",0", b",1")


def first(*, name: bytes = b"chatcmpl-1", created: int = 7, prompt: bytes = PROMPT) -> bytes:
    return MORE % (name, created) + ROLE % prompt


def token(*, name: bytes = b"chatcmpl-1", created: int = 7) -> bytes:
    return MORE % (name, created) + TOKEN


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    vllm._openings.clear()
    yield
    vllm._openings.clear()


def read(events: list[bytes], known: Known, *, model: str | None = None, quick: bool) -> tuple[Any, ...]:
    """Read a stream; return all that is to be known of it."""
    request = Chat().read(body(stream=True))
    reader = VllmReader(request, model=model)
    reader.known = known
    if not quick:
        vllm._openings.clear()
    seen = [reader.event(data) for data in events]
    choices = [(c.index, c.finish_reason, c.reply, str(c.sampled_ids), str(c.logprobs)) for c in reader.choices()]
    ids = None if reader.prompt_ids is None else reader.prompt_ids.tolist()
    return seen, reader.reply_id, ids, choices, reader.reply(), reader.usage, list(reader.undecoded), reader._events


def taught(*, model: str | None = None) -> None:
    """Have an opening made."""
    assert vllm._openings == []
    reader = VllmReader(Chat().read(body(stream=True)), model=model)
    reader.known = Known()
    reader.event(first(name=b"chatcmpl-0", created=3))
    assert len(vllm._openings) == 1


@pytest.mark.parametrize("model", [None, "m", "theirs"])
@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, LONGER], [PROMPT, OTHER], [PROMPT, PROMPT]])
def test_an_ordinary_first_event_is_read_by_it(
    prompts: list[bytes], model: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[bool, list[Any]] = {True: [], False: []}
    for quick in (False, True):
        known = Known()
        vllm._openings.clear()
        taught(model=model)
        for at, prompt in enumerate(prompts):
            name, created = b"chatcmpl-%d" % at, 10 + at
            events = [first(name=name, created=created, prompt=prompt), token(name=name, created=created)]
            if quick:
                # Not the long way, for the first event nor the token behind it.
                monkeypatch.setattr(vllm.ChatReader, "event", None)
            said[quick].append(read(events, known, model=model, quick=quick))
    assert said[True] == said[False]
    assert said[True][-1][2] == [int(each) for each in prompts[-1].split(b",")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"id":"chatcmpl-1"', b'"id":"chat\\u0063mpl"'),
        (b'"id":"chatcmpl-1"', b'"id":null'),
        (b'"id":"chatcmpl-1"', '"id":"é"'.encode()),
        (b'"created":7', b'"created":07'),
        (b'"created":7', b'"created":7.0'),
        (b'"created":7', b'"created":null'),
        (b'"created":7', b'"created":7,"service_tier":null'),
        (b'"model":"m"', b'"model":"n"'),
        (b'"content":""', b'"content":"a"'),
        (b'"prompt_text":null', b'"prompt_text":"a"'),
        (b'"prompt_text":null', b'"prompt_text":null,"usage":null'),
        (b"[1000,", b"[01000,"),
        (b"[1000,", b"[1000 ,"),
        (b"[1000,", b"[-1000,"),
        (b"[1000,", b"[1e3,"),
        (b"[1000,", b"[9999999999,"),
        (b"[1000,", b"[,"),
        (b"[1000,", b'[],"x":[1000,'),
        (b"[1000,", b'["],[",1000,'),
        (b"{", b" {"),
    ],
)
def test_what_is_in_doubt_is_left_to_the_full_reader(old: bytes, new: bytes) -> None:
    data = first()
    assert old in data
    damaged = data.replace(old, new, 1)
    taught()
    assert read([damaged, token()], Known(), quick=True) == read([damaged, token()], Known(), quick=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"id":"a"', b'"id":null'),
        (b'"id":"a",', b""),
        (b'"created":3,', b""),
        (b'"model":"m"', b'"model":"m","usage":null'),
        (b'"index":0', b'"index":1'),
        (b'"content":""', b'"content":"a"'),
        (b'"logprobs":null', b'"logprobs":{"content":[]}'),
        (b'"finish_reason":null', b'"finish_reason":"stop"'),
        (b'"finish_reason":null', b'"finish_reason":null,"token_ids":[5]'),
        (b'"prompt_text":null', b'"more":null'),
        (b'"delta":{', b'"delta": {'),
    ],
)
def test_of_an_odd_event_none_is_made(old: bytes, new: bytes) -> None:
    data = first(name=b"a", created=3)
    assert old in data
    read([data.replace(old, new, 1)], Known(), quick=True)
    assert vllm._openings == []


def test_few_are_kept_the_latest_first() -> None:
    for at in range(6):
        model = b'"m%d"' % at
        read([first().replace(b'"m"', model)], Known(), quick=True)
    assert [opening.head["model"] for opening in vllm._openings] == [b'"m5"', b'"m4"', b'"m3"', b'"m2"']
    # One that is there is not made again.
    read([first().replace(b'"m"', b'"m4"')], Known(), quick=True)
    assert len(vllm._openings) == 4


@pytest.mark.parametrize("asked", [{"return_token_ids": True}, {"logprobs": True}, {"n": 2}])
def test_a_client_that_gets_more_has_the_full_reader(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    taught()
    reader = VllmReader(Chat().read(body(stream=True, **asked)))
    reader.known = Known()
    assert reader._maybe_first(first()) is None


SOME = [b"", b" ", b",", b'"', b"}", b"]", b"[", b"\\", b"\xff", b'"a":1,', b"0", b"-", b"null"]


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(SOME), st.booleans()), max_size=2),
    st.sampled_from([PROMPT, LONGER, OTHER]),
    st.sampled_from([None, "theirs"]),
    st.integers(0, 10**17),
)
@example([], PROMPT, None, 7)
def test_whatever_comes_it_says_what_the_full_reader_says(
    damages: list[tuple[int, int, bytes, bool]], prompt: bytes, model: str | None, created: int
) -> None:
    data = first(name=b"b", created=created, prompt=prompt)
    for at, out, some, behind in damages:
        place = len(data) - at if behind else at
        data = data[: max(0, place)] + some + data[max(0, place) + out :]
    said = []
    for quick in (True, False):
        vllm._openings.clear()
        taught(model=model)
        known = Known()
        known.maybe_ids(b"[" + PROMPT + b"]")
        said.append(read([data, token(name=b"b", created=created)], known, model=model, quick=quick))
    assert said[0] == said[1]
