"""A group of rollouts captured over HTTP from a real vLLM, in every format that trainers read.

Four rollouts of a scripted agent with tools (`scripted_agent`), graded 1, 0, 1, 0, on the model that says words in
float32, under weights of version 7 and with the temperature pinned. One group serves all tests of trainers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from capture.formats import FORMATS
from tests.house import house
from tests.real import scripted_agent
from tests.real.engine_vllm import Vllm

VERSION = "7"
# Made by the appliance as a file of its own kind, and read by tests of its own.
FILES = frozenset({"parquet"})


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout as its trainer gets it."""

    reward: float
    # Format → what GET …/sequences?format= answered.
    forms: dict[str, Any]
    # Every call, with ids and what passed, in order of arrival.
    calls: list[dict[str, Any]]
    # The rollout as a Parquet file.
    parquet: bytes

    @property
    def trained(self) -> list[int]:
        """The calls that any row trains."""
        return sorted({n for row in self.forms["native"]["sequences"] for n in trained_calls(row)})

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What the agent asked and got, and what was captured of it: for who renders it again."""
        return [
            {
                "n": call["n"],
                "request": {name: call["request"].get(name) for name in ("messages", "tools")},
                "reply": _kept(call["reply"]["choices"][0]["message"]),
                "logprobs": call["logprobs"],
                "sampled_ids": call["sampled_ids"],
            }
            for call in self.calls
        ]


def trained_calls(row: dict[str, Any]) -> list[int]:
    """Return the calls whose sampled ids a native row trains."""
    return [
        span["call"]
        for span in row["spans"]
        if span["kind"] == "sampled" and any(row["loss_mask"][span["start"] : span["end"]])
    ]


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    """Return a reply as the agent sends it back."""
    return {name: message[name] for name in ("role", "content", "tool_calls") if message.get(name)}


async def play(vllm: Vllm, folder: Path) -> list[Captured]:
    """Play and capture the group."""
    async with house(f"vllm={vllm.base_url}", folder, engine_wait=5.0) as home:
        assert (home.appliance.engine.tier, home.appliance.engine.logprobs_mode) == ("train", "processed")
        await home.control("POST", "/engine/weights", json={"version": VERSION})
        asked = {"n": len(scripted_agent.TASKS), "group": "island", "sampling": {"temperature": 1.0}}
        made = (await home.rollout(**asked))["rollouts"]
        return [await _one(home, rollout, place) for place, rollout in enumerate(made)]


async def _one(home: Any, rollout: dict[str, Any], place: int) -> Captured:
    reward = float(place % 2 == 0)
    await scripted_agent.play(home, rollout, task=scripted_agent.TASKS[place], seed=100 * place)
    await home.idle(rollout)
    await home.control("POST", f"/rollouts/{rollout['id']}/close", json={"reward": reward})
    path = f"/rollouts/{rollout['id']}/sequences?format="
    url = home.appliance.control_url + path + "parquet"
    headers = {"Authorization": f"Bearer {home.appliance.admin_key}"}
    async with home.session.get(url, headers=headers) as answer:
        parquet = await answer.read()
        assert answer.status == 200, parquet[:500]
    graph = await home.graph(rollout)
    return Captured(
        reward=reward,
        forms={name: await home.control("GET", path + name) for name in FORMATS if name not in FILES},
        calls=[await home.call(rollout, call["n"]) for call in graph["calls"]],
        parquet=parquet,
    )
