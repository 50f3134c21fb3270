"""TRL's own harness loop takes the client's sessions as they are, and trains what the engine sampled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.house import house
from tests.real import library

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLIENT = Path(__file__).resolve().parents[2] / "client"
EMPTY = [[], [], [], 0, 0, None]
"""What TRL makes of a session that failed: left out of its group."""


async def test_its_loop_runs_our_sessions(tmp_path):
    async with house("scripted", tmp_path) as home:
        case = {"client": str(CLIENT), "url": home.appliance.control_url, "key": home.appliance.admin_key}
        told = await asyncio.to_thread(library.ask, "trl", "client_trl.py", case, tmp_path / "trl")
        good = told["good"]
        form = await home.control("GET", f"/rollouts/{good['rollout']}/sequences")
        rows = [
            {
                "ids": row["input_ids"],
                "mask": row["loss_mask"],
                "trained": [logprob for logprob in row["logprobs"] if logprob is not None],
            }
            for row in form["sequences"]
        ]
        seen = [
            {
                "ids": row["ids"],
                "mask": row["mask"],
                "trained": [logprob for logprob, bit in zip(row["logprobs"], row["mask"], strict=True) if bit],
            }
            for row in good["rows"]
        ]
        assert seen == rows
        assert (good["turns"], good["reward"], form["reward"], form["group"]) == (3, 0.5, 0.5, "trl-7")
        assert sum(map(len, (row["trained"] for row in rows))) == len(good["ids"])
        # What TRL shows its reward function: the last request and the reply to it.
        assert good["graded"] == [good["completion"]]
        assert good["completion"][0] == {"role": "user", "content": "Say something."}
        shown = await home.control("GET", f"/rollouts/{good['rollout']}")
        assert shown["state"] == "closed"
        call = await home.call(good and {"id": good["rollout"]}, 0)
        # What its loss divides by is what the engine sampled with.
        assert call["sampling"]["sent"]["temperature"] == 1.0
        assert told["is_trainable"]
        # An agent that never called, and one that can't be started, are left out; neither stops the trainer.
        assert (told["silent"], told["broken"]) == (EMPTY, EMPTY)
        # Its time over, what was captured is trained, and flagged.
        assert told["late"] == {"reward": 0.5, "exhausted": True, "turns": 1}
        # An engine without ids stops it, with the reason.
        assert "tier eval" in told["text"]
        assert (await home.control("GET", "/rollouts?state=open"))["rollouts"] == []
