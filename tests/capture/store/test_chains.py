"""Lists of messages, stored once."""

from array import array
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.digests import Digests, digest
from capture.store import chains
from tests.capture.store.samples import count, in_memory


@pytest.fixture
def db():
    db = in_memory()
    yield db
    db.close()


def test_a_list_that_grows_adds_a_row_a_message(db):
    messages = [b'"%d"' % n for n in range(50)]
    for length in range(51):
        last = chains.put(db, 1, messages[:length]).last
        assert chains.get(db, last) == messages[:length]
    assert (count(db, "chain"), count(db, "content")) == (50, 50)


def test_a_list_that_forks_shares_what_stands_before(db):
    one = chains.put(db, 1, [b"1", b"2", b"3"]).last
    two = chains.put(db, 1, [b"1", b"2", b"4", b"3"]).last
    assert chains.get(db, one) == [b"1", b"2", b"3"]
    assert chains.get(db, two) == [b"1", b"2", b"4", b"3"]
    assert (count(db, "chain"), count(db, "content")) == (5, 4)


def test_two_rollouts_share_messages_and_not_links(db):
    chains.put(db, 1, [b"1", b"2"])
    chains.put(db, 2, [b"1", b"2"])
    assert (count(db, "chain"), count(db, "content")) == (4, 2)


@given(st.lists(st.lists(st.sampled_from([b"1", b"2", b"3"]), max_size=8), max_size=8))
def test_any_lists_come_back(lists):
    db = in_memory()
    kept = [chains.put(db, 1, elements).last for elements in lists]
    assert [chains.get(db, last) for last in kept] == lists
    # A link for each distinct prefix.
    assert count(db, "chain") == len({tuple(elements[:n]) for elements in lists for n in range(1, len(elements) + 1)})
    db.close()


@pytest.mark.parametrize("forget", [False, True])
def test_a_list_that_goes_on_from_the_last_one_is_the_same_chain_as_ever(db, forget):
    """With what is remembered of the last list, and without."""
    kept = {}
    lists = [[b"1"], [b"1", b"2"], [b"1", b"2"], [b"1", b"2", b"3", b"4"], [b"1"], [b"1", b"9"], [b"1", b"2", b"3"], []]
    for elements in lists:
        if forget:
            chains._lists = chains._Lists()
        last = chains.put(db, 1, elements).last
        assert chains.get(db, last) == elements
        assert kept.setdefault(tuple(elements), last) == last
    assert count(db, "chain") == 5


def test_what_is_remembered_of_a_list_that_was_rolled_back_is_written_again(db):
    chains.put(db, 1, [b"1"])
    db.execute("SAVEPOINT s")
    chains.put(db, 1, [b"1", b"2", b"3"])
    db.execute("ROLLBACK TO s")
    last = chains.put(db, 1, [b"1", b"2", b"3", b"4"]).last
    assert chains.get(db, last) == [b"1", b"2", b"3", b"4"]


def test_what_is_remembered_of_another_file_is_found_out():
    with closing(in_memory()) as one, closing(in_memory()) as other:
        chains.put(one, 1, [b"1", b"2"])
        chains.put(other, 1, [b"3"])
        chains.put(one, 1, [b"1", b"2"])
        last = chains.put(other, 1, [b"1", b"2", b"3"]).last
        assert chains.get(other, last) == [b"1", b"2", b"3"]


def link(end: int) -> bytes:
    return digest(b"link %d" % end)


def kept(lists: chains._Lists, rollout: int, *ends: int) -> chains.Chain:
    """A list of as many elements as the last end says, with a link up to each."""
    chain = chains.Chain([], Digests.of([digest(b"%d" % n) for n in range(ends[-1] if ends else 0)]))
    chain.ends, chain.keys = array("q", ends), array("q", [100 + end for end in ends])
    chain.links = [link(end) for end in ends]
    lists.keep(rollout, chain)
    return chain


def test_the_last_lists_are_forgotten_when_they_are_many():
    # 16 bytes a name, 32 a link.
    lists = chains._Lists(kept_bytes=16 * 5 + 32 * 2)
    for rollout, length in ((1, 2), (2, 3), (1, 2), (3, 1)):
        kept(lists, rollout, length)
    assert {rollout for rollout, _ in lists._last} == {1, 3}


def test_the_lists_of_a_rollout_that_closes_are_forgotten():
    lists = chains._Lists()
    room = lists._room
    kept(lists, 1, 1, 3, 4)
    kept(lists, 2, 2)
    for rollout in (1, 1, 3):
        lists.forget(rollout)
    assert {rollout for rollout, _ in lists._last} == {2}
    lists.forget(2)
    assert (len(lists._last), lists._room) == (0, room)


@pytest.mark.parametrize(
    ("names", "links"),
    [("0123", 3), ("01234", 3), ("012", 2), ("01x3", 1), ("0x", 1), ("x", 0), ("", 0)],
)
def test_a_list_shares_the_links_that_it_has_in_common_with_the_last(names, links):
    lists = chains._Lists()
    kept(lists, 1, 1, 3, 4)
    other = chains.Chain([], Digests.of([digest(name.encode()) for name in names]))
    lists.fill(1, other)
    assert (list(other.keys), other.links) == ([101, 103, 104][:links], [link(1), link(3), link(4)][:links])
    for rollout, sort in ((2, "messages"), (1, "sent messages")):
        lists.fill(rollout, unknown := chains.Chain([], other.names, sort=sort))
        assert unknown.known == 0


# -- many at once


def long(first: int, behind: int) -> list[bytes]:
    return [b'"%d %s"' % (n, b"x" * 1000) for n in range(first, behind)]


def counts(db) -> tuple[int, int, int]:
    return count(db, "chain"), count(db, "content"), count(db, "use")


def test_a_conversation_that_nobody_has_seen_is_written_in_segments(db):
    last = chains.put(db, 1, long(0, 200)).last
    assert chains.get(db, last) == long(0, 200)
    # 200 kB.
    assert counts(db) == (4, 4, 4)
    # It goes on element by element, and the same again adds nothing.
    assert chains.put(db, 1, long(0, 200)).last == last
    grown = chains.put(db, 1, long(0, 202)).last
    assert chains.get(db, grown) == long(0, 202)
    assert counts(db) == (6, 6, 6)


def test_the_same_conversation_in_another_rollout_is_stored_once(db):
    assert chains.put(db, 1, long(0, 200)).last != chains.put(db, 2, long(0, 200)).last
    assert counts(db) == (8, 4, 8)


def test_a_list_that_forks_in_a_segment_shares_those_before_it(db):
    one, other = long(0, 200), [*long(0, 150), *long(300, 350)]
    links = [chains.put(db, 1, elements).last for elements in (one, other, one)]
    assert [chains.get(db, last) for last in links] == [one, other, one]
    # Two segments of 66 are shared; what stands behind them in the fork is two more.
    assert count(db, "chain") == 4 + 2


def test_what_grew_and_is_not_remembered_is_followed_from_its_first_link(db, monkeypatch):
    for length in range(0, 101, 4):
        chains.put(db, 1, long(0, length))
    before = counts(db)
    assert before == (100, 100, 100)
    monkeypatch.setattr(chains, "_lists", chains._Lists())
    chains.put(db, 1, long(0, 102))
    assert counts(db) == (102, 102, 102)


@pytest.mark.parametrize("few", [1, 3, 30])
def test_many_behind_a_few_that_others_have_are_a_segment_behind_their_own_links(db, few):
    chains.put(db, 2, long(0, few))
    last = chains.put(db, 1, [*long(0, few), *long(100, 140)]).last
    assert chains.get(db, last) == [*long(0, few), *long(100, 140)]
    assert counts(db) == (2 * few + 1, few + 1, 2 * few + 1)


def said(db):
    """What a file gives back: the list that ends with each link, and whether all that it needs is used."""
    links = db.execute("SELECT key, rollout FROM chain ORDER BY key").fetchall()
    unused = (
        "SELECT count(*) FROM chain WHERE NOT EXISTS"
        " (SELECT 1 FROM use WHERE use.rollout = chain.rollout AND use.content = chain.content)"
    )
    return {(rollout, tuple(chains.get(db, key))) for key, rollout in links}, db.execute(unused).get


@given(st.lists(st.tuples(st.lists(st.integers(0, 60), max_size=90), st.booleans(), st.booleans()), max_size=6))
def test_many_elements_at_once_say_what_they_would_one_by_one(lists):
    with pytest.MonkeyPatch.context() as patch, closing(in_memory()) as short, closing(in_memory()) as long:
        patch.setattr(chains, "SEGMENT_SIZE", 3_000)
        for numbers, again, forget in lists:
            elements = [b'"%d %s"' % (number, b"x" * 300) for number in numbers]
            if forget:
                patch.setattr(chains, "_lists", chains._Lists())
            last = chains.put(short, 1 + again, elements).last
            assert chains.get(short, last) == elements
            with pytest.MonkeyPatch.context() as alone:
                alone.setattr(chains, "MANY", 10**9)
                alone.setattr(chains, "_lists", chains._Lists())
                last = chains.put(long, 1 + again, elements).last
                assert chains.get(long, last) == elements
        (few, few_unused), (all_of_them, unused) = said(short), said(long)
        assert few <= all_of_them
        assert (few_unused, unused) == (0, 0)
        assert count(short, "chain") <= count(long, "chain") + sum(len(numbers) for numbers, _, _ in lists)
