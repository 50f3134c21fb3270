"""Which engine serves a call: stickiness, failover, health, guests."""

import asyncio

import pytest

from capture.engines.base import Identity
from capture.engines.vllm import Vllm
from capture.errors import ClientError, EngineError
from capture.fleet import Fleet
from capture.upstream import Engine
from tests.engine import running


def engine(port: int, *, model: str = "m", length: int = 4096, healthy: bool = True) -> Engine:
    made = Engine(Vllm(), f"http://127.0.0.1:{port}")
    made.identity = Identity(kind="vllm", url=made.url, models=(model,), max_model_len=length)
    made.healthy = healthy
    return made


def names(engines: list[Engine]) -> list[str]:
    return [one.url.rsplit(":", 1)[1] for one in engines]


def test_a_rollout_sticks_to_one_engine_and_rollouts_are_spread() -> None:
    fleet = Fleet([engine(port) for port in range(1, 5)])
    firsts = {name: fleet.order(name, model="m")[0].url for name in map(str, range(400))}
    assert all(fleet.order(name, model="m")[0].url == url for name, url in firsts.items())
    counts = [list(firsts.values()).count(one.url) for one in fleet.engines]
    assert min(counts) > 60


def test_only_the_rollouts_of_an_engine_that_goes_move() -> None:
    engines = [engine(port) for port in range(1, 5)]
    before = Fleet(engines)
    after = Fleet(engines[:-1])
    for name in map(str, range(200)):
        was = before.order(name, model="m")[0]
        if was is not engines[-1]:
            assert after.order(name, model="m")[0] is was


def test_a_dead_engine_comes_last() -> None:
    engines = [engine(1), engine(2)]
    fleet = Fleet(engines)
    first = fleet.order("r", model="m")[0]
    first.healthy = False
    assert fleet.order("r", model="m")[0] is not first
    assert len(fleet.order("r", model="m")) == 2


def test_a_call_moves_only_between_engines_that_are_alike() -> None:
    fleet = Fleet([engine(1), engine(2, length=100), engine(3, model="other"), engine(4)])
    for name in map(str, range(50)):
        order = fleet.order(name, model="m")
        assert len({(one.identity.models, one.identity.max_model_len) for one in order}) == 1
    assert names(fleet.order("r", model="other")) == ["3"]


def test_a_model_that_nobody_names_is_served_by_any() -> None:
    assert names(Fleet([engine(1)]).order("r", model="unheard")) == ["1"]


def test_an_engine_that_came_back_as_another_serves_no_open_rollout() -> None:
    changed = engine(1)
    changed.changed = "it served m and now serves n."
    with pytest.raises(ClientError) as caught:
        Fleet([changed]).order("r", model="m")
    assert (caught.value.status, caught.value.code) == (409, "engine_changed")
    fleet = Fleet([changed, engine(2)])
    assert names(fleet.order("r", model="m")) == ["2"]


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:80000", "http://127.0.0.1.evil", "http://evil/http://127.0.0.1:8000", "http://127.0.0.1:8000x"],
)
async def test_a_guest_must_lie_under_an_allowed_prefix(url: str) -> None:
    async def never(url: str) -> Engine:
        raise AssertionError(url)

    fleet = Fleet([engine(1)], allowed=("http://127.0.0.1:8000",), open_engine=never)
    with pytest.raises(ClientError) as caught:
        await fleet.admit(url)
    assert (caught.value.status, caught.value.code) == (422, "engine_not_allowed")
    with pytest.raises(ClientError):
        await Fleet([engine(1)]).admit("http://127.0.0.1:8000")


async def test_a_guest_is_opened_once_and_serves_its_rollouts() -> None:
    opened = []

    async def open_engine(url: str) -> Engine:
        opened.append(url)
        await asyncio.sleep(0)
        return engine(9)

    fleet = Fleet([engine(1)], allowed=("http://127.0.0.1:9",), open_engine=open_engine)
    async with asyncio.TaskGroup() as both:
        for url in ("http://127.0.0.1:9", "http://127.0.0.1:9/v1"):
            both.create_task(fleet.admit(url))
    assert len(opened) == 1
    assert names(fleet.order("r", model="m", url="http://127.0.0.1:9/v1/")) == ["9"]
    with pytest.raises(EngineError):
        fleet.order("r", model="m", url="http://127.0.0.1:7")
    await fleet.close()


async def test_an_engine_that_comes_back_is_asked_again_who_it_is() -> None:
    async with running() as server:
        one = Engine(Vllm(), server.url)
        await one.open()
        await one.identify()
        fleet = Fleet([one])
        await server.close()
        await fleet._look(one)
        assert not one.healthy
        await server.start(int(server.url.rsplit(":", 1)[1]))
        await fleet._look(one)
        assert (one.healthy, one.changed) == (True, None)
        one.identity = Identity(kind="vllm", url=one.url, models=("was",), max_model_len=4096)
        one.healthy = False
        await fleet._look(one)
        assert one.changed == "it served was and now serves tiny."
        await fleet.close()
