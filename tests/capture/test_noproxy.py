"""Which addresses an agent's proxy is left out for."""

import pytest

from capture.noproxy import no_proxy

LOOPBACK = "127.0.0.1,localhost,::1"


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("http://127.0.0.1:8400/v1", ""),
        ("http://[::1]:8400", ""),
        ("http://10.1.2.3:8400/v1", ",10.1.2.3"),
        ("http://192.168.0.7:8400", ",192.168.0.7"),
        ("http://[fd00::7]:8400", ",fd00::7"),
        ("http://treering:8400/v1", ",treering"),
        ("http://host.docker.internal:8400/v1", ",host.docker.internal"),
        ("https://8.8.8.8:8400", ""),
        ("https://abc.gradio.live/v1", ""),
    ],
)
def test_loopback_and_what_is_near(url, more):
    assert no_proxy(url) == LOOPBACK + more
