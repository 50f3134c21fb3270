"""Wrong keys: what an address may still cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.throttle import ADDRESSES, BURST, NOTE_EVERY_S, PER_S, Throttle


def test_a_burst_is_answered_as_ever_and_then_not() -> None:
    throttle = Throttle()
    assert [throttle.failed("10.0.0.1", 0.0) for _ in range(BURST)] == [None] * BURST
    assert throttle.failed("10.0.0.1", 0.0) == 1 / PER_S
    assert throttle.is_spent("10.0.0.1", 0.0)
    # Another address is another matter.
    assert throttle.failed("10.0.0.2", 0.0) is None
    assert not throttle.is_spent("10.0.0.2", 0.0)
    assert not throttle.is_spent("10.0.0.3", 0.0)


def test_the_allowance_comes_back_and_a_flood_does_not_prolong_it() -> None:
    throttle = Throttle()
    for _ in range(10 * BURST):
        throttle.failed("10.0.0.1", 0.0)
    assert throttle.is_spent("10.0.0.1", 0.5 / PER_S)
    assert not throttle.is_spent("10.0.0.1", 1 / PER_S)
    assert throttle.failed("10.0.0.1", 1 / PER_S) is None
    assert throttle.failed("10.0.0.1", 1 / PER_S) is not None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("", None, True),
        ("/tmp/socket", "", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str | None, same: bool) -> None:
    throttle = Throttle()
    for _ in range(BURST + 1):
        throttle.failed(one, 0.0)
    assert throttle.is_spent(other, 0.0) is same


def test_memory_is_bounded_and_the_least_recent_goes_first() -> None:
    throttle = Throttle()
    for i in range(ADDRESSES + 100):
        throttle.failed(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", 0.0)
        throttle.failed("10.0.0.0", 0.0)
    assert repr(throttle) == f"<Throttle {ADDRESSES} addresses>"
    assert throttle.is_spent("10.0.0.0", 0.0)


def test_one_line_a_minute_says_how_many() -> None:
    throttle = Throttle()
    assert throttle.to_note("10.0.0.1", 0.0) == 0
    for _ in range(3):
        throttle.failed("10.0.0.1", 0.0)
    assert [throttle.to_note("10.0.0.1", at) for at in (0.0, 1.0)] == [3, 0]
    throttle.failed("10.0.0.1", 2.0)
    assert throttle.to_note("10.0.0.1", NOTE_EVERY_S) == 1


@given(st.lists(st.floats(0, 100), max_size=200).map(sorted))
def test_the_allowance_is_never_more_than_a_burst_and_what_time_gave(times: list[float]) -> None:
    throttle = Throttle()
    free = sum(throttle.failed("10.0.0.1", at) is None for at in times)
    assert free <= BURST + (times[-1] - times[0] if times else 0) * PER_S + 1e-6
