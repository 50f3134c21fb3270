"""Tunnels that are somebody else's work."""

from __future__ import annotations

import pytest

from tunnel.base import Local
from tunnel.errors import TunnelError
from tunnel.given import Custom, Direct


async def test_direct_is_the_listeners_own_address():
    tunnel = Direct()
    assert await tunnel.open(Local(host="10.0.0.5", port=8400)) == "http://10.0.0.5:8400"
    assert tunnel.ended is None
    await tunnel.close()


async def test_direct_may_name_the_machine():
    assert await Direct("node7").open(Local(host="0.0.0.0", port=8400)) == "http://node7:8400"


@pytest.mark.parametrize(
    ("tunnel", "listens", "hint"),
    [
        (Direct(), "0.0.0.0", "direct=ADDRESS"),
        (Direct(), "127.0.0.1", "--listen"),
        (Direct("node7"), "127.0.0.1", "--listen"),
        (Direct("localhost"), "0.0.0.0", "--listen"),
    ],
)
async def test_direct_never_gives_out_what_no_other_machine_reaches(tunnel, listens, hint):
    with pytest.raises(TunnelError) as refused:
        await tunnel.open(Local(host=listens, port=8400))
    assert hint in refused.value.hint


async def test_custom_is_a_url_as_it_was_given():
    tunnel = Custom("https://agents.example.org/t/")
    assert await tunnel.open(Local(host="127.0.0.1", port=1)) == "https://agents.example.org/t"
    assert tunnel.ended is None
    await tunnel.close()
