"""How calls hang together, told call by call."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graph.forest import Forest, grow
from graph.links import LINKED
from tests.graph.generator import END, Chat, body, render
from tests.graph.tape import Tape, assistant, result, system, user

TASK = [system("Be brief."), user("Make the tests pass.")]
TOOLS = ("bash",)


def forest(tape: Tape) -> Forest:
    return grow(tape.rollout, tape.calls)


def hangs(tape: Tape) -> list[tuple[str, int | None]]:
    return [(link.kind, link.parent) for link in forest(tape).links.values()]


def respelled(message: Chat) -> Chat:
    """An assistant message with its arguments serialised another way."""
    calls = [
        call
        | {
            "function": call["function"]
            | {"arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=1)}
        }
        for call in message["tool_calls"]
    ]
    return message | {"tool_calls": calls}


def test_a_conversation_whose_ids_come_back_is_a_chain():
    tape = Tape()
    ask, then = (assistant("", ("bash", {"command": command}), ids=command) for command in ("ls", "cat"))
    history = [*TASK, ask, result("a b", ask)]
    tape.say(TASK, ask)
    tape.say(history, then)
    tape.say([*history, then, result("c", then)], assistant("Done."))
    assert hangs(tape) == [("root", None), ("exact", 0), ("exact", 1)]


def test_drift_in_the_first_turn_hangs_on_it():
    tape = Tape()
    ask = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, ask)
    tape.say([*TASK, respelled(ask), result("a b", ask)], assistant("Done."))
    (_, link) = forest(tape).links.values()
    assert (link.kind, link.parent, link.drift.cause) == ("drift", 0, "arguments_reserialised")
    n_ids = len(tape.calls[0].prompt_ids) + len(tape.calls[0].sampled_ids)
    assert link.n_shared == link.drift.at == n_ids - link.drift.tokens
    assert link.drift.where == "sampled"


def test_drift_in_a_later_turn_hangs_on_that_turn_though_the_turn_before_is_a_prefix():
    tape = Tape()
    ask, then = (
        assistant("", ("bash", {"command": "ls"}), ids="a"),
        assistant("", ("bash", {"command": "cat"}), ids="b"),
    )
    tape.say(TASK, ask)
    tape.say([*TASK, ask, result("a b", ask)], then)
    tape.say([*TASK, ask, result("a b", ask), respelled(then), result("c", then)], assistant("Done."))
    assert hangs(tape) == [("root", None), ("exact", 0), ("drift", 1)]
    assert forest(tape).forks == ()
    assert forest(tape).discarded == frozenset()


def test_a_branch_that_does_not_carry_a_reply_hangs_where_its_ids_do():
    tape = Tape()
    said = assistant("Yes.")
    tape.say(TASK, said)
    tape.say([*TASK, said, user("Sure?")], assistant("Quite."))
    tape.say([*TASK, said, user("Why?")], assistant("Because."))
    assert hangs(tape) == [("root", None), ("exact", 0), ("exact", 0)]


def test_a_parent_ended_before_its_child_arrived():
    tape = Tape()
    said = assistant("Yes.")
    tape.say(TASK, said, arrived=1, ended=4)
    tape.say([*TASK, said, user("Sure?")], assistant("Quite."), arrived=3, ended=5)
    assert hangs(tape) == [("root", None), ("root", None)]


def test_an_opening_that_is_gone_links_nothing():
    tape = Tape()
    said = assistant("Yes.", ("bash", {"command": "ls"}))
    tape.say(TASK, said)
    tape.say([system("Be brief."), user("Something else."), respelled(said), result("x", said)], assistant("Done."))
    assert hangs(tape) == [("root", None), ("root", None)]


def test_a_greeting_that_nobody_sampled_is_part_of_the_opening():
    tape = Tape()
    opening = [user("Setting up."), assistant("Got it. Thanks for the context!")]
    said = assistant("", ("bash", {"command": "ls"}))
    for task in ("One thing.", "Another thing."):
        tape.say([*opening, user(task)], said)
    for task in ("One thing.", "Another thing."):
        tape.say([*opening, user(task), respelled(said), result("x", said)], assistant("Done."))
    assert hangs(tape) == [("root", None), ("root", None), ("drift", 0), ("drift", 1)]


def test_the_latest_of_equal_replies_in_one_conversation():
    tape = Tape()
    again = assistant("", ("bash", {"command": "ls"}))
    history = list(TASK)
    for _ in range(4):
        tape.say(history, again)
        history += [respelled(again), result("x", again)]
    assert hangs(tape) == [("root", None), ("drift", 0), ("drift", 1), ("drift", 2)]


@pytest.mark.parametrize("echo", ["same", "respelled"])
def test_of_two_equal_subagents_each_goes_on_alone(echo):
    tape = Tape()
    ask = [assistant("", ("bash", {"command": "ls"}), ids=name) for name in "ab"]
    for said in ask:
        tape.say(TASK, said)
    for said in ask:
        back = respelled(said) if echo == "respelled" else said
        tape.say([*TASK, back, result("x", said)], assistant("Done."))
    # Equal ids end at one place: an exact link can't tell them apart, and takes the later.
    parents = [1, 1] if echo == "same" else [0, 1]
    assert [parent for _, parent in hangs(tape)[2:]] == parents


def test_ids_prove_an_aborted_call_used():
    tape = Tape()
    said = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, said, sampled=body(said, thinking=True), status="aborted", delivered=False)
    tape.say([*TASK, said, result("x", said)], assistant("Done."))
    assert hangs(tape) == [("root", None), ("exact", 0)]
    assert forest(tape).proved == {0}


def test_what_an_agent_trims_of_a_half_reply_takes_no_proof_away():
    tape = Tape()
    half = assistant("I will look ")
    tape.say(TASK, half, sampled=body(half, thinking=True), status="aborted", delivered=False)
    trimmed = [*TASK, assistant("I will look"), user("Go on.")]
    ids = [*render([*TASK], (), "never"), *body(half, thinking=True), END]
    tape.say(trimmed, assistant("Done."), prompt_ids=np.array(ids, np.int32))
    assert hangs(tape) == [("root", None), ("exact", 0)]


def test_the_first_ids_of_a_retry_prove_nothing_of_the_try_before():
    tape = Tape()
    said = assistant("I will look.", ("bash", {"command": "ls"}))
    whole = [*body(said, thinking=True), END]
    tape.say(TASK, assistant("I will"), sampled=whole[:2], status="aborted", delivered=False)
    tape.say(TASK, said)
    tape.say([*TASK, respelled(said), result("x", said)], assistant("Done."))
    assert hangs(tape) == [("root", None), ("root", None), ("drift", 1)]
    assert forest(tape).proved == frozenset()
    assert forest(tape).discarded == {0}


def test_nor_do_they_in_later_turns():
    tape = Tape()
    said = assistant("", ("bash", {"command": "ls"}), ids="a")
    tape.say(TASK, assistant(""), sampled=body(said, thinking=True)[:1], status="aborted", delivered=False)
    tape.say(TASK, said)
    history = [*TASK, respelled(said), result("x", said)]
    then = assistant("", ("bash", {"command": "cat"}), ids="b")
    tape.say(history, then)
    tape.say([*history, respelled(then), result("y", then)], assistant("Done."))
    assert hangs(tape)[2:] == [("drift", 1), ("drift", 2)]
    assert forest(tape).proved == frozenset()


def test_a_reply_that_nobody_had_is_no_parent_by_message():
    tape = Tape()
    said = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, said, delivered=False)
    tape.say([*TASK, respelled(said), result("x", said)], assistant("Done."))
    assert hangs(tape) == [("root", None), ("root", None)]


@pytest.mark.parametrize("half", ["prompt_ids", "sampled_ids"])
def test_half_a_bundle_is_no_parent(half):
    tape = Tape()
    said = assistant("Yes.")
    tape.say(TASK, said, **{half: None})
    tape.say([*TASK, said, user("Sure?")], assistant("Quite."))
    assert hangs(tape) == [("root", None), ("root", None)]


def test_calls_without_ids_hang_by_their_messages():
    tape = Tape(tier="eval")
    said = assistant("Yes.")
    text = {"prompt_ids": None, "sampled_ids": None, "logprobs": None}
    tape.say(TASK, said, **text)
    tape.say([*TASK, said, user("Sure?")], assistant("Quite."), **text)
    link = forest(tape).links[1]
    assert (link.kind, link.parent, link.n_shared, link.drift) == ("drift", 0, 0, None)


@pytest.mark.parametrize("status", ["error", "stopped", "running"])
def test_other_calls_make_no_node_and_show_what_was_used(status):
    tape = Tape()
    said = [assistant("", ("bash", {"command": command})) for command in ("ls", "cat")]
    for reply in said:
        tape.say(TASK, reply)
    tape.say([*TASK, said[0], result("x", said[0])], None, status=status, ended=None if status == "running" else 6)
    grown = forest(tape)
    assert status not in LINKED
    assert hangs(tape) == [("root", None)] * 3
    assert 2 not in grown.tree_of
    # Both have the tool call's id, and the message says which one it is.
    assert grown.came_back == {0}
    assert [(fork.kind, fork.kept) for fork in grown.forks] == [("resample", 0)]


def test_thinking_that_a_template_drops_at_a_new_user_message():
    tape = Tape()
    said = assistant("", ("bash", {"command": "ls"})) | {"reasoning_content": "First I look."}
    history = [*TASK, said, result("x", said)]
    tape.say(TASK, said)
    tape.say(history, assistant("Done."))
    more = [*history, assistant("Done."), user("And now?")]
    tape.say(more, assistant("Rest."), prompt_ids=np.array(render(more, (), "user"), np.int32))
    links = list(forest(tape).links.values())
    assert [(link.kind, link.parent) for link in links] == [("root", None), ("exact", 0), ("drift", 1)]
    assert (links[2].drift.where, links[2].drift.cause) == ("prompt", "reasoning_stripped")


def test_a_turn_kept_behind_a_summary_was_used_though_the_summary_was_asked_for_beside_it():
    """As claude-code does: the summary is asked for instead of the turn's results, in a block of which it carries the
    inside; the turn stands behind it, without the task."""
    tape = Tape()
    look = assistant("", ("bash", {"command": "ls -a"}), ids="look")
    then = assistant("", ("bash", {"command": "cat parse.py"}), ids="then")
    task = [system("You act."), user("Make the tests pass.")]
    history = [*task, look, result("parse.py", look)]
    tape.say(task, look, tools=("bash",))
    tape.say(history, then, tools=("bash",))
    told = "<analysis>So.</analysis>\n<summary>\nThe parser fails on empty input.\n</summary>"
    tape.say([*history, user("Write a summary.")], assistant(told), tools=("bash",))
    after = [system("You act."), user("Summary:\nThe parser fails on empty input.\n\nGo on.")]
    tape.say([*after, then, result("def parse", then)], assistant("Done."), tools=("bash",))
    forest = tape.graph().forest
    assert (forest.links[3].kind, forest.links[3].parent, forest.links[3].carries) == ("compaction", 2, (2,))
    assert [(fork.children, fork.kept) for fork in forest.forks] == [((1, 2), 2)]
    assert forest.discarded == frozenset()
