"""Why renderings part: each cause, as messages and ids show it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.causes import CAUSES, cause_of, in_reply
from graph.forest import grow
from graph.messages import from_chat
from graph.records import Call, Drift, IntArray
from tests.graph.cases import load, with_messages
from tests.graph.tape import Tape, assistant, result, system, user

TASK = [system("Be brief."), user("Make the tests pass.")]


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


# -- in the reply -----------------------------------------------------------------------------------------------------


def said(arguments='{"a": 1}', reasoning="Hm, I see.", text=""):
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return from_chat({"role": "assistant", "content": text, "reasoning": reasoning, "tool_calls": [call]})


# A reply of thinking (4 … 5), a call (6 … 7) and an end (2).
WHOLE = ids(4, 120, 121, 122, 5, 6, 130, 7, 2)


@pytest.mark.parametrize(
    ("echo", "offset", "new", "expected"),
    [
        (said(reasoning=""), 0, (6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(reasoning="Hm, I see"), 3, (5, 6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(reasoning="Something else."), 1, (99, 5), "unknown"),
        (said('{"a":1}'), 6, (131, 7, 2), "arguments_reserialised"),
        (said('{"a":2}'), 6, (131, 7, 2), "unknown"),
        # The agent echoed all; the template dropped the thinking, left an empty pair of tags, or did neither.
        (said(), 0, (6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(), 1, (3, 5, 6, 130, 7, 2, 3), "reasoning_stripped"),
        (said(), 1, (125, 126, 5, 6, 130, 7, 2), "text_retokenised"),
        (said(), 6, (131, 7, 2, 3), "text_retokenised"),
        # All but the end is there, whatever the agent did to what stands before it.
        (said(), 8, (12, 3), "end_token"),
        (said('{"a":1}', reasoning=""), 8, (12, 3), "end_token"),
        # White space between the parts: before the call, which 6 opens, and not in it.
        (said(), 5, (3, 6, 130, 7, 2), "turn_boundary"),
        (said('{"a":1}'), 5, (3, 6, 131, 7, 2), "arguments_reserialised"),
        (said('{"a":1}'), 5, (3, 6, 130, 7, 2), "turn_boundary"),
        (None, 0, (6,), "unknown"),
    ],
)
def test_causes_in_a_reply(echo, offset, new, expected):
    assert in_reply(said(), echo, WHOLE, offset=offset, new=ids(*new)) == expected


def test_a_blank_line_before_a_call_that_an_agent_leaves_out_is_no_change():
    whole, echo = said('{ "a" : 1 }', text="\n\n"), said('{"a":1}')
    assert in_reply(whole, echo, WHOLE, offset=7, new=ids(131, 7, 2)) == "arguments_reserialised"
    assert in_reply(whole, said('{"a":2}'), WHOLE, offset=7, new=ids(131, 7, 2)) == "unknown"
    assert in_reply(said(text="I look."), said(), WHOLE, offset=7, new=ids(131, 7, 2)) == "unknown"


def test_an_agent_that_trims_a_reply_leaves_out_what_stands_at_the_border():
    whole, echo = said(text="I look.\n"), said(text="I look.")
    assert in_reply(whole, echo, ids(150, 3, 6, 130, 7, 2), offset=1, new=ids(6, 130, 7, 2, 3)) == "turn_boundary"


def test_a_reply_cut_by_length_has_no_end_token():
    reply = from_chat({"role": "assistant", "content": "I look"})
    assert in_reply(reply, reply, ids(150, 151), offset=1, new=ids(152, 2), length=True) == "text_retokenised"
    assert in_reply(reply, reply, ids(150, 151), offset=1, new=ids(152, 2)) == "end_token"


def test_without_thinking_a_break_at_once_is_the_tokeniser():
    reply = said(reasoning="")
    assert in_reply(reply, reply, ids(6, 130, 140, 7, 2), offset=0, new=ids(16, 131, 7, 2)) == "text_retokenised"
    assert in_reply(None, reply, WHOLE, offset=0, new=ids(6)) == "unknown"


def test_a_template_that_puts_empty_thinking_before_a_reply_that_had_none():
    reply = said(reasoning="")
    assert (
        in_reply(reply, reply, ids(6, 130, 7, 2), offset=0, new=ids(4, 3, 5, 3, 6, 130, 7, 2)) == "reasoning_inserted"
    )
    assert (
        in_reply(reply, said(), ids(6, 130, 7, 2), offset=0, new=ids(4, 120, 5, 6, 130, 7, 2)) == "reasoning_inserted"
    )


def test_arguments_that_only_the_template_spells_another_way():
    """Compact as sampled and as echoed; the template reads them as JSON and writes them with its own spaces."""
    reply = said('{"a":1}', reasoning="")
    assert (
        in_reply(reply, reply, ids(6, 130, 131, 7, 2), offset=1, new=ids(132, 133, 134, 7)) == "arguments_reserialised"
    )


def test_a_picture_in_a_reply_that_does_not_come_back():
    picture = {"type": "image_url", "image_url": {"url": "data:a picture"}}
    reply = from_chat({"role": "assistant", "content": [{"type": "text", "text": "See"}, picture]})
    echo = from_chat({"role": "assistant", "content": "See"})
    assert in_reply(reply, echo, ids(150, 60, 2), offset=1, new=ids(2, 3)) == "media"


# -- as Qwen3's template breaks them ----------------------------------------------------------------------------------

# vLLM 0.32 with Qwen3's tokeniser: <|im_start|> 151644, <|im_end|> 151645, <think> 151667, </think> 151668, <tool_call>
# 151657; "\n" is 198, "\n\n" 271, "\n\n\n" 1406.
HEADER = (151644, 77091, 198)
NO_THINKING = (*HEADER, 151667, 271, 151668, 271)
THINKS = (151667, 198, 40, 1265, 1401, 624, 151668, 271)
ANSWER = (2403, 7032, 1494, 1431, 13, 151645)
CALL = (
    151657,
    198,
    4913,
    606,
    788,
    330,
    455,
    69364,
    497,
    330,
    16370,
    788,
    5212,
    8926,
    788,
    330,
    59604,
    95642,
    151658,
    151645,
)
COMPACT = (151657, 198, 4913, 606, 3252, 455, 69364, 2198, 16370, 22317, 8926, 3252, 59604, 95642, 151658, 151645)
BEFORE = tuple(range(900, 920))
USER = (198, 151644, 872, 198, 3346, 389, 151645, 198)

WEATHER = {"id": "c", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def reply_of(text="All tests pass now.", reasoning="I should look.\n", calls=()):
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, "tool_calls": list(calls)}


def compact(call):
    return {**call, "function": {**call["function"], "arguments": '{"city":"Paris"}'}}


@pytest.mark.parametrize(
    ("header", "sampled", "reply", "echo", "rendered", "at", "expected"),
    [
        pytest.param(NO_THINKING, ANSWER, reply_of(reasoning=""), {}, (*HEADER, *ANSWER), 23, "turn_boundary",
                     id="thinking off, an answer"),
        pytest.param(NO_THINKING, CALL, reply_of("", "", [WEATHER]), {}, (*HEADER, *CALL), 23, "turn_boundary",
                     id="thinking off, a call"),
        pytest.param(HEADER, (*THINKS, *ANSWER), reply_of(), {}, (*HEADER, *ANSWER), 23, "reasoning_stripped",
                     id="thinking dropped by the template"),
        pytest.param(HEADER, (*THINKS, *ANSWER), reply_of(), {"reasoning_content": ""}, (*HEADER, *ANSWER), 23,
                     "reasoning_stripped", id="thinking dropped by the agent"),
        pytest.param(HEADER, (*THINKS, *ANSWER), reply_of("\n\nAll tests pass now."), {},
                     (*HEADER[:2], 1406, *ANSWER), 22, "reasoning_stripped", id="thinking dropped, newlines merged"),
        pytest.param(HEADER, (271, *ANSWER), reply_of("\n\nAll tests pass now.", ""), {},
                     (*HEADER[:2], 1406, *ANSWER), 22, "turn_boundary", id="newlines merged"),
        pytest.param(HEADER, (*THINKS, *CALL), reply_of("", calls=[WEATHER]), {"reasoning_content": ""},
                     (*HEADER, *CALL), 23, "reasoning_stripped", id="a call, thinking dropped by the agent"),
        pytest.param(HEADER, (*THINKS, *COMPACT), reply_of("", calls=[compact(WEATHER)]), {}, (*HEADER, *THINKS, *CALL),
                     35, "arguments_reserialised", id="a compact call, spelled by the template"),
        pytest.param(HEADER, (*THINKS, *CALL), reply_of("\n\n", calls=[WEATHER]), {"tool_calls": [compact(WEATHER)]},
                     (*HEADER, *THINKS, 198, *CALL), 31, "turn_boundary", id="opencode, a blank line before the call"),
        pytest.param(HEADER, (40, 624, *CALL), reply_of("I.\n", "", [WEATHER]), {"tool_calls": [compact(WEATHER)]},
                     (*HEADER, 40, 271, *CALL), 24, "turn_boundary", id="opencode, a line's end before the call"),
    ],
)  # fmt: skip
def test_breaks_of_qwen_3(header, sampled, reply, echo, rendered, at, expected):
    before, last = np.array((*BEFORE, *header), np.int32), {**reply, **echo}
    tape = Tape()
    tape.say(TASK, reply, prompt_ids=before, sampled=list(sampled), usage_prompt=None)
    then = result("Sunny.", reply) if reply["tool_calls"] else user("Go on.")
    prompt = np.array((*BEFORE, *rendered, *USER, *header), np.int32)
    # What the agent sends is linked by the call's id, or by its text.
    tape.say([*TASK, last, then], assistant("Done."), prompt_ids=prompt, usage_prompt=None)
    drift = grow(tape.rollout, tape.calls).links[1].drift
    assert drift is not None
    assert (drift.at, drift.tokens, drift.cause) == (at, len(before) + len(sampled) - at, expected)


# -- in the history ---------------------------------------------------------------------------------------------------

LOOK, THEN = assistant("", ("bash", {"command": "ls"}), ids="a"), assistant("", ("bash", {"n": 1}), ids="b")
SEEN = [TASK[0], user("Here is what I have."), TASK[1], LOOK, result("a.py and many more", LOOK)]


def respelled(message):
    call = message["tool_calls"][0]
    return message | {"tool_calls": [call | {"function": call["function"] | {"arguments": '{"command":"ls"}'}}]}


def drift_of(first: list, second: list, *, tools: tuple = ((), ()), reply=THEN, **fields) -> Drift:
    """The drift of a call that goes on from another, by what the two sent."""
    tape = Tape()
    tape.say(first, reply, tools=tools[0], **fields)
    tape.say(second, assistant("Done."), tools=tools[1])
    drift = grow(tape.rollout, tape.calls).links[1].drift
    assert drift is not None
    return drift


ON = [THEN, result("y", THEN)]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([*SEEN[:3], respelled(LOOK), SEEN[4]], "arguments_reserialised"),
        ([system("Be brief: 99% left."), *SEEN[1:]], "system_changed"),
        (SEEN[1:], "system_changed"),
        ([*SEEN[:3], system("Mind the time."), *SEEN[3:]], "system_changed"),
        (SEEN[:3], "turn_dropped"),
        ([*SEEN[:4], result("[cleared to save context]", LOOK)], "history_pruned"),
        ([*SEEN[:4], result("a.py", LOOK)], "history_pruned"),
        ([SEEN[0], *SEEN[2:]], "history_pruned"),
        ([SEEN[0], user("Here is what"), *SEEN[2:]], "history_pruned"),
        ([SEEN[0], user(" Here is what I have.\n"), *SEEN[2:]], "turn_boundary"),
        ([SEEN[0], user("It is noon. Here is what I have."), *SEEN[2:]], "unknown"),
        ([SEEN[0], user("Hello."), *SEEN[1:]], "unknown"),
        ([*SEEN[:3], {**LOOK, "reasoning_content": "Let me see."}, SEEN[4]], "reasoning_inserted"),
    ],
)
def test_the_first_message_that_changed_is_the_cause(sent, expected):
    drift = drift_of(SEEN, [*sent, *ON])
    assert (drift.where, drift.cause) == ("prompt", expected)


def test_more_than_a_turn_that_is_gone_is_pruned():
    more = assistant("", ("bash", {"n": 2}), ids="c")
    assert drift_of([*SEEN, more, result("z", more)], [*SEEN[:3], *ON]).cause == "history_pruned"


def test_other_tools():
    assert drift_of(SEEN, [*SEEN, *ON], tools=(("bash",), ("bash", "edit"))).cause == "tools_changed"
    changed = [system("Be quick."), *SEEN[1:], *ON]
    assert drift_of(SEEN, changed, tools=(("bash",), ("bash", "edit"))).cause == "system_changed"


def test_a_picture_that_is_sent_once():
    picture = {"type": "image_url", "image_url": {"url": "data:x"}}
    shown = from_chat({"role": "user", "content": [{"type": "text", "text": "See"}, picture]})
    tape = Tape()
    tape.say([user("See"), TASK[1]], THEN, prompt_ids=ids(1, 9, 3, 60, 60, 100, 2, 3, 1, 10, 3), usage_prompt=None)
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], messages=(shown, *tape.calls[0].messages[1:]))
    later = ids(1, 9, 3, 100, 2, 3, 1, 10, 3, 99)
    tape.say([user("See"), TASK[1], *ON], assistant("Done."), prompt_ids=later, usage_prompt=None)
    assert grow(tape.rollout, tape.calls).links[1].drift.cause == "media"


def test_thinking_that_a_template_drops_from_an_earlier_turn():
    thought = {**LOOK, "reasoning_content": "Let me see. "}
    first = [*TASK, thought, SEEN[3]]
    prompt = ids(1, 9, 3, 100, 2, 3, 1, 10, 3, 4, 120, 5, 6, 130, 7, 2, 3, 1, 10, 3)
    tape = Tape()
    tape.say(first, THEN, prompt_ids=prompt, usage_prompt=None)
    later = ids(1, 9, 3, 100, 2, 3, 1, 10, 3, 6, 130, 7, 2, 3, 1, 10, 3, 99)
    tape.say([*first, *ON], assistant("Done."), prompt_ids=later, usage_prompt=None)
    assert grow(tape.rollout, tape.calls).links[1].drift.cause == "reasoning_stripped"


@pytest.mark.parametrize(
    ("put_in", "expected"), [((3,), "turn_boundary"), ((4, 3, 5, 3), "reasoning_inserted"), ((170,) * 9, "unknown")]
)
def test_what_a_template_puts_into_an_earlier_turn(put_in, expected):
    head, tail = (1, 9, 3, 100, 2, 3, 1, 10, 3), (6, 130, 7, 2, 3, 1, 11, 3, *range(300, 320), 2, 3, 1, 10, 3)
    tape = Tape()
    tape.say(SEEN, THEN, prompt_ids=ids(*head, *tail), usage_prompt=None)
    tape.say([*SEEN, *ON], assistant("Done."), prompt_ids=ids(*head, *put_in, *tail, 99), usage_prompt=None)
    assert grow(tape.rollout, tape.calls).links[1].drift.cause == expected


# -- the cases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "expected"),
    [(2, "reasoning_stripped"), (5, "end_token"), (7, "arguments_reserialised"), (10, "media"), (18, "turn_dropped"),
     (48, "system_changed")],
)  # fmt: skip
def test_the_cause_of_a_case(number, expected):
    case = load(number)
    calls = with_messages(case)
    pairs = [(link["previous"], link["child"]) for link in case.expected.get("links", ())] or [
        ("c1", "c2"),
        ("c2", "c3"),
    ]
    for parent, child in ((calls[case.n(a)], calls[case.n(b)]) for a, b in pairs):
        echo = next((message for message in reversed(child.messages) if message.role == "assistant"), parent.reply)
        whole = np.concatenate([parent.prompt_ids, parent.sampled_ids])
        at = next(n for n, (a, b) in enumerate(zip(whole, child.prompt_ids, strict=False)) if a != b)
        found = cause_of(
            parent, child, echo, at=at, parent_ids=whole, n_parent_prompt=len(parent.prompt_ids),
            new=child.prompt_ids[at:],
        )  # fmt: skip
        assert found == expected


@pytest.mark.parametrize("number", [4, 9])
def test_a_case_without_drift(number):
    case = load(number)
    assert grow(case.rollout, with_messages(case)).links[1].kind == "exact"


def test_each_cause_says_something():
    assert all(CAUSES.values())


# -- whatever the two sides are ---------------------------------------------------------------------------------------

words = st.sampled_from(["", "a", "a b", " a ", "a\n"])
tool_calls = st.lists(
    st.sampled_from(['{"n": 1}', '{"n":1}', "{}", "", "no JSON"]).map(
        lambda arguments: {"id": "c", "function": {"name": "f", "arguments": arguments}}
    ),
    max_size=2,
)
picture = {"type": "image_url", "image_url": {"url": "data:x"}}
contents = words | words.map(lambda text: [{"type": "text", "text": text}, picture])
chats = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "assistant", "tool"]),
        "content": contents,
        "reasoning_content": words,
        "tool_calls": tool_calls,
        "tool_call_id": st.sampled_from(["c", "d"]),
    }
).map(from_chat)
few = st.lists(st.integers(1, 4), max_size=8)


@given(st.lists(chats, max_size=5), st.lists(chats, max_size=5), chats, chats | st.none(), few, few, few, st.booleans())
def test_a_cause_is_named_whatever_the_two_sides_are(said, sent, reply, echo, prompt, sampled, later, same_tools):
    whole = np.array(prompt + sampled, np.int32)
    at = next((n for n, (a, b) in enumerate(zip(whole, later, strict=False)) if a != b), min(len(whole), len(later)))
    calls = [
        Call(n=n, status="complete", arrived=2 * n, messages=tuple(messages), tools=tools, reply=reply)
        for n, (messages, tools) in enumerate([(said, "x"), (sent, "x" if same_tools else None)])
    ]
    found = cause_of(
        *calls, echo, at=at, parent_ids=whole, n_parent_prompt=len(prompt), new=np.array(later[at:], np.int32)
    )
    assert found in CAUSES
    if at < len(prompt) and (not said or not sent):
        assert found == "unknown"
    if found == "tools_changed":
        assert not same_tools
    if found == "media":
        assert any(message.media for message in (*said, *sent, reply, *([echo] if echo else [])))
