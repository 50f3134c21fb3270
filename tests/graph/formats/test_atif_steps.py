"""Which step a tool's result belongs to."""

import pytest

from graph.formats.atif_steps import Steps
from graph.messages import from_chat
from graph.records import Call

CALL = Call(n=0, status="complete", arrived=1)


def asking(*ids: str | None, arguments: str = "{}"):
    return from_chat(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": name, "function": {"name": "ls", "arguments": arguments}} for name in ids],
        }
    )


def answer(name: str | None, text: str):
    return from_chat({"role": "tool", "tool_call_id": name, "content": text})


def observed(*messages) -> list:
    """What each step has seen: tool call to text."""
    steps = Steps()
    for message in messages:
        steps.said(message, CALL)
    return [
        [(result.get("source_call_id"), result["content"]) for result in step["observation"]["results"]]
        for step in steps.all
        if "observation" in step
    ]


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        ((asking("a", "b"), answer("b", "2"), answer("a", "1")), [[("b", "2"), ("a", "1")]]),
        # The latest of an id that an agent uses again.
        ((asking("a"), answer("a", "1"), asking("a"), answer("a", "2")), [[("a", "1")], [("a", "2")]]),
        # Two of one id in one reply, in their order.
        ((asking("a", "a"), answer("a", "1"), answer("a", "2")), [[("a", "1"), ("a-1", "2")]]),
        # Without ids, in their order.
        ((asking(None, None), answer(None, "1"), answer(None, "2")), [[("call-1-0", "1"), ("call-1-1", "2")]]),
        # Answered twice: the second belongs to it too.
        ((asking("a"), answer("a", "1"), answer("a", "again")), [[("a", "1"), ("a", "again")]]),
        # To nothing that was asked.
        ((answer("x", "1"),), [[(None, "1")]]),
        ((answer(None, "1"),), [[(None, "1")]]),
    ],
)
def test_a_result_stands_at_its_tool_call(messages, seen):
    assert observed(*messages) == seen


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        ('{"path": "."}', {"arguments": {"path": "."}}),
        ("", {"arguments": {}}),
        ("[1]", {"arguments": {}, "extra": {"treering": {"arguments": "[1]"}}}),
        ("{broken", {"arguments": {}, "extra": {"treering": {"arguments": "{broken"}}}),
    ],
)
def test_arguments_are_an_object(given, spelt):
    steps = Steps()
    steps.said(asking("a", arguments=given), CALL)
    assert steps.all[0]["tool_calls"] == [{"tool_call_id": "a", "function_name": "ls", **spelt}]


def test_media_are_named():
    steps = Steps()
    picture = {"type": "image_url", "image_url": {"url": "data:picture"}}
    message = from_chat({"role": "user", "content": [{"type": "text", "text": "See"}, picture]})
    steps.said(message, CALL)
    assert steps.all[0]["extra"]["treering"]["media"] == list(message.media)


def test_it_shows_what_it_holds():
    steps = Steps()
    steps.said(asking("a", "b"), CALL)
    assert repr(steps) == "<Steps: 1, 2 tool calls>"
