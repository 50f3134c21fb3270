"""What a translated request repeats: what is kept of it, and for how long."""

import json
from typing import Any

import pytest

from capture.dialects import chat
from capture.dialects import repeats as repeats_module
from capture.dialects.elements import UNUSED_S, value_digest
from capture.dialects.repeats import UNTRANSLATED, Kept, Repeats, body_digest, joined, unit_of
from capture.digests import digest


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_used_stays_and_what_is_not_goes_after_two_turns() -> None:
    clock = Clock()
    kept: Kept[bytes, int] = Kept(room=1000, now=clock)
    kept.keep(b"a", 1, 10)
    kept.keep(b"b", 2, 10)
    assert kept.find([b"a", b"c", b"b"]) == [1, None, 2]
    clock.now += UNUSED_S + 1
    assert kept.find([b"a"]) == [1]
    clock.now += UNUSED_S + 1
    assert kept.find([b"a", b"b"]) == [1, None]
    assert repr(kept) == "<Kept 1 and 0, 10 bytes>"


def test_what_nobody_uses_goes_without_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    kept: Kept[bytes, int] = Kept(room=1000, now=clock)
    kept.keep(b"a", 1, 10)
    gone = []
    for _ in range(5):
        clock.now += UNUSED_S * 0.6
        gone.append(kept.rest())
    assert gone == [False, False, False, True, False]
    assert repr(kept) == "<Kept 0 and 0, 0 bytes>"
    # All that there are, and chat's messages too.
    asked: list[str] = []
    monkeypatch.setattr(Kept, "rest", lambda self: bool(asked.append("kept")))
    monkeypatch.setattr(chat, "rest", lambda: not asked.append("chat"))
    assert repeats_module.rest()
    assert asked.count("chat") == 1
    assert asked.count("kept") > 1


def test_no_more_is_kept_than_there_is_room_for() -> None:
    kept: Kept[int, int] = Kept(room=100, now=Clock())
    for number in range(100):
        kept.keep(number, number, 10)
        kept.keep(number, -1, 10)
    found = [one for one in kept.find(list(range(100))) if one is not None]
    assert set(found) <= set(range(90, 100))
    assert len(found) >= 5
    assert found[-1] == 99


def test_a_value_is_read_once() -> None:
    read: list[Any] = []

    def mean(value: Any) -> Any:
        read.append(value)
        return len(read)

    repeats = Repeats(mean)
    (first,) = repeats.elements(b'[ {"b":1, "a":2} ]')
    again, other = repeats.elements(b'[{"b":1, "a":2},{"a":2,"b":1}]')
    assert again is first
    assert (first.raw, first.name) == (b'{"b":1, "a":2}', digest(b'{"b":1, "a":2}'))
    assert first.value == other.value == value_digest({"a": 2, "b": 1})
    assert (first.meaning, other.meaning) == (1, 2)
    assert repr(repeats).startswith("<Repeats <Kept 2")


@pytest.mark.parametrize("raw", [b"5", b"{}", b"[NaN]", b'["\\ud800"]', b'["\xff"]', b"[", b"[" * 9999 + b"]" * 9999])
def test_what_strict_json_can_not_read_is_for_the_long_way(raw: bytes) -> None:
    with pytest.raises(UNTRANSLATED):
        Repeats(lambda value: value).elements(raw)


def test_a_fault_is_not_kept() -> None:
    def fail(value: Any) -> Any:
        raise ValueError(value)

    repeats = Repeats(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="5"):
            repeats.elements(b"[5]")


def test_units_are_joined_in_order_and_each_repair_told_once() -> None:
    units = [
        unit_of([{"role": "user", "content": "a"}], ("x",)),
        unit_of([], ("y", "x")),
        unit_of([{"role": "assistant", "content": "b"}], ()),
    ]
    raw, elements, repairs = joined(units)
    assert json.loads(raw) == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert [element.message.text for element in elements] == ["a", "b"]
    assert repairs == ["x", "y"]
    assert [unit.is_open for unit in units] == [False, False, True]
    assert not unit_of([{"role": "assistant", "content": None, "tool_calls": []}], ()).is_open
    with pytest.raises(UNTRANSLATED):
        unit_of([{"role": "user", "content": "\ud800"}], ())


def test_a_body_is_known_by_its_parts_whatever_their_order() -> None:
    one = body_digest({"a": 1, "b": 2}, {"system": b"s", "tools": b"t"}, [b"m", b"n"])
    assert one == body_digest({"b": 2, "a": 1}, {"tools": b"t", "system": b"s"}, [b"m", b"n"])
    assert one != body_digest({"a": 1, "b": 2}, {"system": b"s"}, [b"m", b"n"])
    assert one != body_digest({"a": 1, "b": 2}, {"system": b"s", "tools": b"t"}, [b"n", b"m"])
