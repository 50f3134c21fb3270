"""Rewards and roles from outside. What they mean over HTTP is in test_api.py and test_rollouts.py."""

from __future__ import annotations

import pytest

from capture import verdicts
from capture.errors import ClientError
from graph.examples import graph_of
from graph.records import Call


class Store:
    """Keeps what it is told to change."""

    def __init__(self, *calls):
        self.made, self.changes = list(calls), None

    async def calls(self, name):
        return self.made

    async def change(self, name, changes):
        self.changes = changes


CALL = Call(n=0, status="complete", arrived=0, id="reply-1")


async def test_a_reward_is_what_was_given_and_no_more():
    store = Store(CALL)
    await verdicts.reward(store, "r", {"reward": None})
    assert store.changes == {"reward": None}
    await verdicts.reward(store, "r", {"per_call": {"reply-1": 0.5, "reply-1#0": 1.0}})
    assert store.changes == {"per_call_rewards": {"reply-1": 0.5, "reply-1#0": 1.0}}


@pytest.mark.parametrize(
    ("body", "calls", "code"),
    [
        ({"reward": "good"}, (CALL,), "invalid_reward"),
        ({"reward": 1.0, "x": 1}, (CALL,), "invalid_reward"),
        ({"reward": 1.0}, (), "no_calls"),
        ({"per_call": {"other": 1.0}}, (CALL,), "unknown_call"),
    ],
)
async def test_a_reward_that_can_not_be_meant_changes_nothing(body, calls, code):
    store = Store(*calls)
    with pytest.raises(ClientError) as refused:
        await verdicts.reward(store, "r", body)
    assert (refused.value.code, store.changes) == (code, None)
    assert refused.value.hint


async def test_a_role_is_kept_by_its_conversations_root():
    graph = graph_of("subagents")
    store = Store()
    last = graph.conversations[-1]
    await verdicts.role(store, graph, {"conversation": last.n, "role": "auxiliary"})
    assert store.changes == {"roles": {**graph.rollout.roles, last.root: "auxiliary"}}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"conversation": 0, "role": "hero"}, "invalid_role"),
        ({"conversation": 99, "role": "main"}, "unknown_conversation"),
        ({"role": "main"}, "invalid_role"),
    ],
)
async def test_a_role_that_can_not_be_meant_changes_nothing(body, code):
    store = Store()
    with pytest.raises(ClientError) as refused:
        await verdicts.role(store, graph_of("subagents"), body)
    assert (refused.value.code, store.changes) == (code, None)
