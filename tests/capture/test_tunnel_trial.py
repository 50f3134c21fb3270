"""A tunnel tried out: what carries says so, and what does not says what it does instead."""

from __future__ import annotations

import socket

import pytest

from capture.settings import Settings
from capture.tunnel_trial import attempt
from tests.house import house
from tests.tunnel.test_health import answering, reply
from tunnel.errors import TunnelError
from tunnel.spec import parse


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def test_an_address_that_leads_to_where_the_data_plane_will_be(port):
    settings = Settings(listen=f"127.0.0.1:{port}")
    url = f"http://localhost:{port}"
    assert await attempt(parse(f"custom={url}"), settings) == url
    # Nothing is left there.
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_an_address_that_leads_elsewhere(port):
    async with answering(reply('{"ok": true, "nonce": "theirs"}')) as url:
        with pytest.raises(TunnelError, match="leads to another Treering"):
            await attempt(parse(f"custom={url}"), Settings(listen=f"127.0.0.1:{port}"), ready_s=0.1)


async def test_where_a_treering_runs_an_address_must_lead_to_it(tmp_path):
    async with house("scripted", tmp_path) as home:
        listen = home.appliance.data_url.removeprefix("http://")
        settings = Settings(listen=listen)
        url = f"http://localhost:{listen.rpartition(':')[2]}"
        assert await attempt(parse(f"custom={url}"), settings) == url
        async with answering(reply('{"ok": true, "nonce": "theirs"}')) as other:
            with pytest.raises(TunnelError, match="another Treering"):
                await attempt(parse(f"custom={other}"), settings, ready_s=0.1)


async def test_where_something_else_listens_that_is_said():
    async with answering(reply("<html>")) as url:
        settings = Settings(listen=url.removeprefix("http://"))
        with pytest.raises(TunnelError, match="by something that is no Treering") as failed:
            await attempt(parse(f"custom={url}"), settings)
        assert "--listen" in failed.value.hint


async def test_direct_on_loopback_is_refused_with_what_to_do(port):
    with pytest.raises(TunnelError, match="loopback") as failed:
        await attempt(parse("direct"), Settings(listen=f"127.0.0.1:{port}"))
    assert "--listen" in failed.value.hint
