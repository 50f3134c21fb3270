"""What engines of OpenAI's wire share."""

from __future__ import annotations

import pytest

from capture.engines.wire import error_message, listed, with_usage


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (b"null", {"stream_options": b'{"include_usage":true}'}),
        (b"{}", {"stream_options": b'{"include_usage":true}'}),
        (b'{"include_usage":false,"x":1.0}', {"stream_options": b'{"include_usage":true,"x":1.0}'}),
        (b'{"include_usage": true}', {}),
        (b"5", {}),
        (b"[]", {}),
    ],
)
def test_usage_is_asked_for_once(options: bytes, changes: dict[str, bytes]) -> None:
    assert with_usage(options) == changes


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ({}, None),
        ({"error": b"null"}, None),
        ({"error": b'{"message":"It died.","code":500}'}, "It died."),
        ({"error": b'"It died."'}, "It died."),
        ({"error": b'{"code":500}'}, '{"code": 500}'),
        ({"error": b"{"}, "an error that can't be read"),
    ],
)
def test_errors_in_a_reply_s_place(top: dict[str, bytes], message: str | None) -> None:
    assert error_message(top) == message


def test_lists_are_joined() -> None:
    assert (listed([]), listed([b"1", b"2,3"])) == (b"[]", b"[1,2,3]")
