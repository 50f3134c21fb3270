"""Real opencode against the appliance on the scripted engine: one whole session, and one that is broken off.

The whole session runs once (`tests.real.session_opencode` plays it), and the tests look at it from outside: the
control plane's answers, and the messages that opencode keeps.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from capture.scripted import ScriptedEngine, load_rules
from tests.house import house
from tests.real import agent_opencode
from tests.real.session_opencode import (
    LIMITS,
    PROMPT_LIMIT_S,
    RULES,
    Seen,
    interval,
    play,
    reply_of,
    task_call,
    tools_of,
)

# From an abort until the engine's request is gone; it takes milliseconds where the machine has any to spare.
DROP_LIMIT_S = 5.0
# In tokens, as the script has it.
SAID_BEFORE_ABORT = 24

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One session, from the registration of its rollout to its sequences."""
    if reason := agent_opencode.missing():
        pytest.skip(reason)
    return asyncio.run(play(tmp_path_factory.mktemp("session")))


# -- the session -------------------------------------------------------------------------------------------------------


def test_the_session_had_all_that_it_was_to_have(seen):
    assert [tools_of(seen.calls[n]) for n in seen.made_for("main")] == [
        ["bash"],
        ["task", "task"],
        ["bash"],
        ["bash"],
        # Behind the compaction.
        ["bash"],
        [],
        # The second prompt.
        [],
    ]
    assert [[tools_of(seen.calls[n]) for n in seen.made_for(child)] for child in seen.subagents] == [[["bash"], []]] * 2
    assert len(seen.made_for("title")) == len(seen.made_for("summary")) == 1
    assert all(call["status"] == "complete" and call["delivered"] and call["streamed"] for call in seen.calls.values())


def test_title_ran_beside_main(seen):
    (title,) = seen.made_for("title")
    (title_start, title_end), (main_start, main_end) = (
        interval(seen.calls[n]) for n in (title, seen.made_for("main")[0])
    )
    assert title_start < main_end
    assert main_start < title_end


def test_subagents_ran_at_the_same_time(seen):
    """Each met the other at the pipe, which opens for none that comes alone."""
    first, second = (seen.made_for(child) for child in seen.subagents)
    results = {seen.calls[calls[1]]["request"]["messages"][-1]["content"] for calls in (first, second)}
    assert results == {"told the apple\n", "heard the apple\n"}
    assert max(first[0], second[0]) < min(first[1], second[1])


# -- the forest --------------------------------------------------------------------------------------------------------


def test_each_conversation_is_named_for_what_it_was(seen):
    first, second = seen.subagents
    roles = {
        name: (found["role"], found["kind"], found["parent_call"], found["calls"])
        for name in ("main", "title", "summary", first, second)
        for found in [seen.conversation(name)]
    }
    starter = task_call(seen)
    assert roles == {
        "main": ("main", None, None, seen.made_for("main")),
        "title": ("auxiliary", "title", None, seen.made_for("title")),
        "summary": ("auxiliary", "summary", None, seen.made_for("summary")),
        first: ("subagent", None, starter, seen.made_for(first)),
        second: ("subagent", None, starter, seen.made_for(second)),
    }
    assert len(seen.graph["conversations"]) == len(roles)
    assert seen.graph["forks"] == []


def test_data_flow_shows_a_subagent_on_both_its_ends(seen):
    for name in seen.subagents:
        rules = {evidence["rule"] for evidence in seen.conversation(name)["evidence"]}
        assert {"prompt_in_arguments", "reply_in_result"} <= rules


def test_compaction_goes_on_from_the_summary(seen):
    (summary,) = seen.made_for("summary")
    before = [n for n in seen.made_for("main") if n < summary]
    (compaction,) = [call for call in seen.calls.values() if call["link"] == "compaction"]
    assert compaction["n"] == next(n for n in seen.made_for("main") if n > summary)
    assert (compaction["parent"], compaction["carries"]) == (before[-1], [summary])
    assert seen.calls[summary]["link"] == "root"


def test_every_conversation_is_one_chain(seen):
    for name in ("main", *seen.subagents):
        calls = seen.made_for(name)
        assert seen.calls[calls[0]]["link"] == "root"
        assert [seen.calls[n]["parent"] for n in calls[1:]] == calls[:-1]


def test_drift_is_where_the_ids_part(seen):
    """The record's numbers are those of its own ids, compared here the slow way."""
    for call in seen.calls.values():
        if call["parent"] is None:
            continue
        parent = seen.calls[call["parent"]]
        had, prompt = parent["prompt_ids"] + parent["sampled_ids"], call["prompt_ids"]
        shared = common(had, prompt)
        assert call["n_shared"] == shared
        if call["link"] == "drift":
            where = "prompt" if shared < parent["n_prompt"] else "sampled"
            assert (call["drift"]["at"], call["drift"]["tokens"]) == (shared, len(had) - shared)
            assert call["drift"]["where"] == where


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_drift_has_the_cause_that_the_messages_show(seen):
    """No turn is exact. opencode keeps the blank line before a tool call as content, for which the template puts in
    another newline; its own spelling of the arguments does not show. A new prompt makes the template drop thinking."""
    causes = []
    for call in seen.calls.values():
        if call["link"] in ("root", "compaction"):
            continue
        assert call["link"] == "drift"
        asked_by_user = call["request"]["messages"][-1]["role"] == "user"
        expected = "reasoning_stripped" if asked_by_user else "turn_boundary"
        assert call["drift"]["cause"] == expected, call["n"]
        causes.append(expected)
    assert set(causes) == {"turn_boundary", "reasoning_stripped"}


def test_nothing_is_wrong_with_it(seen):
    assert {finding["code"]: finding["level"] for finding in seen.graph["findings"]} == {
        "drift": "info",
        "compaction": "info",
        "auxiliary_calls": "info",
        "subagents": "info",
        "sampling_unpinned": "info",
    }


# -- the sequences -----------------------------------------------------------------------------------------------------


def test_every_sampled_token_of_main_is_trained_once_and_nothing_else_is(seen):
    trained: list[int] = []
    for row in seen.sequences["sequences"]:
        assert row["role"] == "main"
        masked = 0
        for span in row["spans"]:
            mask = row["loss_mask"][span["start"] : span["end"]]
            assert len(set(mask)) == 1
            if not mask[0]:
                continue
            call = seen.calls[span["call"]]
            assert span["kind"] == "sampled"
            assert row["input_ids"][: span["start"]] == call["prompt_ids"]
            assert row["input_ids"][span["start"] : span["end"]] == call["sampled_ids"]
            assert row["logprobs"][span["start"] : span["end"]] == call["logprobs"]
            trained.append(span["call"])
            masked += len(mask)
        assert sum(row["loss_mask"]) == row["n_trained_tokens"] == masked
    assert sorted(trained) == seen.made_for("main")
    left_out = {left["call"]: left["reason"] for left in seen.sequences["left_out"]}
    assert left_out == dict.fromkeys(sorted(seen.calls.keys() - set(trained)), "role")
    assert seen.sequences["n_trained_tokens"] == sum(seen.calls[n]["n_sampled"] for n in trained)


# -- what the agent has ------------------------------------------------------------------------------------------------


def test_the_agent_keeps_what_the_engine_said(seen):
    """Reply by reply: reasoning, text, tool calls with their ids, and the usage."""
    for name, messages in seen.messages.items():
        kept = [message for message in messages if message["info"]["role"] == "assistant"]
        calls = [n for n, call in seen.calls.items() if call["hints"]["x-session-id"] == name]
        if name == seen.main_session:
            calls.remove(seen.made_for("title")[0])
        assert [of_agent(message) for message in kept] == [of_engine(seen.calls[n]) for n in calls]


def test_the_session_has_the_title_that_the_engine_gave(seen):
    (title,) = seen.made_for("title")
    assert seen.title == reply_of(seen.calls[title])["content"].strip()


def of_agent(message: dict[str, Any]) -> dict[str, Any]:
    """What an assistant message of opencode's store says."""
    parts, tokens = message["parts"], message["info"]["tokens"]
    return {
        "reasoning": "".join(part["text"] for part in parts if part["type"] == "reasoning"),
        "text": "".join(part["text"] for part in parts if part["type"] == "text"),
        "tools": [(part["callID"], part["tool"], part["state"]["input"]) for part in parts if part["type"] == "tool"],
        "n_prompt": tokens["input"] + tokens["cache"]["read"],
        "n_sampled": tokens["output"] + tokens["reasoning"],
    }


def of_engine(call: dict[str, Any]) -> dict[str, Any]:
    """The same of a recorded call."""
    reply = reply_of(call)
    tools = [(tool["id"], tool["function"]) for tool in reply.get("tool_calls") or ()]
    return {
        "reasoning": reply["reasoning"],
        "text": reply["content"],
        "tools": [(name, function["name"], json.loads(function["arguments"])) for name, function in tools],
        "n_prompt": len(call["prompt_ids"]),
        "n_sampled": len(call["sampled_ids"]),
    }


# -- a session that is broken off --------------------------------------------------------------------------------------


@pytest.fixture
async def engine() -> AsyncIterator[tuple[ScriptedEngine, str]]:
    """A scripted engine of the test's own, and its address: it counts the requests that are left."""
    scripted = ScriptedEngine(load_rules(RULES))
    url = await scripted.start()
    try:
        yield scripted, url
    finally:
        await scripted.close()


async def test_an_abort_drops_the_engines_request(opencode, engine, tmp_path):
    scripted, url = engine
    async with house(f"vllm={url}", tmp_path) as home:
        rollout = await home.rollout()
        agent = await opencode(base_url=rollout["base_url"], api_key=rollout["secret"], **LIMITS)
        name = await agent.session()
        async with asyncio.TaskGroup() as tasks, events_of(agent) as events:
            message = tasks.create_task(agent.message(name, "Wait for me.", limit_s=PROMPT_LIMIT_S))
            await until_said(events, "I count to")
            assert scripted.left == 0
            await agent.abort(name)
            async with asyncio.timeout(DROP_LIMIT_S):
                await scripted.idle()
        assert scripted.left == 1
        assert message.result()["info"]["error"]["name"] == "MessageAbortedError"
        await home.idle(rollout)

        graph = await home.graph(rollout)
        (call,) = [call for call in graph["calls"] if call["status"] != "complete"]
        whole = await home.call(rollout, call["n"])
        assert (call["status"], call["delivered"]) == ("aborted", False)
        assert call["n_sampled"] == len(whole["sampled_ids"]) == len(whole["logprobs"]) == SAID_BEFORE_ABORT
        # All that the agent has of it, and no end.
        assert whole["text"].startswith(of_agent(message.result())["text"])
        assert call["finish_reason"] is None

        # It stays where it was made, the loop goes on behind it, and it is not trained.
        await agent.message(name, "And the pear?", limit_s=PROMPT_LIMIT_S)
        closed = await home.control(
            "POST", f"/rollouts/{rollout['id']}/close", json={"sequences": {"format": "native"}}
        )
        graph = await home.graph(rollout)
        (main,) = [found for found in graph["conversations"] if found["role"] == "main"]
        assert main["calls"] == [1, 2, 3]
        assert call["n"] == 2
        left_out = {left["call"]: left["reason"] for left in closed["sequences"]["left_out"]}
        assert left_out == {0: "role", 2: "aborted"}
        codes = {finding["code"]: finding["calls"] for finding in graph["findings"] if finding["level"] != "info"}
        assert codes == {"aborted_calls": [2]}
        # opencode sends along what it has of the broken reply: it is no continuation, and not discarded either.
        then = await home.call(rollout, 3)
        assert then["request"]["messages"][-2]["content"] == of_agent(message.result())["text"]
        assert not graph["calls"][2]["discarded"]


def events_of(agent: agent_opencode.OpenCode) -> Any:
    """Open opencode's own event stream."""
    return agent.http.get(f"{agent.url}/event", timeout=agent_opencode.limit(2 * PROMPT_LIMIT_S))


async def until_said(events: aiohttp.ClientResponse, text: str) -> None:
    """Wait until opencode's own event stream has told of a text, which comes a few characters an event."""
    said = ""
    async with asyncio.timeout(PROMPT_LIMIT_S):
        async for line in events.content:
            event = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else {}
            if event.get("type") == "message.part.delta":
                said += event["properties"]["delta"]
                if text in said:
                    return
    raise AssertionError(f"the agent's events ended before {text!r}; they said {said!r}")
