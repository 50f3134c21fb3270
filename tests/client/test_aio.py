"""The same client under asyncio."""

from __future__ import annotations

import asyncio

import pytest

from tests.house import house
from treering_client import AsyncClient


async def test_a_rollout_from_registration_to_sequences(tmp_path):
    async with (
        house("scripted", tmp_path) as home,
        AsyncClient(home.appliance.control_url, home.appliance.admin_key) as client,
    ):
        async with client.rollout("Say hello.", limits={"max_calls": 2}) as r:
            async with home.chat({"base_url": r.base_url, "secret": r.secret}) as answer:
                assert answer.status == 200
                await answer.read()
            assert await r.wait("idle", idle_s=0.0, timeout_s=10.0)
            assert len(await r.calls()) == len((await r.graph())["calls"]) == 1
            assert {found["level"] for found in await r.findings()} <= {"info", "warn", "error"}
            await r.reward(1.0)
            form = await r.sequences()
        assert r.closed
        assert form["reward"] == 1.0
        assert [line["rollout"] async for line in client.sequences()] == [r.id]


async def test_a_registration_may_be_awaited_too(tmp_path):
    async with (
        house("scripted", tmp_path) as home,
        AsyncClient(home.appliance.control_url, home.appliance.admin_key) as client,
    ):
        r = await client.rollout("x", id="mine")
        assert (r.id, r.closed) == ("mine", False)
        assert (await client.attach("mine")).secret == ""
        group = await client.rollouts(2, "x", id="g")
        assert [one.id for one in group] == ["g-0", "g-1"]
        await r.delete()


async def test_a_cancelled_block_closes_its_rollout(tmp_path):
    async with (
        house("scripted", tmp_path) as home,
        AsyncClient(home.appliance.control_url, home.appliance.admin_key) as client,
    ):
        entered = asyncio.Event()
        made = []

        async def trainer():
            async with client.rollout("x") as r:
                made.append(r)
                entered.set()
                await asyncio.Event().wait()

        async with asyncio.timeout(20):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(trainer())
                await entered.wait()
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                task.result()
            assert await (await client.attach(made[0].id)).wait("closed", timeout_s=10.0)
