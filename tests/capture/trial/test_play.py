"""Scripts played to an engine, through an appliance that is gone afterwards."""

from __future__ import annotations

import pytest

from capture.errors import EngineError
from capture.settings import Settings
from capture.trial.play import trial
from capture.trial.scenarios import SCENARIOS


async def test_a_script_is_a_rollout():
    async with trial(Settings(engine=("scripted",))) as one:
        rollout = await one.play(SCENARIOS["plain chat"].script())
        graph = await one.control("GET", f"/rollouts/{rollout}/graph")
        assert [call["status"] for call in graph["calls"]] == ["complete"] * 4
        assert [call["parent"] for call in graph["calls"]] == [None, 0, 1, 2]
        assert await one.unpinnable() is None


async def test_pinned_it_chains():
    async with trial(Settings(engine=("scripted",))) as one:
        rollout = await one.play(SCENARIOS["tool loop"].script(), tokens="pinned")
        graph = await one.control("GET", f"/rollouts/{rollout}/graph")
        assert graph["drift"]["exact"] == graph["drift"]["transitions"] == 3


async def test_further_fields_go_with_each_request():
    async with trial(Settings(engine=("scripted",))) as one:
        rollout = await one.play(SCENARIOS["plain chat"].script(), more=lambda asked: {"temperature": 0.25})
        call = await one.control("GET", f"/rollouts/{rollout}/calls/1")
        assert call["sampling"]["asked"]["temperature"] == 0.25


async def test_a_request_that_is_refused_says_so():
    async with trial(Settings(engine=("scripted",))) as one:
        with pytest.raises(EngineError, match="answered 400") as why:
            await one.play(SCENARIOS["plain chat"].script(), more=lambda asked: {"messages": "none"})
        assert why.value.code == "engine_refused"


async def test_an_engine_that_is_not_there_is_not_waited_for():
    with pytest.raises(EngineError):
        async with trial(Settings(engine=("vllm=http://127.0.0.1:9",))):
            pass
