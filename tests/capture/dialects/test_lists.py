"""Long lists of messages: known again by their rollout, bounded, and gone when nobody goes on from them."""

import json

from capture.beginnings import Beginning
from capture.dialects.elements import Elements
from capture.dialects.lists import LEFT_S, MOST, TEXT_LEFT_S, Listed, Lists
from capture.dialects.said import NOTHING, Heard
from capture.digests import Digests


def text(*said: str) -> bytes:
    return json.dumps([{"role": "user", "content": one} for one in said]).encode()


def heard(*said: str) -> Heard:
    found = Elements().maybe_messages(text(*said))
    assert found is not None
    return found.heard


def keep(lists: Lists, rollout: str, *said: str, now: float = 0.0, before: Listed | None = None) -> None:
    lists.keep(rollout, text(*said), heard(*said), now, before=before)


def knows(lists: Lists, rollout: str, *said: str) -> bool:
    """Say if what a request of these says is known, but for one more that comes behind."""
    return lists.maybe(rollout, text(*said, "more"), 1) is not None


def cost(*said: str) -> int:
    return Listed.of(Beginning(0, (0,), b""), heard(*said)).cost


def test_it_says_what_was_said() -> None:
    lists = Lists()
    keep(lists, "r", "a", "b")
    found = lists.maybe("r", text("a", "b", "c"), 1)
    assert found is not None
    assert (found.heard, found.text.length) == (heard("a", "b"), len(text("a", "b")) - 2)
    assert lists.maybe("r", text("a", "c"), 1) is None
    assert lists.maybe("other", text("a", "b", "c"), 1) is None


def test_what_it_goes_on_from_is_known_no_more() -> None:
    lists = Lists()
    keep(lists, "r", "a")
    before = lists.maybe("r", text("a", "b"), 1)
    keep(lists, "r", "a", "b", before=before)
    assert len(lists) == 1
    assert not knows(lists, "r", "a")
    # As of two requests at the same time that go on from it.
    keep(lists, "r", "a", "c", before=before)
    assert (len(lists), knows(lists, "r", "a", "b"), knows(lists, "r", "a", "c")) == (2, True, True)


def test_of_a_rollout_the_last_few_are_kept() -> None:
    lists = Lists()
    for n in range(MOST + 2):
        keep(lists, "r", str(n))
    assert [knows(lists, "r", str(n)) for n in range(MOST + 2)] == [False, False] + [True] * MOST


def test_the_room_is_bounded_and_the_rollout_that_was_not_used_for_longest_goes_first() -> None:
    room = 2 * cost("a")
    lists = Lists(kept_bytes=room)
    keep(lists, "1", "a")
    keep(lists, "2", "a")
    keep(lists, "1", "b", before=lists.maybe("1", text("a", "b"), 1))
    keep(lists, "3", "a")
    assert [knows(lists, rollout, said) for rollout, said in ("1b", "2a", "3a")] == [True, False, True]
    # One that is larger than all the room is not kept, and takes none.
    lists.keep("4", text("a"), Heard(Digests(b"x" * room)), 0.0)
    assert (len(lists), lists._room, len(lists._texts)) == (0, room, 0)
    assert repr(lists) == f"<Lists of 0 rollouts, room for {room} bytes>"


def test_a_text_goes_before_its_list_and_both_in_time() -> None:
    lists = Lists()
    room = lists._room
    keep(lists, "1", "a")
    keep(lists, "2", "a", now=1.0)
    assert not lists.sweep(TEXT_LEFT_S)
    assert len(lists._texts) == 2
    assert lists.sweep(TEXT_LEFT_S + 0.5)
    assert not lists.sweep(TEXT_LEFT_S + 0.5)
    assert (len(lists._texts), len(lists)) == (1, 2)
    # By the hashes of its text.
    assert knows(lists, "1", "a")
    assert lists.sweep(LEFT_S + 0.5)
    assert (len(lists._texts), len(lists)) == (0, 1)
    assert [knows(lists, rollout, "a") for rollout in "12"] == [False, True]
    keep(lists, "2", "a", "b", now=LEFT_S, before=lists.maybe("2", text("a", "b"), 1))
    lists.sweep(LEFT_S + 1.5)
    assert knows(lists, "2", "a", "b")
    lists.sweep(2 * LEFT_S + 1.5)
    assert (len(lists), lists._room, len(lists._texts)) == (0, room, 0)


def test_what_was_said_of_nothing_takes_room_too() -> None:
    assert Listed.of(Beginning(0, (), b""), NOTHING).cost > 0
