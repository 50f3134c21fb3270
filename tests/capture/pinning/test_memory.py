"""What is remembered of calls: ids from the trie, shapes as they were noted or as the store has them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from capture.pinning.memory import Memory
from capture.pinning.pinner import UNKNOWN
from capture.store.base import Exchange
from graph.messages import from_chat
from graph.records import Call, Weights
from graph.tokens import Trie

USER = from_chat({"role": "user", "content": "hi"})
CALLED = from_chat(
    {
        "role": "assistant",
        "tool_calls": [{"id": "c7", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
)


def array(*ids):
    return np.array(ids, np.int32)


def call(n=0, **changes):
    return Call(
        **{
            "n": n, "status": "complete", "arrived": n, "messages": (USER,), "reply": CALLED, "engine": "e",
            "finish_reason": "tool_calls", "weights": Weights(start="v1", end="v2"), "prompt_ids": array(1, 2),
            "sampled_ids": array(3, 4, 5), **changes,
        }
    )  # fmt: skip


def memory(one, sent=None, passed=None):
    trie, read = Trie(), []
    if one.prompt_ids is not None:
        trie.insert(one.n, one.prompt_ids, one.sampled_ids)

    async def exchange(n):
        read.append(n)
        return passed

    made = Memory(trie, exchange)
    made.add(one, sent)
    return made, read


def fields(**given):
    return {name: json.dumps(value).encode() for name, value in given.items()}


async def test_a_call_of_this_process_is_remembered_whole():
    made, read = memory(call(), fields(model="m", messages=[], temperature=1.0))
    found = await made.load(0)
    assert found.ids.tolist() == [1, 2, 3, 4, 5]
    assert (found.n_sampled, found.finish_reason, found.stop_reason, found.stops) == (3, "tool_calls", None, False)
    assert (found.shape, found.engine, found.weights, found.tool_ids) == ('{"model":"m"}', "e", "v2", ("c7",))
    assert read == []
    assert len(made.parents) == 1


async def test_one_of_an_earlier_process_is_read_once():
    made, read = memory(call(), None, Exchange(request=b'{"model": "asked"}', sent=b'{"model": "m", "messages": []}'))
    assert (await made.load(0)).shape == '{"model":"m"}'
    assert (await made.load(0)).shape == '{"model":"m"}'
    assert read == [0]


async def test_one_that_was_sent_as_it_came_has_its_request():
    made, _ = memory(call(), None, Exchange(request=b'{"model": "m"}'))
    assert (await made.load(0)).shape == '{"model":"m"}'


@pytest.mark.parametrize("passed", [None, Exchange(request=b"no json")])
async def test_one_of_which_nothing_is_left_is_no_parent(passed):
    made, _ = memory(call(), None, passed)
    assert await made.load(0) is None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"choices": [{"index": 0, "stop_reason": "\n"}]}, "\n"),
        ({"choices": [{"index": 0, "stop_reason": None}]}, None),
        ({"choices": [{"index": 1, "stop_reason": None}]}, UNKNOWN),
        ({"choices": [{"index": 0}]}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
async def test_whether_a_stop_of_its_own_was_met_is_read_from_the_reply(reply, reason):
    passed = Exchange(request=b"{}", reply=json.dumps(reply).encode())
    made, read = memory(call(), fields(stop=["\n"]), passed)
    found = await made.load(0)
    assert found.stops
    assert found.stop_reason is reason or found.stop_reason == reason
    assert read == [0]


async def test_another_dialects_reply_does_not_say():
    passed = Exchange(request=b"{}", reply=b'{"choices": [{"index": 0, "stop_reason": null}]}')
    made, _ = memory(call(dialect="messages"), fields(stop_token_ids=[1]), passed)
    assert (await made.load(0)).stop_reason is UNKNOWN


@pytest.mark.parametrize("changes", [{"status": "aborted"}, {"reply": None}, {"prompt_ids": None}])
async def test_what_can_not_be_gone_on_from_is_left_out(changes):
    made, _ = memory(call(**changes), fields())
    assert await made.load(0) is None
    assert len(made.parents) == 0


async def test_a_number_that_is_not_there():
    made, _ = memory(call(), fields())
    assert await made.load(9) is None


async def test_what_was_told_of_weights_stands_above_an_engines_own_word():
    made, _ = memory(call(), fields(model="m", messages=[]))
    assert (await made.load(0)).weights == "v2"
    made.add(call(), fields(model="m", messages=[]), told="step-1")
    assert (await made.load(0)).weights == "step-1"
