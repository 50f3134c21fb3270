"""The lookout: what it tells of engines, tunnels and closed rollouts."""

from types import SimpleNamespace

import pytest

from capture import lookout
from capture.errors import ClientError
from capture.lookout import Lookout
from capture.store.summary import Line, Sheet
from capture.tasks import spawn


class Told:
    """A store that keeps what it is told."""

    def __init__(self):
        self.told = []

    async def tell(self, told):
        self.told += [(one.name, one.rollout, one.data) for one in told]

    async def summarise(self, made):
        self.told += [("summary", entry, summary) for entry, summary in made]

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

    async def seen(name):
        if name not in graphs:
            raise ClientError("rollout_not_found", "gone", status=404)
        return f"entry of {name}", graphs[name]

    async def keep(store, entry, graph):
        await store.summarise([(entry, f"summary of the {graph}")])

    appliance.rollouts = SimpleNamespace(seen=seen, owes=lambda name: False)
    monkeypatch.setattr(lookout.summaries, "keep", keep)
    monkeypatch.setattr(lookout.view, "findings_json", lambda _: [{"code": "tunnel_lost"}, {"code": "drift"}])
    watch = Lookout(appliance, closed=counted.append)
    reading = lookout.asyncio.ensure_future(watch.read())
    watch.examine("deleted meanwhile")
    watch.examine("r")
    await watch.examined()
    reading.cancel()
    assert appliance.store.told == [
        ("summary", "entry of r", "summary of the graph of r"), ("finding", "r", {"code": "drift"}),
    ]  # fmt: skip
    assert counted == ["graph of r"]


async def test_summaries_that_are_behind_come_behind_what_has_closed(appliance, monkeypatch):
    done = []

    async def refresh(rollouts, store, name):
        if name == "gone":
            raise ClientError("rollout_not_found", "gone", status=404)
        done.append(("refreshed", name))

    async def examine(name):
        watch._behind.pop(name, None)
        done.append(("examined", name))

    monkeypatch.setattr(lookout.summaries, "refresh", refresh)
    watch = Lookout(appliance, closed=lambda graph: None)
    monkeypatch.setattr(watch, "_examine", examine)
    watch.refresh(["a", "gone", "b", "a", "closed"])
    watch.examine("closed")
    reading = spawn(watch.read(), name="examine")
    await watch.examined()
    reading.cancel()
    assert done == [("examined", "closed"), ("refreshed", "a"), ("refreshed", "b")]


async def test_what_was_closed_before_is_summarised_page_by_page(appliance, monkeypatch):
    monkeypatch.setattr(lookout, "PAUSE_S", 0.0)
    done, asked = [], []

    async def refresh(rollouts, store, name):
        done.append(name)

    async def sheet(look):
        asked.append((look.state, look.behind, look.after))
        if look.after == "cr2":
            return Sheet(lines=(Line(id="c", cursor="cr3"),), next=None)
        return Sheet(lines=(Line(id="a", cursor="cr1"), Line(id="b", cursor="cr2")), next="cr2")

    monkeypatch.setattr(lookout.summaries, "refresh", refresh)
    appliance.store.sheet = sheet
    await Lookout(appliance, closed=lambda graph: None).catch_up()
    assert done == ["a", "b", "c"]
    assert asked == [("closed", True, None), ("closed", True, "cr2")]


async def test_too_many_at_once_are_counted_and_not_kept(appliance, monkeypatch, caplog):
    monkeypatch.setattr(lookout, "MOST_WAITING", 2)
    watch = Lookout(appliance, closed=lambda graph: None)
    for n in range(5):
        watch.examine(str(n))
    assert watch.skipped == 3
    assert list(watch._waiting) == ["3", "4"]
    assert len(caplog.records) == 1
