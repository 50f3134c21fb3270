"""`treering agents NAME`."""

import asyncio
import json

import pytest

from capture import cli
from capture.commands.table import AGENTS
from tests.plane import KEY, control_plane


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_without_a_server(capsys):
    assert cli.main(["agents", "opencode", "--listen", "0.0.0.0:9", "--model", "m", "--json"]) == 0
    out, err = capsys.readouterr()
    recipe = json.loads(out)
    assert set(recipe) == {"files", "env", "command"}
    assert recipe["env"]["OPENAI_BASE_URL"] == "http://127.0.0.1:9/v1"
    assert recipe["command"][:4] == ["opencode", "run", "--model", "treering/m"]
    assert err == ""


@pytest.mark.parametrize("name", AGENTS)
def test_each_agent_is_told_the_address_and_where_the_key_goes(name, capsys):
    assert cli.main(["agents", name, "--base-url", "https://tunnel.example/v1", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)
    assert set(recipe) == {"files", "env", "command"}
    told = json.dumps(recipe)
    assert "https://tunnel.example" in told
    assert "<the rollout's secret>" in told


def test_for_a_base_url(capsys):
    assert cli.main(["agents", "opencode", "--base-url", "https://tunnel.example/v1"]) == 0
    out, err = capsys.readouterr()
    assert "export OPENAI_BASE_URL=https://tunnel.example/v1\n" in out
    assert "treering rollout new --env" in err


async def test_for_a_rollout(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TREERING_ADMIN_KEY", KEY)
    async with control_plane(tmp_path) as plane:
        await plane.rollouts.register({"id": "r"}, key=None, digest="d")
        words = ["agents", "opencode", "--rollout", "r", "--url", plane.url, "--json"]
        assert await asyncio.to_thread(cli.main, words) == 0
        recipe = json.loads(capsys.readouterr().out)
        assert recipe["command"][3] == "treering/tiny"
        (config,) = recipe["files"].values()
        models = json.loads(config)["provider"]["treering"]["models"]
        assert models["tiny"]["limit"] == {"context": 2048, "output": 1024}
        await plane.rollouts.close_rollout("r", wait_s=0)
        assert await asyncio.to_thread(cli.main, words) == 1
        assert "closed" in capsys.readouterr().err
