"""Real opencode on another machine, through a real reverse tunnel that is cut in the middle and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.house import House, house
from tests.netns import Machine, machine
from tests.processes import alive, descendants, until
from tests.real import agent_opencode
from tests.sshd import MISSING, sshd

RULES = Path(__file__).parent / "tunnel_rules.toml"
RUN_LIMIT_S = 120.0

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(300),
    pytest.mark.skipif(MISSING is not None and not os.environ.get("TREERING_REQUIRE_REAL"), reason=str(MISSING)),
]


class Agent:
    """One `opencode run` on a machine, with what a rollout's owner was told."""

    def __init__(self, where: Machine, home: Path, rollout: dict[str, Any], prompt: str) -> None:
        self.where = where
        self.prompt = prompt
        given = {"base_url": rollout["base_url"], "api_key": rollout["secret"]}
        self.project = agent_opencode.prepare(home, agent_opencode.configuration(**given))
        # Its proxy leads nowhere: it gets here only by the exceptions that the registration names.
        self.env = {**agent_opencode.environment(home), "NO_PROXY": rollout["env"]["NO_PROXY"]}
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self.where.prefix, str(agent_opencode.PROGRAM), "run", self.prompt,
            cwd=self.project, env=self.env, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip

    async def ended(self) -> str:
        """Wait for its end; return what it printed."""
        async with asyncio.timeout(RUN_LIMIT_S):
            output, _ = await self.process.communicate()
        assert self.process.returncode == 0, output.decode(errors="replace")
        return output.decode(errors="replace")

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.communicate()


@contextlib.asynccontextmanager
async def agent(*given: Any):
    one = Agent(*given)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


async def findings(home: House, rollout: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = await home.control("GET", f"/rollouts/{rollout['id']}/findings")
    return {each["code"]: each for each in found["findings"]}


async def reaches(where: Machine, url: str) -> bool:
    """Whether something on that machine reaches a URL here."""
    code = f"import urllib.request as u; u.build_opener(u.ProxyHandler({{}})).open({url + '/healthz'!r}, timeout=5)"
    argv = [*where.prefix, sys.executable, "-c", code]
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(60):
        return await process.wait() == 0


async def test_a_rollout_through_a_tunnel_that_is_cut_and_comes_back(tmp_path, monkeypatch, capsys):
    if reason := agent_opencode.missing():
        pytest.skip(reason)
    with machine() as far:
        with capsys.disabled():
            print(f"\nthe agent and its sshd run {far.told}")
        async with sshd(tmp_path / "ssh", extra="GatewayPorts clientspecified", machine=far) as server:
            monkeypatch.setenv("PATH", server.program())
            spec = f"{server.spec},bind={far.host}" if far.other else server.spec
            async with house(f"scripted={RULES}", tmp_path, tunnel=(spec,)) as home:
                await carried(home, far, tmp_path, server)
        assert descendants(word="leash.py") == {}


async def carried(home: House, far: Machine, folder: Path, server: Any) -> None:
    # A whole rollout: streamed, of several turns.
    whole = await home.rollout()
    assert await reaches(far, whole["url"])
    if far.other:
        assert whole["url"].startswith(f"http://{far.host}:")
        assert far.host in whole["env"]["NO_PROXY"].split(",")
        assert not await reaches(far, home.appliance.data_url)
    async with agent(far, folder / "whole", whole, "Say two words.") as one:
        assert "Both words came through." in await one.ended()
    await home.idle(whole)
    graph = await home.graph(whole)
    (main,) = [each for each in graph["conversations"] if each["role"] == "main"]
    calls = [graph["calls"][n] for n in main["calls"]]
    assert len(calls) == 3
    assert all(call["streamed"] and call["delivered"] and call["status"] == "complete" for call in calls)
    assert "tunnel_lost" not in await findings(home, whole)

    # Another, which is cut in the middle of a stream: the forward's program dies, and its server with all it serves.
    cut = await home.rollout()
    assert cut["url"] == whole["url"]
    async with agent(far, folder / "cut", cut, "Wait for me."):
        async with asyncio.timeout(RUN_LIMIT_S):
            # Its stream stands still in its middle.
            await home.appliance._scripted[0].hung()
        (ssh,) = [pid for pid, args in alive(f"-p {server.port}").items() if "leash.py" not in args]
        await server.stop()
        with contextlib.suppress(ProcessLookupError):
            os.kill(ssh, signal.SIGKILL)
        await server.start()
        await ended(home, cut)
    lost = (await findings(home, cut))["tunnel_lost"]["data"]
    assert (lost["url"], lost["tunnel"]) == (cut["url"], f"ssh={server.where}")
    aborted = [call for call in (await home.graph(cut))["calls"] if call["status"] == "aborted"]
    assert aborted
    assert all(call["n_sampled"] for call in aborted[:1])

    # It comes back, for new rollouts.
    await until(lambda: home.appliance.reach.health[0].healthy, limit_s=60)
    again = await home.rollout()
    assert again["url"] == home.appliance.reach.health[0].url != cut["url"]
    async with agent(far, folder / "again", again, "Say two words.") as one:
        assert "Both words came through." in await one.ended()
    assert "tunnel_lost" not in await findings(home, again)
    (shown,) = (await home.control("GET", "/tunnels"))["tunnels"]
    assert (shown["opened"], shown["lost"], shown["stranded"]) == (2, 1, 2)
    closed = await home.control("POST", f"/rollouts/{again['id']}/close", json={"sequences": {"format": "native"}})
    assert closed["sequences"]["n_trained_tokens"] > 0, json.dumps(closed)[:500]


async def ended(home: House, rollout: dict[str, Any]) -> None:
    """Return when a call of it was aborted, and its loss told."""
    async with asyncio.timeout(60):
        while True:
            calls = (await home.graph(rollout))["calls"]
            if any(call["status"] == "aborted" for call in calls) and "tunnel_lost" in await findings(home, rollout):
                return
            await asyncio.sleep(0.1)
