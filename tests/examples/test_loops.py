"""examples/grpo.py and examples/replay.py, run as a person runs them: alone, and on an appliance that runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.examples.runs import run
from tests.served import KEY, ROOT, Served

EXAMPLES = ROOT / "examples"


@pytest.fixture
async def served(tmp_path: Path):
    one = Served(tmp_path, "--engine", "scripted", "--store", "sqlite:///e.db")
    await one.start()
    yield one
    await one.close()


async def get(served: Served, path: str) -> Any:
    async with (
        aiohttp.ClientSession(headers=served.headers) as session,
        session.get(served.control_url + path) as answer,
    ):
        assert answer.status == 200
        return await answer.json()


def words(name: str, *more: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *more]


async def test_a_loop_weighs_rollouts_and_not_rows(tmp_path):
    done = await run(words("grpo.py"), tmp_path)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 6
    for line in lines:
        found = re.fullmatch(r"step (\d): 4 rollouts, (\d+) rows, (\d+) trained tokens, loss [+-]\d\.\d{4}", line)
        assert found, line
        # Each rollout has two turns, and the template drops the first one's thinking: more rows than rollouts.
        assert int(found[2]) > 4
        assert int(found[3]) > 0


async def test_the_loop_on_an_appliance_that_runs_tells_it_its_weights(served, tmp_path):
    done = await run(words("grpo.py", "--url", served.control_url, "--key", KEY), tmp_path)
    assert done.code == 0, done.err
    (engine,) = (await get(served, "/engines"))["engines"]
    assert (engine["weights"], engine["held"]) == ("step-3", False)


async def test_a_rollout_is_begun_again(tmp_path):
    done = await run(words("replay.py"), tmp_path)
    assert done.code == 0, done.err
    assert re.search(r"^point 0: tool_result, awaits reply$", done.out, re.MULTILINE)
    first, second = re.findall(r"^the (?:first|second), (\S+), said: ", done.out, re.MULTILINE)
    assert first != second
    for trained, of in re.findall(r"calls \[\d+\]: (\d+) of (\d+) tokens are trained", done.out):
        assert 0 < int(trained) < int(of)


async def test_one_is_begun_again_by_name_at_its_end(served, tmp_path):
    access = ("--url", served.control_url, "--key", KEY)
    done = await run(words("replay.py", *access), tmp_path)
    assert done.code == 0, done.err
    (first,) = re.findall(r"^the first, (\S+), said: ", done.out, re.MULTILINE)
    again = await run(words("replay.py", *access, "--rollout", first, "--at", "whole"), tmp_path)
    assert again.code == 0, again.err
    assert "the first" not in again.out
    (second,) = re.findall(r"^the second, (\S+), said: ", again.out, re.MULTILINE)
    assert (await get(served, f"/rollouts/{second}"))["labels"] == {"replay_of": first}
