"""Saved rollouts, in our own form and in verifiers' traces."""

import json

import msgspec
import pytest

from graph import saved
from graph.saved import Request, line, read
from graph.surgery import to_chat
from tests.graph.tape import Tape, assistant, result, system, user

ASKS = assistant("", ("bash", {"command": "ls"}))
BEHIND = [system("You work."), user("Fix it."), ASKS, result("a.py", ASKS)]


def tape(**rollout) -> Tape:
    made = Tape(**{"group": "g", "labels": {"split": "train"}, "reward": 0.5} | rollout)
    made.say(BEHIND[:2], ASKS, tools=("bash",))
    made.say(BEHIND, assistant("Done."), tools=("bash",))
    return made


def as_sent(made: Tape):
    """What each call asked, as it was sent."""
    graph = made.graph()
    requests = {
        n: Request(messages=[to_chat(message) | {"own": n} for message in call.messages], tools=[{"name": "bash"}])
        for n, call in graph.forest.calls.items()
    }
    return line(graph, requests.get)


def test_a_line_is_read_as_it_was_written():
    one = as_sent(tape())
    assert read(msgspec.json.encode(one)) == one
    assert (one.rollout, one.group, one.labels, one.reward, one.replay_of) == ("r", "g", {"split": "train"}, 0.5, None)
    assert one.tools == ([{"name": "bash"}],)


def test_a_line_has_each_message_once():
    made = tape()
    one = line(made.graph(), lambda n: None)
    assert [message["role"] for message in one.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert one.points[0].messages == (0, 1, 2, 3)
    assert one.whole.messages == (0, 1, 2, 3, 4)


def test_a_seed_has_the_messages_as_they_were_sent():
    one = as_sent(tape())
    seed = one.seed(one.place(0), instruction="Again.")
    assert [message.get("own") for message in seed.messages] == [1, 1, 1, 1, None]
    assert seed.tools == [{"name": "bash"}]
    assert (seed.rollout, seed.k, seed.kinds, seed.awaits) == ("r", 0, ("tool_result",), "reply")
    assert one.seed(one.place("whole")).messages[-1]["content"] == "Done."
    assert one.place(7) is None


def test_lineage_is_in_the_line():
    assert as_sent(tape(labels={"replay_of": "r0"})).replay_of == "r0"


OURS = {"format": "treering.rollout", "version": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "truncated"),
        ("[]", "object"),
        ("{}", "neither"),
        ('{"format": "treering.rollout", "version": 2, "rollout": "r"}', "version 2"),
        ('{"format": "treering.rollout", "version": 1}', "rollout"),
        (
            json.dumps(OURS | {"rollout": "r", "points": [{"kinds": ["fork"], "messages": [0]}]}),
            "not there",
        ),
        ('{"nodes": []}', "without nodes"),
        ('{"nodes": [{"message": {}, "parent": 0}]}', "has the parent 0"),
        ('{"nodes": [{"message": {}}, {"message": {}, "parent": -1}]}', "has the parent -1"),
        ('{"nodes": [{"message": {"role": "user"}, "parent": "a"}]}', "int"),
    ],
)
def test_what_is_no_saved_rollout(text, says):
    with pytest.raises(ValueError, match=says):
        read(text.encode())


# -- verifiers --------------------------------------------------------------------------------------------------------


def node(role, content="", parent=None, *, edges=(), **rest):
    message = {"role": role, "content": content, **rest.pop("message", {})}
    said = {"parent": parent, "message": message, "sampled": role == "assistant", "token_ids": [], "mask": []}
    return said | {"semantic_parents": [{"node": to, "type": kind} for kind, to in edges]} | rest


def trace(*nodes, **rest) -> bytes:
    told = {"version": 1, "id": "t1", "task": {"type": "T", "data": {"idx": 0}}, "agent": {"config": {}}}
    return json.dumps(told | {"nodes": nodes} | rest).encode()


CALL = {"tool_calls": [{"id": "c1", "name": "bash", "arguments": '{"command": "ls"}'}]}


def test_a_trace_is_resumed_behind_its_tool_results():
    one = read(
        trace(
            node("user", "u", tools=[{"name": "bash"}]),
            node("assistant", "", 0, message=CALL),
            node("tool", "a.py", 1, message={"tool_call_id": "c1"}),
            node("assistant", "Done.", 2),
        )
    )
    assert [(place.kinds, place.messages) for place in one.points] == [(("tool_result",), (0, 1, 2))]
    seed = one.seed(one.points[0])
    assert seed.messages[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    ]
    assert seed.tools == [{"name": "bash"}]
    assert one.whole.messages == (0, 1, 2, 3)
    assert one.rollout == "t1"


def test_a_trace_parts_at_a_node_with_several_children():
    one = read(trace(node("user", "u"), node("assistant", "a", 0), node("assistant", "b", 0)))
    assert [(place.kinds, place.messages) for place in one.points] == [(("fork",), (0,))]


def test_around_a_trace_s_compaction():
    one = read(
        trace(
            node("user", "u"),
            node("assistant", "long", 0),
            node("system", "s"),
            node("user", "summary", 2, edges=[("compaction", 1)]),
            node("assistant", "on", 3),
        )
    )
    assert [(place.kinds, place.messages) for place in one.points] == [
        (("before_compaction",), (0, 1)),
        (("after_compaction",), (2, 3)),
    ]
    assert one.whole.messages == (2, 3, 4)


def test_a_trace_s_subagents_are_cut_away():
    one = read(
        trace(
            node("user", "u"),
            node("assistant", "", 0, message=CALL),
            node("user", "sub"),
            node("tool", "x", 2),
            node("assistant", "sr", 3, edges=[("subagent_call", 1)]),
            node("tool", "sr", 1, message={"tool_call_id": "c1"}),
        )
    )
    assert [place.messages for place in one.points] == [(0, 1, 5)]
    assert one.whole.messages == (0, 1)


@pytest.mark.parametrize(
    ("rewards", "reward"),
    [
        ({}, None),
        (None, None),
        ({"r": {"score": 1.0}}, 1.0),
        ({"r": {"score": 1.0, "weight": 0.5}, "s": {"score": -1, "weight": 1}}, -0.5),
        ({"r": {"score": 1.0}, "s": None}, None),
    ],
)
def test_a_trace_s_reward(rewards, reward):
    assert read(trace(node("user", "u"), rewards=rewards)).reward == reward


def test_a_trace_s_lineage():
    data = {"type": "T", "data": {saved.REPLAY_OF: "t0"}}
    assert read(trace(node("user", "u"), task=data)).replay_of == "t0"
