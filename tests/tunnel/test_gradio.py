"""A share link through the real gradio library, with stand-ins for its API and its frpc (tests/frpc_standin.py).

The library lies in an environment of its own, where bin/setup.py put it. No package ships a frpc for this system, and
the true one is fetched from gradio's servers at run time.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.processes import descendants
from tunnel.base import Local
from tunnel.errors import TunnelError
from tunnel.gradio import Gradio

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".real" / "bench-openenv" / "bin" / "python"
STANDIN = ROOT / "tests" / "frpc_standin.py"

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not PYTHON.exists() and not os.environ.get("TREERING_REQUIRE_REAL"),
        reason="gradio's environment is missing: bin/setup.py bench-openenv",
    ),
]


@pytest.fixture
def frpc(tmp_path):
    """The stand-in as a program of its own."""
    program = tmp_path / "frpc"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(STANDIN))} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
async def local():
    async def answer(request):
        return web.Response(text="reached")

    app = web.Application()
    app.router.add_get("/", answer)
    server = TestServer(app)
    await server.start_server()
    yield Local(host="127.0.0.1", port=server.port)
    await server.close()


@pytest.fixture
async def api():
    """gradio's API, as `networking.setup_tunnel` reads it: the first of a list names a share server."""
    asked = []

    async def servers(request):
        asked.append(request.path)
        return web.json_response([{"host": "127.0.0.1", "port": 7000, "root_ca": "-----BEGIN CERTIFICATE-----"}])

    app = web.Application()
    app.router.add_get("/", servers)
    server = TestServer(app)
    await server.start_server()
    yield f"http://127.0.0.1:{server.port}/", asked
    await server.close()


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert descendants(word="frpc") == {}
    assert descendants(word="gradio_share") == {}


def gradio(frpc, server="127.0.0.1:7000", **options):
    environment = {"TREERING_FRPC": str(frpc), **options.pop("environment", {})}
    return Gradio(server, python=str(PYTHON), environment=environment, **options)


async def test_it_carries_through_the_users_own_server(frpc, local):
    tunnel = gradio(frpc)
    try:
        url = await tunnel.open(local)
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert await answer.text() == "reached"
        assert tunnel.ended is None
    finally:
        await tunnel.close()


async def test_it_asks_the_api_where_no_server_was_given(frpc, local, api):
    where, asked = api
    tunnel = gradio(frpc, server=None, environment={"GRADIO_SHARE_API": where})
    try:
        assert (await tunnel.open(local)).startswith("http://127.0.0.1:")
        assert len(asked) == 1
    finally:
        await tunnel.close()


async def test_an_api_that_is_not_there_is_said(frpc, local):
    tunnel = gradio(frpc, server=None, environment={"GRADIO_SHARE_API": "http://127.0.0.1:9/"})
    with pytest.raises(TunnelError) as failed:
        await tunnel.open(local)
    assert "gradio=HOST:PORT" in failed.value.hint


async def test_a_failed_login_is_told_with_the_clients_words_and_without_its_token(frpc, local, tmp_path):
    spoilt = {"STANDIN_FRPC": "login-once", "STANDIN_STATE": str(tmp_path / "state")}
    tunnel = gradio(frpc, environment=spoilt)
    with pytest.raises(TunnelError) as failed:
        await tunnel.open(local)
    text = "\n".join(failed.value.lines)
    assert "login to server failed" in text
    assert "as ***" in text
    again = gradio(frpc, environment=spoilt)
    try:
        assert await again.open(local)
    finally:
        await again.close()


async def test_a_client_that_never_gives_an_address_is_ended(frpc, local):
    tunnel = gradio(frpc, environment={"STANDIN_FRPC": "silent"}, limit_s=15)
    with pytest.raises(TunnelError, match="did not give an address within 15 s"):
        await tunnel.open(local)


async def test_without_the_library_it_says_how_to_get_it(local, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TunnelError) as failed:
        await Gradio().open(local)
    assert "treering[gradio]" in failed.value.hint
