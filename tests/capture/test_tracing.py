"""Spans: one a call, in the agent's trace, with the engine's request inside; nothing without the flag."""

import sys
from importlib import import_module

import pytest

from capture.errors import UsageError
from capture.tracing import Tracing
from tests.house import house
from tests.wire import wired

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans():
    """A provider that keeps spans in memory, and what it has kept."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
    exporter = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(import_module("opentelemetry.sdk.trace.export").SimpleSpanProcessor(exporter))
    yield provider, exporter.get_finished_spans
    provider.shutdown()


async def called(home, rollout, **headers):
    url = rollout["base_url"] + "/chat/completions"
    ask = {"model": "m", "messages": [{"role": "user", "content": "Hello, secretly"}]}
    headers = {"Authorization": f"Bearer {rollout['secret']}", **headers}
    async with home.session.post(url, json=ask, headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_an_agents_trace_reaches_the_engine_as_it_came_and_is_recorded(tmp_path):
    async with wired() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        await called(home, rollout, traceparent=TRACEPARENT, tracestate="a=b")
        await home.idle(rollout)
        assert ("traceparent", TRACEPARENT) in engine.seen[-1].headers
        assert ("tracestate", "a=b") in engine.seen[-1].headers
        (call,) = (await home.graph(rollout))["calls"]
        assert call["hints"] == {"traceparent": TRACEPARENT}


async def test_a_call_is_a_span_between_the_agents_and_the_engines(tmp_path, spans):
    provider, finished = spans
    async with wired() as engine, house(engine, tmp_path) as home:
        home.appliance._calls._tracing = Tracing(provider)
        rollout = await home.rollout()
        assert await called(home, rollout, traceparent=TRACEPARENT) == 200
        await home.idle(rollout)
        (span,) = finished()
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
        sent = dict(engine.seen[-1].headers)["traceparent"]
        assert sent == f"00-{TRACE}-{span.context.span_id:016x}-01"
        (call,) = (await home.graph(rollout))["calls"]
        # What the agent said is what is recorded.
        assert call["hints"] == {"traceparent": TRACEPARENT}
        told = dict(span.attributes)
        assert told["treering.rollout"] == rollout["id"]
        assert (told["treering.call"], told["treering.status"]) == (0, "complete")
        assert told["gen_ai.usage.input_tokens"] == call["n_prompt"]
        assert told["gen_ai.usage.output_tokens"] == call["n_sampled"]
        assert span.end_time > span.start_time
        assert "secretly" not in span.to_json()
        assert rollout["secret"] not in span.to_json()


async def test_a_call_that_fails_is_a_span_that_failed(tmp_path, spans):
    provider, finished = spans
    async with wired() as engine, house(engine, tmp_path) as home:
        home.appliance._calls._tracing = Tracing(provider)
        rollout = await home.rollout()
        await engine.close()
        assert await called(home, rollout) == 502
        await home.idle(rollout)
        (span,) = finished()
        assert not span.status.is_ok
        assert span.parent is None


async def test_without_the_extra_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match="isn't installed") as caught:
        Tracing()
    assert "treering[otel]" in caught.value.hint
