"""Whether the agent or the template spelled a tool call's arguments another way."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from graph.causes import CAUSES
from graph.makers import maker, worded
from tests.graph.tape import Tape, assistant, codes, result, system, user

TASK = [system("You work."), user("Write it down.")]


def respelled(message, **manner):
    """Return a message whose tool calls' arguments are written anew from their parsed form."""

    def anew(function):
        return {**function, "arguments": json.dumps(json.loads(function["arguments"]), **manner)}

    calls = [{**call, "function": anew(call["function"])} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


ASKS = assistant("", ("write", {"path": "a.md", "content": "ééé"}))


def by_agent() -> Tape:
    """An agent that sorts keys before it sends arguments back."""
    tape = Tape()
    tape.say(TASK, ASKS, tools=("write",))
    tape.say([*TASK, respelled(ASKS, sort_keys=True), result("done", ASKS)], assistant("Done."), tools=("write",))
    return tape


def by_template() -> Tape:
    """An agent that sends back what it got, escapes and all; the template renders what they stand for."""
    tape, rendered = Tape(), Tape()
    rendered.say([*TASK, respelled(ASKS, ensure_ascii=False), result("done", ASKS)], None, tools=("write",))
    prompt = rendered.calls[0].prompt_ids
    tape.say(TASK, ASKS, tools=("write",))
    tape.say(
        [*TASK, ASKS, result("done", ASKS)], assistant("Done."), tools=("write",), prompt_ids=prompt,
        usage_prompt=len(prompt),
    )  # fmt: skip
    return tape


def without_the_blank_line() -> Tape:
    """The same of a reply with a blank line before its call, which the agent drops: another message, the same call."""
    blank = {**ASKS, "content": "\n\n"}
    tape = Tape()
    tape.say(TASK, blank, tools=("write",))
    tape.say([*TASK, respelled(ASKS, sort_keys=True), result("done", ASKS)], assistant("Done."), tools=("write",))
    return tape


def spelled_in_two_ways() -> Tape:
    """A model that spells one call in two ways, both sent back as they were; the template spells the last anew."""
    again = respelled(ASKS, ensure_ascii=False, indent=1)
    history = [*TASK, ASKS, result("done", ASKS), again, result("done", again)]
    tape, rendered = Tape(), Tape()
    rendered.say([*history[:4], respelled(again, ensure_ascii=False), history[5]], None, tools=("write",))
    prompt = rendered.calls[0].prompt_ids
    tape.say(history[:4], again, tools=("write",))
    tape.say(history, assistant("Done."), tools=("write",), prompt_ids=prompt, usage_prompt=len(prompt))
    return tape


@pytest.mark.parametrize(("tape", "who"), [(by_agent, "agent"), (by_template, "template")])
def test_the_messages_say_who_it_was(tape, who):
    graph = tape().graph()
    assert graph.forest.links[1].drift.cause == "arguments_reserialised"
    assert maker(graph.forest, 1) == who
    assert maker(graph.forest, 0) is None
    assert codes(graph)["drift"] == (1,)
    (message,) = [each.message for each in graph.findings if each.code == "drift"]
    assert f"spelled another way, by the {who} (arguments_reserialised)" in message


@pytest.mark.parametrize(("tape", "who"), [(without_the_blank_line, "agent"), (spelled_in_two_ways, "template")])
def test_calls_are_told_apart_by_what_they_call_with_what(tape, who):
    forest = tape().graph().forest
    link = forest.links[1]
    # The engine of these tests takes so short a break for a turn's border.
    drift = msgspec.structs.replace(link.drift, cause="arguments_reserialised")
    links = {**forest.links, 1: msgspec.structs.replace(link, drift=drift)}
    assert maker(SimpleNamespace(calls=forest.calls, links=links), 1) == who


def test_where_it_is_not_known_either_may_have_been():
    says = CAUSES["arguments_reserialised"]
    assert "by the agent or by the template" in says
    assert worded("arguments_reserialised", [None, "agent"]) == says
    assert worded("arguments_reserialised", []) == says


def test_both_are_named_where_both_did():
    said = worded("arguments_reserialised", ["template", "agent", "agent"])
    assert said == "a tool call's arguments are spelled another way, by the agent and by the template"


def test_other_causes_are_as_they_are():
    assert worded("end_token", [None]) == CAUSES["end_token"]
    assert worded("of_a_newer_version", [None]) == "of_a_newer_version"
