"""Prompts' ids by the text of an earlier prompt: the same ids, and nothing else changed."""

import gc
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capture import beginnings
from capture.beginnings import BLOCK, Texts
from capture.dialects.chat import Chat
from capture.engines import id_text, tips
from capture.engines.id_text import maybe_parse
from capture.engines.sampled import Doubts
from capture.engines.tips import Known, Tips
from capture.engines.vllm import VllmReader
from tests.engine import chunk, whole
from tests.playbook import body


@pytest.fixture(autouse=True)
def none_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short lists are known by their beginnings, as long ones are."""
    monkeypatch.setattr(tips, "QUICK", 0)


def text(*ids: int) -> bytes:
    return b"[" + b",".join(b"%d" % one for one in ids) + b"]"


def read(known: Known, *ids: int) -> list[int]:
    found = known.maybe_ids(text(*ids))
    assert found is not None
    assert found.dtype == np.int32
    result: list[int] = found.tolist()
    return result


# -- tips


def test_only_the_rest_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def noted(written: bytes) -> Any:
        parsed.append(written)
        return maybe_parse(written)

    monkeypatch.setattr(tips, "maybe_parse", noted)
    known = Known()
    assert read(known, 1, 2, 3) == [1, 2, 3]
    assert read(known, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    assert read(known, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    assert parsed == [b"1,2,3", b"4,5"]
    assert repr(known) == "<Known [5]>"


@pytest.mark.skipif(id_text.compiled is None, reason="no compiler built what reads them so quickly")
def test_a_short_list_is_read_whole_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tips, "QUICK", 7)
    known = Known()
    assert read(known, 1, 2, 3) == [1, 2, 3]
    assert known.tips == []
    assert read(known, 1, 2, 34) == [1, 2, 34]
    assert read(known, 1, 2, 34, 5) == [1, 2, 34, 5]
    assert repr(known) == "<Known [4]>"
    monkeypatch.setattr(id_text, "compiled", None)
    assert read(known, 1, 2) == [1, 2]
    assert repr(known) == "<Known [2, 4]>"


def test_half_a_number_is_no_beginning() -> None:
    known = Known()
    assert read(known, 1, 12) == [1, 12]
    assert read(known, 1, 123, 4) == [1, 123, 4]
    assert repr(known) == "<Known [3, 2]>"


def test_a_rest_that_is_no_list_is_for_the_ordinary_reader() -> None:
    known = Known()
    read(known, 1, 2)
    for bad in (b"[1,2,]", b"[1,2,x]", b"[1,2,03]", b"1,2]", b"[1,2"):
        assert known.maybe_ids(bad) is None
    assert repr(known) == "<Known [2]>"


def test_conversations_side_by_side_have_a_tip_each_and_the_oldest_goes() -> None:
    known = Known()
    for one in range(tips.TIPS + 1):
        read(known, one, 0)
    assert [tip.ids[0] for tip in known.tips] == list(range(tips.TIPS, 0, -1))
    read(known, 1, 0, 5)
    assert known.tips[0].ids.tolist() == [1, 0, 5]
    assert len(known.tips) == tips.TIPS


def test_a_prompt_that_grew_is_known_by_what_it_is_when_all_is_new() -> None:
    first = list(range(1000, 1000 + 3 * BLOCK // 5))
    known, fresh = Known(), Known()
    read(known, *first)
    longer = [*first, 7, 8]
    assert read(known, *longer) == read(fresh, *longer) == longer
    assert known.tips[0].text == fresh.tips[0].text


class Owner:
    pass


def test_all_together_are_bounded_and_the_rollout_that_is_least_used_goes_first() -> None:
    a, b = Owner(), Owner()
    size = 8
    kept = Tips(kept_bytes=size)
    read(kept.of("a", a), 1, 2)
    read(kept.of("b", b), 1, 2)
    first = kept.of("a", a)
    kept.of("b", b)
    assert (first.tips, len(kept.of("b", b).tips)) == ([], 1)
    # One that is larger than all the room is not kept.
    read(kept.of("b", b), *range(100))
    assert kept.of("b", b).tips == []
    assert kept._room == size


def test_texts_are_kept_of_those_used_last_and_go_with_what_they_are_of() -> None:
    texts = Texts(kept_bytes=3 * len(text(1, 2)))
    room = texts._room
    one, other = Known(texts), Known(texts)
    for known in (one, other):
        read(known, 1, 2)
        read(known, 3, 4)
    assert [[tip.text.text is not None for tip in known.tips] for known in (one, other)] == [
        [True, False],
        [True, True],
    ]
    # One that is read again, without a text, has it again.
    read(one, 1, 2)
    assert [tip.text.text is not None for tip in one.tips] == [False, True]
    assert [tip.text.text is not None for tip in other.tips] == [True, True]
    one.clear()
    other.clear()
    assert (texts._room, len(texts._kept)) == (room, 0)


def test_the_text_of_one_that_grew_goes() -> None:
    texts = Texts()
    known = Known(texts)
    for ids in ((1,), (1, 2), (1, 2, 3)):
        read(known, *ids)
    assert repr(texts) == f"<Texts 1 kept, room for {beginnings.KEPT_BYTES - len(text(1, 2, 3))} bytes>"
    for one in range(2, 9):
        read(known, one)
    assert len(texts._kept) == len(known.tips) == tips.TIPS


def test_a_list_is_read_where_it_stands() -> None:
    known = Known()
    for ids in ((1, 2), (1, 2, 3), (4, 5), (1, 2, 3), (1, 2, 33)):
        data = b'{"a":[7],"b":' + text(*ids) + b',"c":[8]}'
        start = data.index(b'"b":') + 4
        found = known.maybe_ids(data, start, data.index(b"]", start) + 1)
        assert found is not None
        assert found.tolist() == list(ids)
    assert repr(known) == "<Known [3, 2, 3]>"
    assert known.maybe_ids(data, 0, len(data)) is None


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), min_size=1, max_size=8)), max_size=12))
def test_ids_are_the_same_with_texts_and_without(said: list[tuple[bool, list[int]]]) -> None:
    some, none = Known(), Known(Texts(kept_bytes=0))
    last: list[int] = []
    for goes_on, ids in said:
        last = last + ids if goes_on else ids
        assert read(some, *last) == read(none, *last) == last
        assert [tip.text for tip in some.tips] == [tip.text for tip in none.tips]
        assert all(tip.text.text is None for tip in none.tips)


def test_a_long_prompt_grows_where_it_stands_and_what_was_read_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tips, "MANY", 16)
    known = Known()
    first = list(range(16))
    found = [known.maybe_ids(text(*first, *range(more))) for more in range(6)]
    # Room is made twice, each time for two more.
    assert known.size == 4 * (20 + 20 // 8)
    assert len({id(ids.base) for ids in found[1:4] if ids is not None}) == 1
    assert len({id(ids.base) for ids in found[4:] if ids is not None}) == 1
    # Two go on from one prompt: the second finds it no more, and writes nothing over the first.
    other = known.maybe_ids(text(*first, 0, 1, 2, 99))
    assert [None if ids is None else ids.tolist() for ids in (*found, other)] == [
        *([*first, *range(more)] for more in range(6)),
        [*first, 0, 1, 2, 99],
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 30), min_size=1, max_size=8)), max_size=12))
def test_no_prompt_changes_another(said: list[tuple[int, list[int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tips, "MANY", 4)
        known = Known()
        read_: list[tuple[list[int], Any]] = [([], None)]
        for back, more in said:
            ids = read_[-1 - back % len(read_)][0] + more
            read_.append((ids, known.maybe_ids(text(*ids))))
        assert all(found.tolist() == ids for ids, found in read_[1:])


def test_they_go_with_their_rollout() -> None:
    owner = Owner()
    kept = Tips()
    read(kept.of("a", owner), 1, 2)
    kept.of("a", owner)
    before = kept._room
    assert len(kept._texts._kept) == 1
    del owner
    gc.collect()
    assert repr(kept) == "<Tips of 0 rollouts>"
    assert not kept._texts._kept
    assert kept._room > before


# -- the same as the ordinary reader


def compact(form: Any) -> bytes:
    return json.dumps(form, separators=(",", ":")).encode()


numbers = st.lists(st.integers(0, 999), min_size=1, max_size=6)
odd = st.sampled_from([None, [], [-1], [2**31], ["x"], [1.5], [[1]], 5, "x", {"a": [1]}])
NESTED = ('{"prompt_token_ids":[1,2]}', ',"prompt_token_ids":[1,2],', '"prompt_token_ids":null')


@st.composite
def replies(draw: st.DrawFn) -> list[tuple[bool, bytes]]:
    """Streams' openings and whole replies, one after the other, whose prompts may begin alike; some of them damaged."""
    made = []
    last: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        streamed = draw(st.booleans())
        ids = (last if draw(st.booleans()) else []) + draw(numbers)
        form = chunk(role=True, prompt=ids) if streamed else whole([5, 6], prompt=ids)
        if draw(st.integers(0, 4)) == 0:
            form["prompt_token_ids"] = draw(odd)
        if draw(st.integers(0, 4)) == 0:
            form["choices"][0]["prompt_token_ids"] = draw(numbers)
        if draw(st.integers(0, 4)) == 0:
            form["model"] = draw(st.sampled_from(NESTED))
        one = compact(form)
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(one)))
            patch = draw(st.sampled_from([b"", b" ", b",", b"0", b"-", b"]", b"\xff", *(x.encode() for x in NESTED)]))
            one = one[:at] + patch + one[at + draw(st.integers(0, 2)) :]
        last = ids
        made.append((streamed, one))
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(replies(), st.booleans(), st.sampled_from([0, 20, 1000]))
def test_known_prompts_change_nothing(
    monkeypatch: pytest.MonkeyPatch, made: list[tuple[bool, bytes]], token_ids: bool, quick_bytes: int
) -> None:
    monkeypatch.setattr(tips, "LONG", 0)
    monkeypatch.setattr(tips, "QUICK", quick_bytes)
    known = Known()
    for streamed, data in made:
        request = Chat().read(body(stream=streamed, return_token_ids=token_ids))
        quick, full = VllmReader(request), VllmReader(request)
        quick.known = known
        for _ in range(2):
            seen, expected = (one.event(data) if streamed else one.whole(data) for one in (quick, full))
            assert seen == expected
        for one in (quick, full):
            assert one.prompt_ids is None or one.prompt_ids.dtype == np.int32
        ids = [None if one.prompt_ids is None else one.prompt_ids.tolist() for one in (quick, full)]
        assert ids[0] == ids[1]
        assert (quick.undecoded, quick.reply_id, quick.reply()) == (full.undecoded, full.reply_id, full.reply())


def test_a_streams_new_prompt_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tips, "LONG", 0)
    parsed: list[bytes] = []

    def noted(written: bytes) -> Any:
        parsed.append(written)
        return maybe_parse(written)

    monkeypatch.setattr(tips, "maybe_parse", noted)
    known = Known()
    reader = VllmReader(Chat().read(body(stream=True)))
    reader.known = known
    seen = reader.event(compact(chunk(role=True, prompt=[1, 2, 3])))
    assert json.loads(seen.data or b"")["prompt_token_ids"] is None
    assert parsed == []
    for _ in range(2):
        assert reader.prompt_ids is not None
        assert reader.prompt_ids.tolist() == [1, 2, 3]
    assert parsed == [b"1,2,3"]
    # One that goes on from it is read at once: there is little to read.
    after = VllmReader(Chat().read(body(stream=True)))
    after.known = known
    after.event(compact(chunk(role=True, prompt=[1, 2, 3, 4])))
    assert parsed == [b"1,2,3", b"4"]


def test_an_id_out_of_range_is_noted_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tips, "LONG", 0)
    reader = VllmReader(Chat().read(body(stream=True)))
    reader.known = Known()
    reader.event(compact(chunk(role=True, prompt=[1, 2**31])))
    assert reader.undecoded == []
    assert reader.prompt_ids is None
    assert len(reader.undecoded) == 1
    assert reader.prompt_ids is None
    assert len(reader.undecoded) == 1


def test_the_ordinary_reader_is_not_asked_for_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lest the equality above be that of the ordinary reader with itself."""
    monkeypatch.setattr(tips, "LONG", 0)
    monkeypatch.setattr(Doubts, "id_array", None)
    request = Chat().read(body())
    known = Known()
    for prompt in ([1, 2, 3], [1, 2, 3, 4]):
        reader = VllmReader(request)
        reader.known = known
        assert json.loads(reader.whole(compact(whole([5], prompt=prompt))).data or b"")["prompt_token_ids"] is None
        assert reader.prompt_ids is not None
        assert reader.prompt_ids.tolist() == prompt
