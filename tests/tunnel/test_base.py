"""The listener's address."""

from tunnel.base import Local


def test_an_address_is_a_url():
    assert Local(host="127.0.0.1", port=8400).url == "http://127.0.0.1:8400"
    assert Local(host="::1", port=8400, scheme="https").url == "https://[::1]:8400"
