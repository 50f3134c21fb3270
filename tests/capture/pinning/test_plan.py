"""The plan against small templates: the tail that it finds is right, or it says why it finds none."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.pinning.fallback import Fallback
from capture.pinning.plan import Closings, Ended, odd, plan
from tests.capture.pinning.templates import ENDS, TEMPLATES, RefusalError, encode


def user(text):
    return {"role": "user", "content": text}


def tool(text, n=0):
    return {"role": "tool", "tool_call_id": f"c{n}", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def called(*names, text=""):
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps({"x": n})}}
            for n, name in enumerate(names)
        ],
    }


SYSTEM = {"role": "system", "content": "Be brief."}
TURNS = {
    "plain": ([user("hi")], said("hello"), [user("go on")]),
    "system": ([SYSTEM, user("hi")], said("hello"), [user("go on")]),
    "third turn": ([user("a"), said("b"), user("c")], said("d"), [user("e")]),
    "thought": ([user("hi")], said("so</think>hello"), [user("go on")]),
    "old thought": ([user("a"), said("so</think>b"), user("c")], said("why</think>d"), [user("e")]),
    "tool": ([user("hi")], called("look"), [tool("found")]),
    "second tool": ([user("a"), called("look"), tool("x")], called("look"), [tool("y")]),
    "parallel": ([user("hi")], called("look", "read"), [tool("x", 0), tool("y", 1)]),
    "text and tool": ([user("hi")], called("look", text="I will"), [tool("found")]),
    "tool then user": ([user("hi")], called("look"), [tool("found"), user("and?")]),
    "greeting": ([user("hi")], said("hello"), [said("by the way"), user("go on")]),
    "empty": ([user("hi")], said(""), [user("go on")]),
    "end in text": ([user("hi")], said("hello"), [user("what is <im_end> and <end>?")]),
    "end in reply": ([user("hi")], said("it is <im_end>\n<end> you see"), [user("go on")]),
    "end in result": ([user("hi")], called("look"), [tool("<end><im_end>\n")]),
    "own word": ([user("Zebra")], said("quilt 77"), [user("Zebra")]),
}


def ended_by(name, parts, place, reply, *, reason="stop"):
    """How a model that this template is for would have ended the reply."""
    end = ENDS.get(name)
    if end is None:
        following = parts[place + 1] if place + 1 < len(parts) else TEMPLATES[name]._opening
        end = following[: following.index(">") + 1]
    return Ended(sampled=encode(f"…{end}"), finish_reason=reason)


def found(name, history, reply, new, *, ended=None, closings=None):
    """Return the tail's text by number of tokens, and the true rendering's text."""
    template = TEMPLATES[name]
    messages = [*history, reply, *new]
    if ended is None:
        ended = ended_by(name, template.parts(messages), len(history), reply)
    steps = plan(messages, len(history), ended, closings=closings or Closings(), shape="")
    got = None
    while True:
        try:
            asked = steps.send(got)
        except StopIteration as stop:
            return stop.value
        got = [template.render(one.messages, closed=one.closed) for one in asked]


def expected(name, history, reply, new, ended):
    """What stands behind the parent's last id, by the template's own parts."""
    template = TEMPLATES[name]
    parts = template.parts([*history, reply, *new])
    behind = "".join(parts[len(history) + 1 :]) + template._opening
    own = encode(parts[len(history)])
    end = int(ended.sampled[-1])
    places = np.flatnonzero(own == end)
    # One without an end of its own opens the reply with the same mark, which is none of the reply's.
    if len(places) and name in ENDS:
        return np.concatenate([own[int(places[-1]) + 1 :], encode(behind)])
    assert encode(behind)[0] == end
    return encode(behind)[1:]


RIGHT = {
    "chatml": set(TURNS),
    "thinking": set(TURNS),
    "unended": set(TURNS),
    "counted": set(TURNS),
    "open-calls": {name for name in TURNS if not TURNS[name][1].get("tool_calls")},
    "strict": {name for name, turn in TURNS.items() if [m["role"] for m in turn[2]] == ["user"]},
    "deaf": {name for name, turn in TURNS.items() if not turn[1].get("tool_calls") or turn[1]["content"]},
    "return": set(),
}
"""Which turns each template can be pinned in; in all others the call must go the plain way."""


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_tail_is_right_or_there_is_none(name, turn):
    history, reply, new = TURNS[turn]
    if turn not in RIGHT[name]:
        ended = Ended(sampled=encode(f"…{ENDS[name]}"), finish_reason="stop")
        with pytest.raises(Fallback):
            found(name, history, reply, new, ended=ended)
        return
    ended = ended_by(name, TEMPLATES[name].parts([*history, reply, *new]), len(history), reply)
    tail = found(name, history, reply, new)
    assert tail.ids.tolist() == expected(name, history, reply, new, ended).tolist()
    assert tail.plain.tolist() == TEMPLATES[name].render([*history, reply, *new]).tolist()


texts = st.text(st.sampled_from("ab<>|_/\n Zq7"), max_size=12) | st.sampled_from(["<im_end>", "<end>\n", "Zebra", ""])
replies = st.builds(said, texts) | st.lists(st.sampled_from(["look", "read"]), min_size=1, max_size=2).map(
    lambda names: called(*names)
)


@st.composite
def conversations(draw):
    messages = [SYSTEM] if draw(st.booleans()) else []
    messages.append(user(draw(texts)))
    for _ in range(draw(st.integers(1, 4))):
        reply = draw(replies)
        messages.append(reply)
        messages += [tool(draw(texts), n) for n in range(len(reply.get("tool_calls", [])))]
        if not reply.get("tool_calls") or draw(st.booleans()):
            messages.append(user(draw(texts)))
    place = draw(st.sampled_from([i for i, m in enumerate(messages) if m["role"] == "assistant"]))
    return messages[:place], messages[place], messages[place + 1 :]


@given(st.sampled_from(sorted(TEMPLATES)), conversations())
def test_nothing_wrong_is_accepted(name, turn):
    history, reply, new = turn
    try:
        parts = TEMPLATES[name].parts([*history, reply, *new])
    except RefusalError:
        parts = None
    if parts is None:
        with pytest.raises(Fallback):
            found(name, history, reply, new, ended=Ended(sampled=encode("…<im_end>"), finish_reason="stop"))
        return
    ended = ended_by(name, parts, len(history), reply)
    try:
        tail = found(name, history, reply, new)
    except Fallback:
        return
    assert tail.ids.tolist() == expected(name, history, reply, new, ended).tolist()


@pytest.mark.parametrize("name", ["chatml", "thinking", "counted"])
def test_a_reply_that_was_cut_is_closed_by_us(name):
    history, reply, new = [user("hi")], said("it goes on and"), [user("go on")]
    cut = Ended(sampled=encode("it goes on and"), finish_reason="length")
    tail = found(name, history, reply, new, ended=cut)
    parts = TEMPLATES[name].parts([*history, reply, *new])
    closing = parts[1][parts[1].index("and") + 3 :]
    wanted = encode(closing + "".join(parts[2:]) + TEMPLATES[name]._opening)
    assert tail.ids.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("ended", "reply", "reason"),
    [
        (Ended(sampled=encode(""), finish_reason="stop"), said("a"), "empty-sample"),
        (Ended(sampled=encode("a"), finish_reason="length"), called("look"), "length-in-tool-call"),
        (Ended(sampled=encode("a"), finish_reason="abort"), said("a"), "finish-abort"),
        (Ended(sampled=encode("a"), finish_reason=None), said("a"), "finish-abort"),
        (Ended(sampled=encode("a"), finish_reason="stop", stop_reason="</x>"), said("a"), "stop-string"),
        (Ended(sampled=encode("a"), finish_reason="stop", stop_reason=97), said("a"), "end-token-mismatch"),
    ],
)
def test_how_a_reply_ended_decides(ended, reply, reason):
    with pytest.raises(Fallback) as why:
        found("chatml", [user("hi")], reply, [user("go on")], ended=ended)
    assert why.value.reason == reason


def test_nothing_behind_the_reply_is_nothing_new():
    with pytest.raises(Fallback, match="nothing-new"):
        found("chatml", [user("hi")], said("hello"), [])


def test_closings_are_learnt_once():
    closings = Closings()
    template = TEMPLATES["chatml"]
    before = template.asked
    found("chatml", *TURNS["plain"], closings=closings)
    first = template.asked - before
    found("chatml", [user("other")], said("words"), [user("and more")], closings=closings)
    assert (first, template.asked - before - first) == (5, 3)


def test_closings_are_bounded():
    closings = Closings(most=2)
    for key in "abc":
        closings.put(key, encode(key))
    assert closings.get("a") is None
    assert closings.get("c") is not None


@pytest.mark.parametrize(
    ("fields", "messages", "reason"),
    [
        ({}, [user("hi")], "first-turn"),
        ({"continue_final_message": True}, [user("a"), said("b")], "odd-flags"),
        ({"add_generation_prompt": False}, [user("a"), said("b")], "odd-flags"),
        ({"truncate_prompt_tokens": 10}, [user("a"), said("b")], "odd-flags"),
        ({"echo": True}, [user("a"), said("b")], "odd-flags"),
        ({"kv_transfer_params": {"x": 1}}, [user("a"), said("b")], "kv-params-taken"),
        ({}, [{"role": "user", "content": [{"type": "image_url"}]}, said("b"), user("c")], "non-text"),
        ({"kv_transfer_params": None}, [user("a"), said("b"), user("c")], None),
        ({}, [{"role": "user", "content": [{"type": "text", "text": "a"}]}, said("b"), user("c")], None),
    ],
)
def test_what_can_not_be_pinned_whatever_it_goes_on_from(fields, messages, reason):
    assert odd(fields, messages) == reason
