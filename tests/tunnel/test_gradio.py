"""A share link through the real gradio library, with stand-ins for its API and its frpc (tests/frpc_standin.py).

The library lies in an environment of its own, where bin/setup.py put it. No package ships a frpc for this system, and
the true one is fetched from gradio's servers at run time.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from capture.reach import Reach
from capture.settings import Settings
from tests.house import house
from tests.playbook import case
from tests.processes import descendants
from tunnel.base import Local
from tunnel.errors import TunnelError
from tunnel.gradio import Gradio
from tunnel.health import Prober
from tunnel.pool import Pool
from tunnel.spec import Spec

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".real" / "openenv" / "bin" / "python"
MISSING = "gradio's environment, which OpenEnv brings, is missing: python3 bin/setup.py real-openenv"
STANDIN = ROOT / "tests" / "frpc_standin.py"

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not PYTHON.exists() and not os.environ.get("TREERING_REQUIRE_REAL"),
        reason=MISSING,
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


async def test_its_token_reads_as_an_option_to_no_parser(frpc, local, monkeypatch):
    given = []

    async def start(name, argv, *, hidden):
        given.extend(hidden)
        raise TunnelError("not started")

    monkeypatch.setattr("tunnel.gradio.Program.start", start)
    # In base64, these bytes begin with "-".
    monkeypatch.setattr("secrets.token_bytes", lambda count: b"\xfb" * count)
    with pytest.raises(TunnelError, match="not started"):
        await gradio(frpc).open(local)
    assert len(given) == 1
    assert given[0].isalnum()


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


async def test_a_client_that_ends_without_a_word_is_told_at_once(frpc, local):
    tunnel = gradio(frpc, environment={"STANDIN_FRPC": "ends"})
    with pytest.raises(TunnelError) as failed:
        async with asyncio.timeout(29):
            # The library alone would look at its closed output for 30 s.
            await tunnel.open(local)
    assert "ended before it gave an address" in "\n".join(failed.value.lines)


async def test_without_the_library_it_says_how_to_get_it(local, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TunnelError) as failed:
        await Gradio().open(local)
    assert "treering[gradio]" in failed.value.hint


# -- a tunnel's life: every way in which its client can behave


LIFE = case(91)


@pytest.fixture
async def appliance_side():
    """A listener that says who it is."""

    async def health(request):
        return web.json_response({"ok": True, "nonce": "mine"})

    app = web.Application()
    app.router.add_get("/healthz", health)
    server = TestServer(app)
    await server.start_server()
    yield Local(host="127.0.0.1", port=server.port)
    await server.close()


def spoilt(frpc, how, tmp_path, made, **options):
    """A description of tunnels whose client behaves in one way; `made` gets each."""
    environment = {"STANDIN_FRPC": how, "STANDIN_STATE": str(tmp_path / "state")}

    def make():
        made.append(gradio(frpc, environment=environment, **options))
        return made[-1]

    return Spec(kind="gradio", text="gradio=127.0.0.1:7000", make=make)


def test_every_behaviour_of_the_case_is_played():
    assert set(LIFE["expected"]) == set(LIFE["generate"]["client"]) == {"login-once", "silent", "dies", "elsewhere"}


async def test_a_login_that_fails_once_is_ready_after_another_try(frpc, appliance_side, tmp_path):
    made = []
    pool = Pool([spoilt(frpc, "login-once", tmp_path, made)], appliance_side, Prober(("mine",)), pause_s=0.1)
    try:
        hold = await pool.acquire(1)
        assert LIFE["expected"]["login-once"] == "ready after another try"
        assert hold.url.startswith("http://127.0.0.1:")
        # The first try failed its login; on a busy machine another may fail at something else.
        assert len(made) >= 2
        assert pool.health[0].healthy
    finally:
        await pool.close()


async def test_a_client_that_says_nothing_is_an_error_within_the_limit(frpc, appliance_side, tmp_path, monkeypatch):
    monkeypatch.setattr("tunnel.pool.TRIES", 1)
    made = []
    pool = Pool([spoilt(frpc, "silent", tmp_path, made, limit_s=10.0)], appliance_side, Prober(("mine",)))
    try:
        with pytest.raises(TunnelError, match="did not give an address within 10 s") as failed:
            async with asyncio.timeout(40):
                await pool.acquire(1)
        assert LIFE["expected"]["silent"].endswith("with the client's lines")
        said = "\n".join(failed.value.lines)
        assert "connecting to 127.0.0.1:7000 as ***" in said
        assert failed.value.hint
        assert descendants(word="frpc") == {}
    finally:
        await pool.close()


async def test_an_address_that_answers_and_is_not_ours_is_never_given_out(frpc, appliance_side, tmp_path, monkeypatch):
    monkeypatch.setattr("tunnel.pool.TRIES", 1)
    made = []
    spec = spoilt(frpc, "elsewhere", tmp_path, made)
    pool = Pool([spec], appliance_side, Prober(("mine",)), ready_s=0.2)
    try:
        with pytest.raises(TunnelError, match="answers 404"):
            await pool.acquire(1)
        assert LIFE["expected"]["elsewhere"] == "not given out"
        assert not pool.health[0].healthy
    finally:
        await pool.close()


async def test_a_client_that_dies_is_a_lost_tunnel_on_the_rollouts_that_had_it(frpc, tmp_path):
    made = []
    async with house("scripted", tmp_path) as home:
        reach = home.appliance.reach = home.appliance.rollouts._reach = home.appliance.rollouts._enrolment._reach = (
            Reach(Settings(tunnel=("gradio=127.0.0.1:7000",)))
        )
        reach._specs = [spoilt(frpc, "dies", tmp_path, made)]
        home.appliance._lead()
        far = await home.rollout(reach={"agent": "remote", "tools": "local"})
        async with asyncio.timeout(60):
            while made[0].ended is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        await reach._pool.look(ended=True)
        lost = None
        async with asyncio.timeout(60):
            # The pool looks by itself too, and may have been at it first: then the look above found nothing to do.
            while lost is None:
                findings = (await home.control("GET", f"/rollouts/{far['id']}/findings"))["findings"]
                lost = next((each for each in findings if each["code"] == LIFE["expected"]["dies"]), None)
        assert lost["data"]["url"] == far["url"]
        assert "gradio=127.0.0.1:7000 ended with 1" in lost["data"]["reason"]
        # Another took its place, at an address of its own.
        assert len(made) == 2
        assert (await home.rollout(reach={"agent": "remote"}))["url"] != far["url"]
