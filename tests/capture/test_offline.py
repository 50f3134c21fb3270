"""Pages straight from a store."""

import asyncio
import json

import pytest

from capture.errors import ClientError, StoreError
from capture.offline import Offline
from tests.plane import control_plane


@pytest.fixture
async def settings(tmp_path):
    async with control_plane(tmp_path) as plane:
        for name in ("a", "b"):
            await plane.rollouts.register({"id": name, "group": "g"}, key=None, digest=name)
            await plane.call(name, 0, [1, 2, 3], [4, 5])
            await plane.rollouts.close_rollout(name, wait_s=0)
    return plane.settings


def read(settings, **query):
    with Offline(settings) as source, source.page(query) as answer:
        return [json.loads(line) for line in answer]


async def in_a_thread(work, *args, **options):
    return await asyncio.to_thread(work, *args, **options)


async def test_it_answers_as_the_route_does(settings):
    *rollouts, end = await in_a_thread(read, settings, group="g", limit=1, after=None)
    assert [line["rollout"] for line in rollouts] == ["a"]
    *rollouts, end = await in_a_thread(read, settings, group="g", limit=1, after=end["next"], label=[])
    assert ([line["rollout"] for line in rollouts], end["next"]) == (["b"], None)


async def test_it_counts_what_a_query_is_about(settings):
    def count(**query):
        with Offline(settings) as source:
            return source.count({"group": None, "state": None, "label": None, **query})

    assert await in_a_thread(count) == 2
    assert await in_a_thread(count, group="g", state="closed") == 2
    assert await in_a_thread(count, label=["split:train"]) == 0


async def test_what_cannot_be_meant_is_said(settings):
    with pytest.raises(ClientError, match="did you mean verl"):
        await in_a_thread(read, settings, format="ver1")
    with pytest.raises(ClientError, match="No rollout has group"):
        await in_a_thread(read, settings, group="other")


async def test_a_store_that_an_appliance_holds(tmp_path):
    async with control_plane(tmp_path) as plane:
        with pytest.raises(StoreError):
            await in_a_thread(read, plane.settings)
        assert "Offline" in repr(Offline(plane.settings))
