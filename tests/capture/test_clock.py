"""Times as records write them."""

from datetime import UTC, datetime, timedelta, timezone

from capture import clock


def test_a_moment_is_written_in_utc_with_milliseconds() -> None:
    moment = datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=timezone(timedelta(hours=2)))
    assert clock.text(moment) == "2026-05-04T01:02:01.987Z"


def test_what_is_written_can_be_read() -> None:
    written = clock.now()
    assert clock.text(clock.parse(written)) == written
    assert clock.parse(written).tzinfo == UTC
