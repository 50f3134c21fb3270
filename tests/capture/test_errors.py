"""Errors: blame, status, and what to do."""

import pytest

from capture.errors import CaptureError, ClientError, EngineError, StoreError, TreeringError, UsageError


@pytest.mark.parametrize(
    ("error", "blame", "status"),
    [
        (ClientError("c", "m"), "client", 400),
        (EngineError("e", "m"), "engine", 502),
        (CaptureError("x", "m"), "treering", 500),
        (StoreError("store_full", "m"), "treering", 507),
        (StoreError("store_failed", "m"), "treering", 503),
        (UsageError("m"), "treering", 500),
    ],
)
def test_blame_is_in_the_type(error: TreeringError, blame: str, status: int) -> None:
    assert (error.blame, error.status, str(error)) == (blame, status, "m")


def test_retry_after_is_whole_seconds_and_never_zero() -> None:
    assert EngineError("e", "m", retry_after_s=0.2).headers() == {"Retry-After": "1"}
    assert EngineError("e", "m", retry_after_s=2.1).headers() == {"Retry-After": "3"}
    assert EngineError("e", "m").headers() == {}


def test_what_an_error_quotes_holds_no_secret() -> None:
    secret = "sk-treering-" + "Ab3_x" * 8 + "xyz"
    error = ClientError("not_found", f"/r/{secret}/v1 is not served.")
    assert error.message == str(error) == "/r/sk-treering-…/v1 is not served."


@pytest.mark.parametrize(
    ("message", "hint", "told"),
    [
        ("It is full.", "Make room.", "It is full. Make room."),
        ("it is full", "make room", "it is full. Make room"),
        ("is it full?", "", "is it full?"),
        ("Is it full?", "`df` says so.", "Is it full? `df` says so."),
    ],
)
def test_message_and_hint_as_one_text(message: str, hint: str, told: str) -> None:
    assert ClientError("c", message, hint=hint).told == told


def test_a_code_has_a_hint_where_nobody_knows_better() -> None:
    assert StoreError("store_full", "m").hint == "Make room on its disk; it goes on by itself."
    assert StoreError("store_full", "m", hint="rm x").hint == "rm x"
    assert ClientError("c", "m").hint == ""
