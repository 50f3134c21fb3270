"""What secrets look like, how they are compared, and how they are kept out of what is written."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import keys

AGENT = "sk-treering-" + "Ab3_-" * 8 + "xyz"
TOOLS = "sk-treering-tools-" + "Zy9-_" * 8 + "abc"


def test_a_secret_is_stored_as_its_sha256() -> None:
    assert keys.digest(AGENT) == hashlib.sha256(AGENT.encode()).digest()


@pytest.mark.parametrize(
    ("given_key", "wanted", "equal"),
    [
        ("k", "k", True), ("k", "K", False), ("", "k", False), ("kk", "k", False), ("schlüssel", "k", False),
        ("\udcff", "k", False),
    ],
)  # fmt: skip
def test_keys_are_equal_or_not(given_key: str, wanted: str, equal: bool) -> None:
    assert keys.same(given_key, wanted) is equal


def test_what_is_compared_has_one_length_whatever_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda a, b: seen.append((len(a), len(b))) or a == b)
    keys.same("a", "long" * 100)
    keys.same("a" * 10_000, "b")
    assert seen == [(32, 32), (32, 32)]


@pytest.mark.parametrize("secret", [AGENT, TOOLS])
@pytest.mark.parametrize("around", ["{}", "/r/{}/v1/chat", "key={}&x=1", "Bearer {},", '"{}"', "x{}y"])
def test_a_secret_is_masked_wherever_it_stands(secret: str, around: str) -> None:
    masked = keys.masked(around.format(secret))
    assert secret[12:24] not in masked
    assert masked.startswith(around.partition("{}")[0])


def test_other_texts_are_left_alone() -> None:
    for text in ("", "sk-proj-abcdefghijklmnop", "the key begins with sk-treering-", "sk-treering-short"):
        assert keys.masked(text) == text
        assert not keys.holds_secret(text)


@given(st.binary(), st.binary())
def test_a_secret_is_found_in_any_surroundings(before: bytes, after: bytes) -> None:
    mine = [keys.digest(AGENT), keys.digest(TOOLS)]
    for secret in (AGENT, TOOLS):
        assert keys.shown_in([None, b"", before + secret.encode() + after], mine)
    assert not keys.shown_in([before + AGENT[:-1].encode()], [keys.digest(TOOLS)])


def test_anothers_secret_is_not_this_rollouts() -> None:
    assert not keys.shown_in([AGENT.encode()], [keys.digest(TOOLS)])
    # What looks like the beginning of one hides none.
    assert keys.shown_in([b"sk-treering-sk-treering-" + AGENT.encode()], [keys.digest(AGENT)])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pass@db:5432/x", "postgresql://me:***@db:5432/x"),
        ("postgresql://me:p%40ss:word@[::1]/x", "postgresql://me:***@[::1]/x"),
        ("postgresql://db/x?user=me&password=pass&sslmode=require", "postgresql://db/x?user=me&password=***&sslmode=require"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("sqlite:////tmp/a?b", "sqlite:////tmp/a?b"),
        ("vllm=http://me:pass@gpu:1", "vllm=http://me:***@gpu:1"),
        ("http://me:pa/ss@w@gpu", "http://me:***@gpu"),
        ("http://gpu:8000/a@b", "http://gpu:***@b"),
        ("http://[::1", "http://[::1"),
    ],
)  # fmt: skip
def test_a_urls_password_is_not_shown(url: str, shown: str) -> None:
    assert keys.without_password(url) == shown
