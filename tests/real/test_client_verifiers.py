"""verifiers' sessions get their slots from the client's interception, and their traces what was captured."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.house import house
from tests.real import library

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLIENT = Path(__file__).resolve().parents[2] / "client"


async def test_its_sessions_hold_our_interception(tmp_path):
    async with house("scripted", tmp_path) as home:
        case = {"client": str(CLIENT), "url": home.appliance.control_url, "key": home.appliance.admin_key}
        told = await asyncio.to_thread(library.ask, "verifiers", "client_verifiers.py", case, tmp_path / "verifiers")
        assert (told["is_interception"], told["secrets"]) == (True, [True, True, True])
        form = await home.control("GET", "/rollouts/good/sequences")
        branches = told["good"]["branches"]
        assert [branch["ids"] for branch in branches] == [row["input_ids"] for row in form["sequences"]]
        assert [list(map(int, branch["mask"])) for branch in branches] == [
            row["loss_mask"] for row in form["sequences"]
        ]
        for branch, row in zip(branches, form["sequences"], strict=True):
            captured = [logprob for logprob in row["logprobs"] if logprob is not None]
            assert [logprob for logprob in branch["logprobs"] if logprob != 0.0] == pytest.approx(captured)
        assert told["good"]["calls"] == 3
        assert told["good"]["info"]["treering"]["rollout"] == "good"
        # Its own limit ended the agent's loop, and is the trace's stop condition.
        assert told["few"] == "max_calls"
        assert told["broke"] == "the agent broke"
        assert told["empty"]["nodes"] == 0
        assert told["empty"]["info"]["treering"]["refused"] == "no_calls"
        assert (await home.control("GET", "/rollouts?state=open"))["rollouts"] == []
