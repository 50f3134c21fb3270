"""Pinned prompts end to end: a whole appliance on the scripted engine, which renders and takes ids as vLLM does."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.house import house

USER = {"role": "user", "content": "Hello"}


@pytest.fixture
async def home(tmp_path):
    async with house("scripted", tmp_path) as one:
        yield one


async def say(home, rollout, *messages, stream=False, **more):
    """Send a chat request; return the assistant's message as an agent would keep it."""
    async with home.chat(rollout, messages=list(messages), stream=stream, **more) as answer:
        assert answer.status == 200, await answer.text()
        text = await answer.text()
    await home.idle(rollout)
    if not stream:
        return json.loads(text)["choices"][0]["message"]
    calls = (await home.graph(rollout))["calls"]
    return (await home.call(rollout, calls[-1]["n"]))["reply"]["choices"][0]["message"]


async def fallbacks(home, rollout):
    found = (await home.graph(rollout))["findings"]
    return {each["data"]["reason"]: each["calls"] for each in found if each["code"] == "pin_fallback"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pinned_prompt_begins_with_all_that_was_sampled(home, stream):
    rollout = await home.rollout(tokens="pinned")
    said = [USER]
    for more in ("And?", "Then?", "So?"):
        reply = await say(home, rollout, *said, stream=stream)
        # What an agent does to a reply: reasoning goes, white space goes.
        said += [{"role": "assistant", "content": (reply["content"] or "").strip()}, {"role": "user", "content": more}]
    await say(home, rollout, *said, stream=stream)
    calls = [await home.call(rollout, n) for n in range(4)]
    for before, after in itertools.pairwise(calls):
        whole = before["prompt_ids"] + before["sampled_ids"]
        assert after["prompt_ids"][: len(whole)] == whole
        assert after["link"] == "exact"
        assert after["pinned"]["kept"] >= 0
    assert calls[0]["pinned"] is None
    assert await fallbacks(home, rollout) == {}
    graph = await home.graph(rollout)
    assert graph["drift"]["exact"] == graph["drift"]["transitions"] == 3
    assert graph["drift"]["samples_per_rollout"] == 1


async def test_without_pinning_nothing_is_asked_or_said(home):
    rollout = await home.rollout()
    reply = await say(home, rollout, USER)
    await say(home, rollout, USER, {"role": "assistant", "content": reply["content"]}, USER)
    assert [call["pinned"] for call in (await home.graph(rollout))["calls"]] == [None, None]
    assert await fallbacks(home, rollout) == {}


async def test_an_edited_history_goes_the_plain_way_and_says_so(home):
    rollout = await home.rollout(tokens="pinned")
    await say(home, rollout, USER)
    await say(home, rollout, USER, {"role": "assistant", "content": "I never said this"}, USER)
    assert await fallbacks(home, rollout) == {"no-parent": [1]}


async def test_a_restart_forgets_nothing(tmp_path):
    async with house("scripted", tmp_path) as home:
        rollout = await home.rollout(tokens="pinned")
        reply = await say(home, rollout, USER)
    async with house("scripted", tmp_path) as home:
        rollout["base_url"] = home.appliance.data_url + "/v1"
        await say(home, rollout, USER, {"role": "assistant", "content": reply["content"]}, USER)
        first, second = [await home.call(rollout, n) for n in (0, 1)]
        if second["pinned"] is None:
            # The scripted engine has another address now, and so is another engine.
            assert await fallbacks(home, rollout) == {"other-engine": [1]}
        else:
            whole = first["prompt_ids"] + first["sampled_ids"]
            assert second["prompt_ids"][: len(whole)] == whole


async def test_the_server_may_pin_for_all(tmp_path):
    async with house("scripted", tmp_path, tokens="pinned") as home:
        rollout = await home.rollout()
        reply = await say(home, rollout, USER)
        await say(home, rollout, USER, {"role": "assistant", "content": reply["content"]}, USER)
        assert (await home.call(rollout, 1))["pinned"] is not None
