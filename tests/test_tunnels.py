"""Whatever can be wrong with a tunnel, as whoever registers a rollout meets it: bounded, named, cleaned up.

With a real sshd on loopback, and `treering serve` as a program of its own where it is signalled or killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time

import aiohttp
import pytest

from tests.engine import STREAM, running
from tests.house import house
from tests.processes import alive, descendants, until
from tests.replicas import replica
from tests.sshd import MISSING, sshd
from tests.tunnel.test_health import answering, reply

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(MISSING is not None and not os.environ.get("TREERING_REQUIRE_REAL"), reason=str(MISSING)),
]

REMOTE = {"reach": {"agent": "remote", "tools": "local"}}

BOUND_S = 60.0
"""No registration may take longer to fail; most are told within a second."""


@pytest.fixture(autouse=True)
def nothing_left():
    """No child of ours outlives its test."""
    yield
    assert descendants(word="leash.py") == {}
    assert descendants(word="ssh ") == {}


@contextlib.asynccontextmanager
async def wrong_key(tmp_path, monkeypatch):
    async with sshd(tmp_path / "ssh") as server:
        monkeypatch.setenv("PATH", server.program(IdentityFile=os.devnull))
        yield server.spec


@contextlib.asynccontextmanager
async def unknown_host_key(tmp_path, monkeypatch):
    async with sshd(tmp_path / "ssh") as server:
        monkeypatch.setenv("PATH", server.program(UserKnownHostsFile=os.devnull))
        yield server.spec


@contextlib.asynccontextmanager
async def port_in_use(tmp_path, monkeypatch):
    async with sshd(tmp_path / "ssh", extra="AddressFamily inet") as server:
        monkeypatch.setenv("PATH", server.program())
        with socket.create_server(("127.0.0.1", 0)) as taken:
            yield f"{server.spec},port={taken.getsockname()[1]}"


@contextlib.asynccontextmanager
async def leads_to_nobody(tmp_path, monkeypatch):
    # The forward is made, and the URL that the operator gave for it is nobody's.
    async with sshd(tmp_path / "ssh") as server:
        monkeypatch.setenv("PATH", server.program())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        yield f"{server.spec},url=http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def somebody_elses(tmp_path, monkeypatch):
    async with answering(reply('{"ok": true, "nonce": "theirs"}')) as url:
        yield f"custom={url}"


@contextlib.asynccontextmanager
async def a_page(tmp_path, monkeypatch):
    async with answering(reply("<html>This link has expired</html>")) as url:
        yield f"custom={url}"


@contextlib.asynccontextmanager
async def mute(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"custom=http://127.0.0.1:{silent.getsockname()[1]}"


@contextlib.asynccontextmanager
async def no_such_name(tmp_path, monkeypatch):
    yield "custom=http://no-such-host.invalid"


@contextlib.asynccontextmanager
async def no_such_ssh_host(tmp_path, monkeypatch):
    yield "ssh=somebody@no-such-host.invalid"


@contextlib.asynccontextmanager
async def no_ssh_server(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"ssh=somebody@127.0.0.1:{free.getsockname()[1]}"


@contextlib.asynccontextmanager
async def no_gradio(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    yield "gradio"


@contextlib.asynccontextmanager
async def direct_on_loopback(tmp_path, monkeypatch):
    yield "direct"


@pytest.mark.parametrize(
    ("wrong", "says", "todo"),
    [
        (wrong_key, "Permission denied", "takes none of this user's keys"),
        (unknown_host_key, "Host key verification failed", "connect once by hand"),
        (port_in_use, "remote port forwarding failed", "the port is in use"),
        (leads_to_nobody, "opened, but http://127.0.0.1:", ""),
        (somebody_elses, "leads to another Treering", ""),
        (a_page, "answered by something that is no Treering", ""),
        (mute, "takes connections and carries nothing", ""),
        (no_such_name, "can't be looked up", ""),
        (no_such_ssh_host, "Could not resolve hostname", "name is not known here"),
        (no_ssh_server, "Connection refused", "no sshd answers there"),
        (no_gradio, "gradio is not installed", "treering[gradio]"),
        (direct_on_loopback, "loopback", "--listen"),
    ],
)
async def test_what_is_wrong_is_told_to_who_registers_and_nothing_is_left(tmp_path, monkeypatch, wrong, says, todo):
    async with wrong(tmp_path, monkeypatch) as tunnel, house("scripted", tmp_path, tunnel=(tunnel,)) as home:
        pool = home.appliance.reach._pool
        pool._ready_s = pool._pause_s = pool._prober._limit_s = 0.2
        if wrong is port_in_use:
            # Until ssh is in, whoever has that port answers or doesn't; then ssh ends, and that is told at once.
            pool._ready_s = 20.0
        began = time.monotonic()
        answer = await home.control("POST", "/rollouts", json=REMOTE, status=503)
        assert time.monotonic() - began < BOUND_S
        error = answer["error"]
        assert error["code"] == "no_tunnel"
        assert says in error["message"]
        assert todo in error["hint"]
        assert error["hint"]
        assert descendants(word="leash.py") == {}
        assert (await home.control("GET", "/rollouts"))["rollouts"] == []
        (shown,) = (await home.control("GET", "/tunnels"))["tunnels"]
        assert (shown["healthy"], shown["rollouts"], shown["url"]) == (False, 0, None)
        assert shown["reason"]
        # Whoever needs no tunnel is served all the same.
        near = await home.rollout(reach={"agent": "local", "tools": "local"})
        async with home.chat(near) as said:
            assert said.status == 200


async def test_whoever_hangs_up_while_a_tunnel_opens_leaves_no_program(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tunnel = f"ssh=somebody@127.0.0.1:{silent.getsockname()[1]}"
        async with house("scripted", tmp_path, tunnel=(tunnel,)) as home:
            asking = asyncio.get_running_loop().create_task(home.control("POST", "/rollouts", json=REMOTE))
            await until(lambda: descendants(word="leash.py"))
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            await until(lambda: not descendants(word="leash.py"))
            assert (await home.control("GET", "/rollouts"))["rollouts"] == []


# -- the program itself: signalled, killed, stopped


async def test_sigterm_while_a_tunnel_opens_ends_it_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"somebody@127.0.0.1:{silent.getsockname()[1]}"
        async with replica(tmp_path / "one", "--engine", "scripted", "--tunnel", f"ssh={where}") as one:
            asking = asyncio.get_running_loop().create_task(one.control("POST", "/rollouts", json=REMOTE, status=503))
            port = where.rpartition(":")[2]
            await until(lambda: alive(f"-p {port}"))
            one.signal(signal.SIGTERM)
            answer = await asking
            assert "shutting down" in answer["error"]["message"]
            assert await one.ended(within_s=20) == 0, one.said
            assert alive(f"-p {port}") == {}


async def test_killed_it_leaves_no_program_and_no_open_port(tmp_path):
    async with sshd(tmp_path / "ssh") as server:
        words = ("--engine", "scripted", "--tunnel", server.spec)
        async with replica(tmp_path / "one", *words, env={"PATH": server.program()}) as one:
            rollout = await one.rollout(**REMOTE)
            port = int(rollout["url"].rpartition(":")[2])
            assert alive(f"-p {server.port}")
            await one.kill()
            await until(lambda: not alive(f"-p {server.port}"))

            def closed():
                with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                    return False
                return True

            await until(closed)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_what_runs_through_a_tunnel_is_served_to_its_end_and_the_tunnel_closes_first(tmp_path, workers):
    async with sshd(tmp_path / "ssh") as server, running() as engine:
        words = ("--engine", f"vllm={engine.url}", "--tunnel", server.spec, "--workers", workers)
        async with replica(tmp_path / "one", *words, env={"PATH": server.program()}) as one:
            rollout = await one.rollout(**REMOTE)
            assert rollout["url"] != one.data_url
            # The supervisor alone has a tunnel: one, whatever the workers.
            assert len(alive(f"-p {server.port}")) == 2, "a leash and its ssh"
            asking = asyncio.get_running_loop().create_task(
                one.chat(rollout, url=rollout["url"], stream=True).__aenter__()
            )
            exchange = await engine.next()
            exchange.send(*STREAM[:2])
            answer = await asking
            one.opened.append(answer)
            seen = await answer.content.readuntil(b"Hel")
            one.signal(signal.SIGTERM)

            async def status():
                headers = {"Authorization": f"Bearer {rollout['secret']}"}
                async with one.http.get(f"{rollout['url']}/v1/models", headers=headers) as other:
                    return other.status

            # The listener is there still, and takes no more from the moment at which every worker knows.
            async with asyncio.timeout(20):
                while (now := await status()) != 503:
                    assert now == 200
            assert alive(f"-p {server.port}")
            exchange.send(*STREAM[2:]).end()
            seen += await answer.content.read()
            assert b"[DONE]" in seen
            assert await one.ended(within_s=30) == 0, one.said
            assert alive(f"-p {server.port}") == {}
        async with replica(tmp_path / "again", "--engine", f"vllm={engine.url}", "--store",
                           f"sqlite:///{tmp_path}/one/treering.db") as later:  # fmt: skip
            (call,) = (await later.graph(rollout))["calls"]
            assert (call["status"], call["delivered"]) == ("complete", True)


async def test_a_lost_tunnel_is_replaced_within_seconds_and_told(tmp_path):
    async with sshd(tmp_path / "ssh") as server:
        words = ("--engine", "scripted", "--tunnel", server.spec)
        async with replica(tmp_path / "one", *words, env={"PATH": server.program()}) as one:
            first = await one.rollout(**REMOTE)
            (ssh,) = [pid for pid, args in alive(f"-p {server.port}").items() if "leash.py" not in args]
            os.kill(ssh, signal.SIGKILL)

            async def tunnels():
                (shown,) = (await one.control("GET", "/tunnels"))["tunnels"]
                return shown

            async with asyncio.timeout(20):
                while not ((shown := await tunnels())["lost"] == 1 and shown["healthy"]):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            second = await one.rollout(**REMOTE)
            assert second["url"] == shown["url"] != first["url"]
            assert (shown["opened"], shown["stranded"]) == (2, 1)
            async with one.chat(second, url=second["url"]) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientConnectionError):
                async with one.chat(first, url=first["url"]):
                    pass
            findings = await one.control("GET", f"/rollouts/{first['id']}/findings")
            (lost,) = [each for each in findings["findings"] if each["code"] == "tunnel_lost"]
            assert lost["data"]["url"] == first["url"]
            assert "ended with" in lost["data"]["reason"]
            findings = await one.control("GET", f"/rollouts/{second['id']}/findings")
            assert "tunnel_lost" not in [each["code"] for each in findings["findings"]]
            one.signal(signal.SIGTERM)
            assert await one.ended() == 0


async def test_a_tunnel_at_a_port_of_its_own_comes_back_for_those_who_have_it(tmp_path):
    async with sshd(tmp_path / "ssh") as server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ("--engine", "scripted", "--tunnel", f"{server.spec},port={port}")
        async with replica(tmp_path / "one", *words, env={"PATH": server.program()}) as one:
            rollout = await one.rollout(**REMOTE)
            assert rollout["url"] == f"http://127.0.0.1:{port}"
            async with one.chat(rollout, url=rollout["url"]) as answer:
                assert answer.status == 200
            await one.kill()
            await until(lambda: not alive(f"-p {server.port}"))
            await one.start()

            async def status():
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with one.chat(rollout, url=rollout["url"]) as answer:
                        return answer.status
                return None

            # Nobody has registered since: it was opened for the one who was told its address.
            async with asyncio.timeout(30):
                while await status() != 200:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
            findings = await one.control("GET", f"/rollouts/{rollout['id']}/findings")
            assert "tunnel_lost" not in [each["code"] for each in findings["findings"]]
            assert len((await one.graph(rollout))["calls"]) == 2


async def test_as_many_are_opened_as_are_needed_and_all_are_closed(tmp_path):
    async with sshd(tmp_path / "ssh") as server:
        words = ("--engine", "scripted", "--tunnel", server.spec, "--tunnel-multiplex", "2")
        async with replica(tmp_path / "one", *words, env={"PATH": server.program()}) as one:
            made = (await one.rollout(n=5, **REMOTE))["rollouts"]
            urls = [each["url"] for each in made]
            assert [urls.count(url) for url in dict.fromkeys(urls)] == [2, 2, 1]
            for each in made:
                async with one.chat(each, url=each["url"]) as answer:
                    assert answer.status == 200
            shown = (await one.control("GET", "/tunnels"))["tunnels"]
            assert [(each["healthy"], each["rollouts"]) for each in shown] == [(True, 2), (True, 2), (True, 1)]
            # There is room for one more, and no other is opened for it.
            assert (await one.rollout(**REMOTE))["url"] == urls[-1]
            assert len(alive(f"-p {server.port}")) == 6, "three, each with its leash"
            one.signal(signal.SIGTERM)
            assert await one.ended() == 0, one.said
            assert alive(f"-p {server.port}") == {}
