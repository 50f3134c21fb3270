"""A pinner for each engine: looked at once, and again when the engine may be another, or did otherwise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from capture.pinning.pinners import Pinners
from tests.capture.pinning.test_pinner import Engine as Vllm


class Answer:
    def __init__(self, status, body):
        self.status, self._body = status, body
        self.headers = {}

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None


class Engine:
    """An upstream in name only, before a vLLM in name only."""

    def __init__(self, *habits, kind="vllm", name="e"):
        self.vllm = Vllm(*habits)
        self.kind, self.name, self.models = kind, f"{kind}={name}", ("m",)
        self.returns, self.identity = 0, "1"
        self.sent = 0

    async def send(self, method, path, *, body=None, headers=()):
        self.sent += 1
        return Answer(*await self.vllm.ask(path, body))


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    async def read(answer):
        return answer._body

    monkeypatch.setattr("capture.pinning.pinners.whole", read)


async def test_an_engine_is_looked_at_once():
    pinners, engine = Pinners(), Engine()
    first = await pinners.of(engine)
    asked = engine.sent
    assert (first.off, asked > 0) == (None, True)
    assert await pinners.of(engine) is first
    assert engine.sent == asked


@pytest.mark.parametrize("change", [{"returns": 1}, {"identity": "2"}])
async def test_one_that_may_be_another_is_looked_at_again(change):
    pinners, engine = Pinners(), Engine()
    await pinners.of(engine)
    engine.vllm.habits = ("ignores",)
    assert (await pinners.of(engine)).off is None
    for name, value in change.items():
        setattr(engine, name, value)
    assert (await pinners.of(engine)).off == "engine-ignores-ids"


async def test_one_that_did_otherwise_is_looked_at_again():
    pinners, engine = Pinners(), Engine("ignores")
    assert (await pinners.of(engine)).off == "engine-ignores-ids"
    engine.vllm.habits = ()
    pinners.doubt(engine)
    assert (await pinners.of(engine)).off is None
    pinners.doubt(SimpleNamespace(name="never seen"))


async def test_engines_are_told_apart():
    pinners, good, bad = Pinners(), Engine(name="a"), Engine("mute", name="b")
    assert (await pinners.of(good)).off is None
    assert (await pinners.of(bad)).off == "no-render"


async def test_a_kind_without_renderings_is_said_to_have_none():
    engine = Engine(kind="openai")
    pinner = await Pinners().of(engine)
    assert (pinner.off, engine.sent) == ("no-render", 0)
    assert "openai has no route that renders messages" in pinner.reason
