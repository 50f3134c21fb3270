"""Whom a request goes on from: the deepest reply of its history that was recorded, in canonical form."""

from __future__ import annotations

import json

from capture.pinning.parents import Parents, chain
from graph.messages import from_chat
from graph.records import Call


def messages(*given):
    return tuple(map(from_chat, given))


def user(text):
    return {"role": "user", "content": text}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def called(arguments, id_="c0"):
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id_, "type": "function", "function": {"name": "look", "arguments": arguments}}],
    }


def call(n, sent, reply, **more):
    (made,) = messages(reply)
    return Call(n=n, status=more.pop("status", "complete"), arrived=n, messages=messages(*sent), reply=made, **more)


def parents(*calls):
    found = Parents()
    for one in calls:
        found.add(one)
    return found


def best(found, *sent):
    return next(iter(found.candidates(messages(*sent))), None)


HI = user("hi")


def test_the_reply_of_the_last_call_is_found():
    found = best(parents(call(0, [HI], said("hello"))), HI, said("hello"), user("go on"))
    assert (found.n, found.place) == (0, 1)


def test_the_deepest_wins_and_a_branch_goes_on_from_an_older_one():
    known = parents(call(0, [HI], said("hello")), call(1, [HI, said("hello"), user("a")], said("b")))
    assert best(known, HI, said("hello"), user("a"), said("b"), user("c")).n == 1
    found = best(known, HI, said("hello"), user("a"), said("EDITED"), user("c"))
    assert (found.n, found.place) == (0, 1)


def test_an_edit_in_front_leaves_no_parent():
    known = parents(call(0, [HI], said("hello")))
    assert best(known, user("ho"), said("hello"), user("go on")) is None
    assert best(known, {"role": "system", "content": "x"}, HI, said("hello"), user("go on")) is None
    assert best(known, HI, said("a greeting of the agent's own"), user("go on")) is None


def test_what_agents_rewrite_does_not_count():
    known = parents(call(0, [HI], called('{"a": 1, "b": 2}')), call(1, [HI], said(" hello\n", reasoning="so")))
    result = {"role": "tool", "tool_call_id": "other", "content": "x"}
    assert best(known, HI, called(json.dumps({"b": 2, "a": 1}), id_="other"), result).n == 0
    assert best(known, HI, said("hello"), user("go on")).n == 1
    assert best(known, HI, called('{"a": 1}'), result) is None


def test_a_users_white_space_counts():
    known = parents(call(0, [HI], said("hello")))
    assert best(known, user("hi "), said("hello"), user("go on")) is None


def test_of_equal_replies_the_latest_comes_first_and_the_others_are_told():
    known = parents(call(0, [HI], said("hello")), call(3, [HI], said("hello")))
    found = known.candidates(messages(HI, said("hello"), user("go on")))
    assert [one.n for one in found] == [3, 0]


def test_calls_that_did_not_end_well_are_no_parents():
    for status in ("aborted", "error", "stopped", "running"):
        assert len(parents(call(0, [HI], said("hello"), status=status))) == 0
    assert len(parents(Call(n=0, status="complete", arrived=0, messages=messages(HI)))) == 0


def test_an_added_call_is_there_once():
    known = parents(*[call(0, [HI], said("hello"))] * 3)
    assert [one.n for one in known.candidates(messages(HI, said("hello"), user("x")))] == [0]


def test_chains_tell_roles_and_borders_apart():
    assert chain(messages(said("ab"))) != chain(messages(said("a"), said("b")))
    assert chain(messages(user("a"))) != chain(messages(said("a")))
    assert chain(()) == b""
