"""Replies found again in later requests."""

from __future__ import annotations

import numpy as np
import pytest

from graph.messages import from_chat
from graph.records import Call, Message
from graph.replies import Replies
from graph.tokens import Trie
from tests.graph.tape import assistant, system, user


def messages(*chats) -> tuple[Message, ...]:
    return tuple(map(from_chat, chats))


def call(n: int, request, reply=None, **fields) -> Call:
    told = {"status": "complete", "delivered": True, "arrived": 2 * n, "ended": 2 * n + 1} | fields
    return Call(n=n, messages=messages(*request), reply=from_chat(reply) if reply else None, **told)


def replies(*calls: Call) -> Replies:
    found = Replies(Trie())
    for one in calls:
        found.add(one)
    return found


ASK = [system("s"), user("boilerplate"), user("task")]
GREETING = assistant("Got it.")


def test_an_opening_ends_at_the_first_reply_that_was_sampled():
    found = replies(call(0, ASK, assistant("Yes.")))
    request = messages(*ASK, GREETING, user("more"), assistant("Yes."), user("not this"))
    assert found.opening(request) == tuple(request[place].digest for place in (1, 2, 4))
    assert found.opening_of(0) == tuple(message.digest for message in request[1:3])


def test_what_is_carried_is_the_latest_reply_and_its_place():
    found = replies(call(0, ASK, assistant("One.")), call(1, [*ASK, assistant("One."), user("x")], assistant("Two.")))
    later = call(9, [*ASK, assistant("One."), user("x"), assistant("Two."), user("y"), GREETING])
    assert found.carried(later) == (1, 5)
    assert found.carried(call(9, ASK)) is None


def test_an_id_that_an_engine_uses_again_is_not_enough_to_mistake_a_call():
    said = [assistant("", ("bash", {"command": command}), ids="same") for command in ("ls", "cat")]
    found = replies(call(0, ASK, said[0]), call(1, ASK, said[1]))
    for n, reply in enumerate(said):
        assert found.carried(call(9, [*ASK, reply])) == (n, 3)


def test_an_id_finds_a_reply_whose_arguments_were_rewritten():
    said, rewritten = (assistant("", ("bash", {"command": command}), ids="same") for command in ("ls", "ls -a"))
    assert replies(call(0, ASK, said)).carried(call(9, [*ASK, rewritten])) == (0, 3)


def test_usable_takes_both_halves_and_something_sampled():
    later, one = call(9, ASK), np.array([1], np.int32)
    trie = Trie()
    found = Replies(trie)
    trie.insert(1, one, one)
    trie.insert(2, one, one[:0])
    trie.insert(3, one, one[:0])
    ids = {0: None, 1: one, 2: None, 3: one[:0], 4: one}
    for n, sampled in ids.items():
        found.add(call(n, ASK, assistant("Yes."), sampled_ids=sampled))
    # Neither half; both; the prompt alone; both, and nothing sampled; sampled ids alone.
    assert [found.usable(n, later) for n in ids] == [True, True, False, False, False]


def test_a_call_is_usable_once_it_has_ended():
    found = replies(call(0, ASK, assistant("Yes."), ended=5), call(1, ASK, assistant("No."), ended=None))
    assert [found.usable(0, call(9, ASK, arrived=at)) for at in (4, 5, 6)] == [False, False, True]
    assert not found.usable(1, call(9, ASK))


@pytest.mark.parametrize(
    ("kept", "brought"),
    [
        ([assistant("I will look ")], [0]),
        # What was on its way when the agent went is not in its hands.
        ([assistant("I will")], [0]),
        ([assistant("You will")], []),
        ([assistant("")], []),
        # What it had comes behind what it had asked.
        ([user("more"), assistant("I will look ")], []),
        ([user("I will look ")], []),
    ],
)
def test_a_broken_reply_is_brought_back_as_far_as_it_came(kept, brought):
    found = replies(call(0, ASK, assistant("I will look "), status="aborted", delivered=False))
    request = call(9, [*ASK, *kept, user("Go on.")])
    assert found.brought_back(request) == brought
    assert found.carried(request) is None
    assert found.brought_back(request) == []


@pytest.mark.parametrize(
    ("kept", "brought"),
    [
        ({"reasoning": "\nSo.\n"}, [0]),
        ({"reasoning": "So."}, [0]),
        ({"reasoning": "No."}, []),
        ({}, []),
    ],
)
@pytest.mark.parametrize("text", ["I will look ", ""])
def test_a_broken_reply_of_which_the_thinking_is_left_is_brought_back(text, kept, brought):
    """codex keeps the items that were done when the stream broke."""
    said = assistant(text) | {"reasoning": "\nSo.\n"}
    found = replies(call(0, ASK, said, status="aborted", delivered=False))
    assert found.brought_back(call(9, [*ASK, assistant("") | kept])) == brought


def test_what_stands_in_a_request_is_the_try_that_was_delivered():
    said = assistant("I will look ")
    found = replies(call(0, ASK, said, status="aborted", delivered=False), call(1, ASK, said))
    assert found.brought_back(call(9, [*ASK, said])) == []


def test_a_proof_overrules_the_record():
    found = replies(call(0, ASK, assistant("Yes."), delivered=False))
    assert not found.parent_by_message(0, call(9, ASK))
    found.proved.add(0)
    assert found.delivered(0) is True
    assert found.parent_by_message(0, call(9, ASK))
