"""Which engines a rollout may name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import allowlist

PREFIXES = ("http://gpu:8000", "http://10.0.0.1:9/team1", "http://[::1]:80", "https://tls")


@pytest.mark.parametrize(
    "url",
    [
        "http://gpu:8000", "http://gpu:8000/", "http://gpu:8000/v1", "http://GPU:8000/v1/", "HTTP://gpu:8000/any/path",
        "http://10.0.0.1:9/team1", "http://10.0.0.1:9/team1/v1", "http://10.0.0.1:9/team1/x", "http://[::1]",
        "http://[0:0::1]:80/", "https://tls:443/v1",
    ],
)  # fmt: skip
def test_allowed(url: str) -> None:
    assert allowlist.allows(PREFIXES, url)


@pytest.mark.parametrize(
    "url",
    [
        # Another place whose name begins alike.
        "http://gpu", "http://gpu:80001", "http://gpu:80", "http://gpu.evil.example:8000", "http://xgpu:8000",
        "http://gpu.:8000", "https://gpu:8000", "http://10.0.0.1:9/team12", "http://10.0.0.1:9/", "http://10.0.0.1:9",
        # Users and passwords.
        "http://gpu:8000@evil.example/", "http://u:p@gpu:8000", "http://gpu:8000:x@evil", "http://@gpu:8000",
        # Paths that lead out, in several spellings.
        "http://10.0.0.1:9/team1/../team2", "http://10.0.0.1:9/team1/%2e%2e/team2", "http://10.0.0.1:9/team1/.%2E/x",
        "http://10.0.0.1:9/team1/%252e%252e/team2", "http://10.0.0.1:9/team1/..;x/team2", "http://gpu:8000/./x",
        "http://gpu:8000//evil.example", "http://gpu:8000/a%2fb", "http://gpu:8000/a%5cb", "http://gpu:8000/%00",
        "http://gpu:8000\\@evil.example", "http://gpu:8000/\\evil.example", "http:\\\\gpu:8000",
        # Ends that two parsers see in two places.
        "http://gpu:8000?x", "http://gpu:8000/a?b", "http://gpu:8000#", "http://gpu:8000 ", " http://gpu:8000",
        "http://gpu:8000\r\nX: y", "http://gpu:8000\t", "http://gpu:8000/\x00",
        # Addresses in disguise, and zones.
        "http://167772161:9/team1", "http://0x0a000001:9/team1", "http://10.0.0.01:9/team1", "http://10.1:9/team1",
        "http://012.0.0.1:9/team1", "http://[::1%25lo]:80", "http://[::ffff:10.0.0.1]:9/team1", "http://１0.0.0.1:9/team1",
        # No such thing.
        "", "gpu:8000", "//gpu:8000", "http:gpu:8000", "http:///gpu:8000", "file:///etc/passwd", "ftp://gpu:8000",
        "http://gpu:99999", "http://gpu:0", "http://gpu:", "http://[::1", "http://gpü:8000", "unix:///run/x",
    ],
)  # fmt: skip
def test_refused(url: str) -> None:
    assert not allowlist.allows(PREFIXES, url)


def test_nothing_is_allowed_by_nothing() -> None:
    assert not allowlist.allows((), "http://gpu:8000")


@given(st.text(max_size=60))
def test_whatever_is_appended_the_place_stays(rest: str) -> None:
    """What is allowed by string alone would be `startswith`; here the place is the same, or it is refused."""
    if allowlist.allows(PREFIXES, "http://gpu:8000" + rest):
        place = allowlist.read("http://gpu:8000" + rest)
        assert (place.host, place.port) == ("gpu", 8000)
        assert rest == "" or rest.startswith("/")


@pytest.mark.parametrize(
    ("prefix", "word"),
    [
        ("http://169.254.169.254", "credentials"), ("http://0.0.0.0:8000", "no one machine"),
        ("http://127.0.0.1:8000", "this machine"), ("http://localhost:1", "this machine"), ("http://gpu", "port 80"),
        ("https://gpu", "port 443"), ("http://gpu:8000", None), ("https://10.0.0.1:1/x", None),
    ],
)  # fmt: skip
def test_what_is_worrying_about_a_prefix(prefix: str, word: str | None) -> None:
    found = allowlist.breadth(prefix)
    assert found is None if word is None else found is not None and word in found
