"""Signatures hold their thought, in either alphabet, and others hold none."""

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects.gemini_signature import MAX_THOUGHT, sign, thought_of, unbase64

ANY = st.text(st.characters(blacklist_categories=()))


@given(ANY)
def test_a_thought_comes_back(thought: str) -> None:
    signature = sign(thought)
    assert signature == sign(thought)
    assert thought_of(signature) == thought
    # As google-genai for Python writes bytes.
    assert thought_of(base64.urlsafe_b64encode(base64.b64decode(signature)).decode()) == thought
    assert thought_of(signature.rstrip("=")) == thought


@given(st.text() | st.binary().map(lambda raw: base64.b64encode(raw).decode()))
def test_what_is_none_of_ours_holds_nothing(text: str) -> None:
    assert thought_of(text) == ""


def test_one_that_was_cut_or_bent_holds_nothing() -> None:
    raw = base64.b64decode(sign("I think."))
    for bent in (raw[:-5], raw[:20], raw[:25] + b"\0" + raw[26:], b"x" + raw):
        assert thought_of(base64.b64encode(bent).decode()) == ""


def test_one_that_would_fill_the_memory_holds_nothing() -> None:
    mark = base64.b64decode(sign(""))[:19]
    bomb = mark + zlib.compress(b"\0" * (MAX_THOUGHT + 1))
    assert thought_of(base64.b64encode(bomb).decode()) == ""


@pytest.mark.parametrize(("text", "raw"), [("AAAA", b"\0\0\0"), ("_-8=", b"\xff\xef"), ("/+8", b"\xff\xef"), ("", b"")])
def test_base64(text: str, raw: bytes) -> None:
    assert unbase64(text) == raw


@pytest.mark.parametrize("text", ["A", "A===", "AA A", "é", "\ud800", "AAAA\n", "!!!!"])
def test_what_is_no_base64(text: str) -> None:
    assert unbase64(text) is None
