"""Scripts of an agent's side: what is sent next, from what came back."""

from __future__ import annotations

import itertools
import json

import pytest

from capture.trial.scenarios import BRIEF, SCENARIOS, echo


def asks(name, *, reply=None):
    """Play a scenario with what a stand-in says, or with the same reply each time."""
    script = SCENARIOS[name].script()
    found = [next(script)]
    while True:
        try:
            found.append(script.send(reply or found[-1].says))
        except StopIteration:
            return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_is_a_conversation_of_several_turns(name):
    found = asks(name)
    assert len(found) >= 4
    assert all(asked.messages[-1]["role"] in ("user", "tool") for asked in found)
    assert all(asked.says["role"] == "assistant" for asked in found)


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.kept])
def test_a_kept_history_begins_with_all_that_was_sent_before(name):
    found = asks(name)
    for before, after in itertools.pairwise(found):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.messages[len(before.messages)]["role"] == "assistant"
        assert (after.tools, after.arguments) == (before.tools, before.arguments)


@pytest.mark.parametrize("name", ["volatile system", "history pruned", "compaction"])
def test_another_history_is_changed_somewhere(name):
    found = asks(name)
    pairs = itertools.pairwise(found)
    assert any(after.messages[: len(before.messages)] != before.messages for before, after in pairs)


def test_thinking_is_sent_back_or_not():
    kept, stripped = asks("thinking kept")[1], asks("thinking stripped")[1]
    assert kept.messages[1]["reasoning_content"] == "They greet me."
    assert "reasoning_content" not in stripped.messages[1]


def test_arguments_of_the_tool_loop_are_compact():
    second = asks("tool loop")[1]
    assert second.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"city":"Paris","unit":"C"}'
    spaced = {"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": '{"a": 1}'}}]}
    assert echo(spaced, compact=True)["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert echo(spaced)["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    broken = {"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": '{"a": '}}]}
    assert echo(broken, compact=True)["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_each_call_of_parallel_tools_is_answered():
    second = asks("parallel tools")[1]
    ids = [call["id"] for call in second.messages[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in second.messages[2:]] == ids
    assert len(set(ids)) == 2


def test_a_model_that_calls_no_tool_is_gone_on_with_all_the_same():
    found = asks("tool loop", reply={"role": "assistant", "content": "I have no tools."})
    assert [message["role"] for message in found[1].messages] == ["user", "assistant", "user"]


def test_a_summary_of_nothing_is_a_summary():
    last = asks("compaction", reply={"role": "assistant", "content": None})[-1]
    assert "nothing was said" in json.dumps(last.messages)


def test_the_brief_ones_are_for_any_engine():
    assert set(BRIEF) <= set(SCENARIOS)
    assert all(SCENARIOS[name].kept for name in BRIEF)
