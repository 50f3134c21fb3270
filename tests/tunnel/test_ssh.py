"""A reverse forward through a real sshd on loopback: opened, carried, ended, refused."""

from __future__ import annotations

import asyncio
import os
import socket

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.processes import descendants, until
from tests.sshd import MISSING, sshd
from tunnel.base import Local
from tunnel.errors import TunnelError
from tunnel.ssh import Ssh

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(MISSING is not None and not os.environ.get("TREERING_REQUIRE_REAL"), reason=str(MISSING)),
]


@pytest.fixture
async def server(tmp_path):
    async with sshd(tmp_path / "ssh") as running:
        yield running


@pytest.fixture
async def listener():
    """What is to be reached."""

    async def answer(request):
        return web.Response(text="reached")

    app = web.Application()
    app.router.add_get("/", answer)
    running = TestServer(app)
    await running.start_server()
    yield Local(host="127.0.0.1", port=running.port)
    await running.close()


@pytest.fixture(autouse=True)
def nothing_left():
    """No ssh of ours outlives its test."""
    yield
    assert descendants(word="ssh ") == {}


async def test_it_carries(server, listener):
    tunnel = Ssh(server.where, port=server.port, options=server.options)
    try:
        url = await tunnel.open(listener)
        assert tunnel.ended is None
        assert url.startswith("http://127.0.0.1:")
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
    finally:
        await tunnel.close()
    await tunnel.close()


async def test_a_port_and_a_url_of_ones_own(server, listener):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tunnel = Ssh(
        server.where, port=server.port, options=server.options, remote_port=port, url="https://agents.example.org/"
    )
    try:
        assert await tunnel.open(listener) == "https://agents.example.org"
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/") as answer:
                        assert answer.status == 200
                        break
                except aiohttp.ClientConnectorError:
                    assert tunnel.ended is None
                    await asyncio.sleep(0.05)
    finally:
        await tunnel.close()


async def test_a_server_that_dies_ends_it(server, listener):
    tunnel = Ssh(server.where, port=server.port, options=server.options)
    try:
        await tunnel.open(listener)
        await server.stop()
        await until(lambda: tunnel.ended)
        assert tunnel.ended.startswith("ssh=")
    finally:
        await tunnel.close()


@pytest.mark.parametrize(
    ("spoil", "message", "hint"),
    [
        (lambda options: (f"IdentityFile={os.devnull}", *options[1:]), "Permission denied", "takes none of"),
        (lambda options: (*options[:2], f"UserKnownHostsFile={os.devnull}", options[3]), "verification failed", "key"),
    ],
)
async def test_a_wrong_key_fails_and_asks_nothing(server, listener, spoil, message, hint):
    tunnel = Ssh(server.where, port=server.port, options=spoil(server.options))
    with pytest.raises(TunnelError) as failed:
        await tunnel.open(listener)
    assert message in "\n".join(failed.value.lines)
    assert hint in failed.value.hint


async def test_a_port_in_use_is_refused(tmp_path, listener):
    # With IPv6 as well, a port that is free on ::1 alone counts as forwarded: that is the probe's to find out.
    async with sshd(tmp_path / "inet", extra="AddressFamily inet") as server:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            tunnel = Ssh(server.where, port=server.port, options=server.options, remote_port=port)
            try:
                await tunnel.open(listener)
                await until(lambda: tunnel.ended)
                assert "remote port forwarding failed" in tunnel.ended
            finally:
                await tunnel.close()


async def test_a_forward_that_the_server_does_not_allow_is_refused(tmp_path, listener):
    async with sshd(tmp_path / "closed", extra="AllowTcpForwarding no") as server:
        tunnel = Ssh(server.where, port=server.port, options=server.options)
        with pytest.raises(TunnelError) as failed:
            await tunnel.open(listener)
        assert "AllowTcpForwarding" in failed.value.hint


async def test_no_server_and_no_name_are_told_apart(listener):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TunnelError) as refused:
        await Ssh("127.0.0.1", port=port).open(listener)
    assert "no sshd answers" in refused.value.hint
    with pytest.raises(TunnelError) as unknown:
        await Ssh("no-such-host.invalid").open(listener)
    assert "name" in unknown.value.hint


async def test_a_server_that_says_nothing_is_waited_for_within_the_limit(listener):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tunnel = Ssh("127.0.0.1", port=silent.getsockname()[1], limit_s=0.5)
        with pytest.raises(TunnelError, match=r"did not forward a port within 0\.5 s"):
            await tunnel.open(listener)


async def test_a_cancelled_start_leaves_nothing(listener):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tunnel = Ssh("127.0.0.1", port=silent.getsockname()[1])
        opening = asyncio.get_running_loop().create_task(tunnel.open(listener))
        await until(lambda: descendants(word="ssh "))
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening


def test_a_host_that_looks_like_an_option_is_none():
    argv = Ssh("-oProxyCommand=touch /tmp/x")._argv(Local(host="127.0.0.1", port=8400))
    assert argv[-2:] == ["--", "-oProxyCommand=touch /tmp/x"]
