"""The lookout: what it tells of engines, tunnels and closed rollouts."""

from types import SimpleNamespace

import pytest

from capture import lookout
from capture.errors import ClientError
from capture.lookout import Lookout


class Told:
    """A store that keeps what it is told."""

    def __init__(self):
        self.told = []

    async def tell(self, told):
        self.told += [(one.name, one.rollout, one.data) for one in told]

    async def notices(self, rollout):
        return [SimpleNamespace(code="tunnel_lost")]


def engine(**fields):
    return SimpleNamespace(**{"name": "vllm=http://e", "healthy": True, "reason": "", "changed": None, **fields})


def tunnel(**fields):
    return SimpleNamespace(**{"name": "t", "url": "http://t", "healthy": True, "reason": "", "opened": 0, **fields})


@pytest.fixture
def appliance():
    return SimpleNamespace(
        store=Told(),
        fleet=SimpleNamespace(all=[engine()]),
        reach=SimpleNamespace(health=(tunnel(),)),
        rollouts=SimpleNamespace(),
    )


def changes(watch):
    return [(one.name, one.data) for one in watch._look()]


async def test_an_engine_that_goes_and_comes_is_told_of_each_time(appliance):
    watch = Lookout(appliance, closed=lambda graph: None)
    assert changes(watch) == []
    appliance.fleet.all = [engine(healthy=False, reason="refused")]
    down = {"engine": "vllm=http://e", "healthy": False, "reason": "refused"}
    assert changes(watch) == [("engine", down)]
    assert changes(watch) == []
    appliance.fleet.all = [engine(changed="another model")]
    assert changes(watch) == []
    appliance.fleet.all = [engine()]
    assert changes(watch) == [("engine", {**down, "healthy": True, "reason": None})]


async def test_a_tunnel_is_news_when_it_opens(appliance):
    watch = Lookout(appliance, closed=lambda graph: None)
    assert changes(watch) == []
    appliance.reach.health = (tunnel(opened=1),)
    up = {"tunnel": "t", "url": "http://t", "healthy": True, "reason": None}
    assert changes(watch) == [("tunnel", up)]
    appliance.reach.health = (tunnel(opened=1, healthy=False, reason="cut", url=None),)
    assert changes(watch) == [("tunnel", {"tunnel": "t", "url": None, "healthy": False, "reason": "cut"})]


async def test_of_a_closed_rollout_is_told_what_was_not_told_before(appliance, monkeypatch):
    graphs, counted = {"r": "graph of r"}, []

    async def graph(name):
        if name not in graphs:
            raise ClientError("rollout_not_found", "gone", status=404)
        return graphs[name]

    appliance.rollouts.graph = graph
    monkeypatch.setattr(lookout.view, "findings_json", lambda _: [{"code": "tunnel_lost"}, {"code": "drift"}])
    watch = Lookout(appliance, closed=counted.append)
    reading = lookout.asyncio.ensure_future(watch.read())
    watch.examine("deleted meanwhile")
    watch.examine("r")
    await watch.examined()
    reading.cancel()
    assert appliance.store.told == [("finding", "r", {"code": "drift"})]
    assert counted == ["graph of r"]


async def test_too_many_at_once_are_counted_and_not_kept(appliance, monkeypatch, caplog):
    monkeypatch.setattr(lookout, "MOST_WAITING", 2)
    watch = Lookout(appliance, closed=lambda graph: None)
    for n in range(5):
        watch.examine(str(n))
    assert watch.skipped == 3
    assert list(watch._waiting) == ["3", "4"]
    assert len(caplog.records) == 1
