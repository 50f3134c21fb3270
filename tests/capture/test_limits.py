"""The limits of a rollout: the rule alone, then in every dialect and stream mode, and at once."""

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture import clock
from capture.limits import NAMES, Prompts, cut_after_s, elapsed_s, fault, judge
from capture.store.base import Spent
from graph.messages import from_chat
from tests import tongues
from tests.engine import STREAM, running, whole
from tests.house import ASK, House, house

SINCE, LATER = "2026-01-01T00:00:00.000Z", "2026-01-01T00:01:00.000Z"


@pytest.fixture
async def engine():
    async with running() as one:
        yield one


@pytest.fixture
async def home(engine, tmp_path: Path):
    async with house(engine, tmp_path) as one:
        yield one


# The rule


@pytest.mark.parametrize(
    ("limits", "spent", "prompt", "reached"),
    [
        ({}, {"sampled": 1000, "running": 1000, "new_tokens": 10**9}, 10**9, None),
        ({"max_calls": 3}, {"sampled": 2, "running": 1}, None, None),
        ({"max_calls": 3}, {"sampled": 2, "running": 2}, None, "max_calls"),
        ({"max_calls": 3}, {"sampled": 3, "running": 1}, None, "max_calls"),
        ({"max_total_tokens": 100}, {"new_tokens": 99, "running": 5}, None, None),
        ({"max_total_tokens": 100}, {"new_tokens": 100, "running": 1}, None, "max_total_tokens"),
        ({"max_prompt_tokens": 50}, {"running": 1}, None, None),
        ({"max_prompt_tokens": 50}, {"running": 1}, 49, None),
        ({"max_prompt_tokens": 50}, {"running": 1}, 50, "max_prompt_tokens"),
        ({"max_output_tokens": 1}, {"sampled": 9, "running": 1, "new_tokens": 9}, 9, None),
        ({"deadline_s": 60}, {"running": 1}, None, None),
        ({"deadline_s": 60.5}, {"running": 1, "first_call_at": SINCE}, None, None),
        ({"deadline_s": 60}, {"running": 1, "first_call_at": SINCE}, None, "deadline_s"),
    ],
)
def test_a_limit_is_reached_when_nothing_is_left(limits: Any, spent: Any, prompt: int | None, reached: Any) -> None:
    assert judge(limits, Spent(**spent), prompt=prompt, now=LATER) == reached


def test_a_clock_that_was_set_back_ends_nothing() -> None:
    assert elapsed_s(LATER, SINCE) == 0
    assert judge({"deadline_s": 1}, Spent(running=1, first_call_at=LATER), now=SINCE) is None


def test_a_running_reply_has_until_twice_the_deadline() -> None:
    assert cut_after_s({}, SINCE, LATER) is None
    assert cut_after_s({"deadline_s": 40}, None, LATER) is None
    assert cut_after_s({"deadline_s": 40}, SINCE, LATER) == 20
    assert cut_after_s({"deadline_s": 1}, SINCE, LATER) == 0


def test_what_is_no_limit_is_named() -> None:
    assert [fault(name, 2) for name in NAMES] == [None] * len(NAMES)
    assert fault("deadline_s", 0.5) is None
    for name, value in [("max_calls", 0), ("max_calls", 1.5), ("deadline_s", 0), ("max_calls", True), ("turns", 1)]:
        assert f"limits.{name}" in str(fault(name, value))


def chat(*texts: str) -> list[Any]:
    """A conversation, user first."""
    return [from_chat({"role": ("user", "assistant")[i % 2], "content": text}) for i, text in enumerate(texts)]


def test_a_conversation_is_found_by_the_last_reply_that_it_carries() -> None:
    prompts = Prompts()
    (reply,) = chat("", "first")[1:]
    prompts.note("chat", chat("task"), reply, 10)
    prompts.note("chat", chat("other"), chat("", "second")[1], 900)
    assert prompts.of("chat", chat("task")) is None
    assert prompts.of("chat", chat("task", "first", "go on")) == 10
    assert prompts.of("chat", chat("a changed system text", "first", "go on")) == 10
    assert prompts.of("chat", chat("task", "put in by the agent", "go on")) is None
    assert prompts.of("chat", chat("task", "first", "and", "second", "go on")) == 900


def test_a_prompt_of_text_goes_on_from_what_it_begins_with() -> None:
    prompts = Prompts()
    prompts.note("completions", chat("once"), None, 5)
    prompts.note("completions", chat("once upon"), None, 7)
    prompts.note("completions", chat("other"), None, 90)
    assert prompts.of("completions", chat("once upon a time")) == 7
    assert prompts.of("completions", chat("one")) is None
    assert prompts.of("completions", []) is None


# In every dialect


async def reach(engine, home: House, **limits: float) -> dict[str, Any]:
    """A rollout that has reached a limit by one call."""
    rollout = await home.rollout(limits=limits)
    await answered(engine, home, rollout)
    return rollout


async def answered(
    engine, home: House, rollout: dict[str, Any], *, prompt: list[int] | None = None, **more: Any
) -> Any:
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(tongues.told(home.chat(rollout, **more)))
        (await engine.next()).answer(whole([5, 6, 7], prompt=prompt))
    return reply.result()


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("name", tongues.NAMES)
async def test_three_last_replies_end_an_agents_loop_and_then_an_error(engine, home: House, name: str, stream: bool):
    rollout = await reach(engine, home, max_total_tokens=5)
    for _ in range(3):
        status, raw = await tongues.told(tongues.ask(home, rollout, name, stream=stream))
        said = tongues.read(name, raw, stream=stream)
        assert (status, said.end, said.tools) == (200, tongues.NORMAL_END[name], [])
        assert "max_total_tokens=5" in said.text
    status, raw = await tongues.told(tongues.ask(home, rollout, name, stream=stream))
    error = json.loads(raw)["error"]
    assert status == 400
    assert "rollout_limit" in json.dumps(error)
    assert engine.calls.empty()
    graph = await home.graph(rollout)
    assert [call["status"] for call in graph["calls"]] == ["complete", *["stopped"] * 4]
    assert graph["rollout"]["stopped"] == {"limit": "max_total_tokens", "at_call": 1, "stops": 4}


OVERFLOWS = [
    r"context", r"prompt is too long", r"too long", r"too many tokens", r"token limit", r"exceeds? the", r"maximum",
    r"reduce the length", r"request_too_large", r"exceeded",
]  # fmt: skip
"""What agents take for a context that is full, and answer by a compaction."""


@pytest.mark.parametrize("limit", ["max_calls", "max_total_tokens", "max_prompt_tokens", "deadline_s"])
async def test_no_text_of_a_stop_makes_an_agent_compact(engine, home: House, limit: str) -> None:
    rollout = await home.rollout(limits={limit: 1})
    live = await home.appliance.rollouts.admit(rollout["secret"])
    desk = home.appliance._calls
    dialect = home.appliance.dialects["chat"]
    for stop in range(4):
        draft = await desk.arrive(live, dialect, json.dumps(ASK).encode(), [])
        try:
            _, reply = await desk.stop(draft, dialect, limit)
            text = reply.decode()
        except Exception as error:  # noqa: BLE001  the fourth one's text is looked at like the others'
            assert stop == 3
            text = dialect.error(error).decode()
        assert not [each for each in OVERFLOWS if re.search(each, text, re.IGNORECASE)]


async def test_the_clamp_of_one_call_ends_nothing(engine, home: House) -> None:
    rollout = await home.rollout(limits={"max_output_tokens": 2})
    for _ in range(2):
        await answered(engine, home, rollout)
    assert [exchange.body["max_completion_tokens"] for exchange in engine.requests] == [2, 2]
    assert (await home.control("GET", f"/rollouts/{rollout['id']}"))["budget_left"] == {}


async def test_a_prompts_length_is_judged_by_its_conversations_last_call(engine, home: House) -> None:
    rollout = await home.rollout(limits={"max_prompt_tokens": 6})
    turns = list(ASK["messages"])
    await answered(engine, home, rollout, prompt=[1, 2, 3, 4])
    assert (await left(home, rollout))["max_prompt_tokens"] == 2
    turns += [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "more"}]
    # The last prompt had four: this one is served, whatever it turns out to have.
    assert (await answered(engine, home, rollout, messages=turns, prompt=[1, 2, 3, 4, 5, 6, 7, 8]))[0] == 200
    assert (await left(home, rollout))["max_prompt_tokens"] == 0
    # Another conversation has a budget of its own.
    assert (await answered(engine, home, rollout, messages=[{"role": "user", "content": "x"}]))[0] == 200
    turns += [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "and more"}]
    status, raw = await tongues.told(home.chat(rollout, messages=turns))
    assert status == 200
    assert "max_prompt_tokens=6" in json.loads(raw)["choices"][0]["message"]["content"]


async def left(home: House, rollout: dict[str, Any]) -> dict[str, float]:
    return (await home.control("GET", f"/rollouts/{rollout['id']}"))["budget_left"]


async def test_tokens_that_calls_share_count_once(engine, home: House) -> None:
    rollout = await home.rollout(limits={"max_total_tokens": 14})
    await answered(engine, home, rollout, prompt=[1, 2, 3, 4])
    assert (await left(home, rollout))["max_total_tokens"] == 14 - 4 - 3
    await answered(engine, home, rollout, prompt=[1, 2, 3, 4, 5, 6, 7, 8])
    # One new token in the prompt, and three sampled.
    assert (await left(home, rollout))["max_total_tokens"] == 14 - 7 - 4
    live = home.appliance.rollouts._live[rollout["id"]]
    assert live.spent().new_tokens == 11
    await answered(engine, home, rollout, prompt=[1, 2, 3, 4])
    assert (await left(home, rollout))["max_total_tokens"] == 0
    _, raw = await tongues.told(home.chat(rollout))
    assert "max_total_tokens=14" in json.loads(raw)["choices"][0]["message"]["content"]


async def test_what_is_spent_outlives_a_restart(engine, tmp_path: Path) -> None:
    async with house(engine, tmp_path) as home:
        rollout = await home.rollout(limits={"max_total_tokens": 14, "max_prompt_tokens": 8, "deadline_s": 3600})
        await answered(engine, home, rollout, prompt=[1, 2, 3, 4])
        before = home.appliance.rollouts._live[rollout["id"]]
    async with house(engine, tmp_path) as home:
        live = await home.appliance.rollouts.admit(rollout["secret"])
        assert live.spent() == before.spent()
        turns = [*ASK["messages"], {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "more"}]
        assert live.prompts.of("chat", [from_chat(turn) for turn in turns]) == 4


# At once


async def test_calls_that_run_at_once_never_pass_a_limit_together(tmp_path: Path) -> None:
    """Thirty-two at once, ten places: ten reach the engine, the others get their last reply or the error."""
    async with running() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout(limits={"max_calls": 10})
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            agents = House(home.appliance, session)
            async with asyncio.TaskGroup() as all_:
                streams = [i % 2 == 0 for i in range(32)]
                replies = [all_.create_task(tongues.told(agents.chat(rollout, stream=stream))) for stream in streams]
                served = [await engine.next() for _ in range(10)]
                for exchange in served:
                    if exchange.body.get("stream"):
                        exchange.send(*STREAM).end()
                    else:
                        exchange.answer(whole([5, 6, 7]))
        assert engine.calls.empty()
        statuses = [reply.result()[0] for reply in replies]
        assert (statuses.count(200), statuses.count(400)) == (10 + 3, 32 - 10 - 3)
        graph = await home.graph(rollout)
        found = [call["status"] for call in graph["calls"]]
        assert (found.count("complete"), found.count("stopped")) == (10, 22)
        assert graph["rollout"]["budget_left"] == {"max_calls": 0}
        assert graph["rollout"]["stopped"]["stops"] == 22


# A deadline


async def set_back(home: House, rollout: dict[str, Any], seconds: float) -> None:
    """Let a rollout's first call have been so long ago."""
    live = home.appliance.rollouts._live[rollout["id"]]
    live.first_call_at = clock.text(clock.parse(clock.now()) - timedelta(seconds=seconds))


async def test_past_the_deadline_no_call_begins_and_a_running_one_ends_in_its_own_time(engine, home: House) -> None:
    rollout = await home.rollout(limits={"deadline_s": 600})
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(tongues.told(home.chat(rollout)))
        asked = await engine.next()
        await set_back(home, rollout, 700)
        _, raw = await tongues.told(home.chat(rollout))
        assert "deadline_s=600" in json.loads(raw)["choices"][0]["message"]["content"]
        asked.answer(whole([5, 6, 7]))
    assert reply.result()[0] == 200
    assert [call["status"] for call in (await home.graph(rollout))["calls"]] == ["complete", "stopped"]


async def test_at_twice_the_deadline_a_stream_is_broken_off_and_what_came_is_kept(engine, home: House) -> None:
    rollout = await home.rollout(limits={"deadline_s": 0.2})
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(tongues.cut(home.chat(rollout, stream=True)))
        asked = await engine.next()
        asked.send(*STREAM[:3])
        async with asyncio.timeout(10):
            await asked.dropped.wait()
    assert reply.result() != b""
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["delivered"], call["sampled_ids"]) == ("stopped", False, [5, 6])
    assert call["error"]["blame"] == "treering"
    shown = (await home.graph(rollout))["rollout"]
    assert (shown["stopped"]["limit"], shown["budget_left"]) == ("deadline_s", {"deadline_s": 0})


async def test_at_twice_the_deadline_who_has_nothing_yet_gets_the_last_reply(engine, home: House) -> None:
    rollout = await home.rollout(limits={"deadline_s": 0.2})
    async with asyncio.TaskGroup() as both:
        reply = both.create_task(tongues.told(home.chat(rollout)))
        asked = await engine.next()
        async with asyncio.timeout(10):
            await asked.dropped.wait()
    status, raw = reply.result()
    assert (status, "deadline_s" in json.loads(raw)["choices"][0]["message"]["content"]) == (200, True)
    await home.idle(rollout)
    call = await home.call(rollout, 0)
    assert (call["status"], call["id"]) == ("stopped", json.loads(raw)["id"])
