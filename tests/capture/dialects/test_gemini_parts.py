"""One candidate from deltas and from a message: the same in the end."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects.gemini_parts import Candidate
from capture.dialects.gemini_signature import sign

HM = {"thoughtSignature": sign("Hm.")}


def piece(index: int, **call: Any) -> dict[str, Any]:
    """A delta with a piece of a tool call."""
    function = {name: call.pop(name) for name in ("name", "arguments") if name in call}
    return {"tool_calls": [{"index": index, "function": function, **call}]}


def part(id_: str, name: str, args: Any, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"id": id_, "name": name, "args": args}, **more}


def fed(*deltas: dict[str, Any], thoughts: bool = True) -> tuple[list[list[dict[str, Any]]], Candidate]:
    """The parts that each delta shows, and what is left for the finish."""
    candidate = Candidate(0, "chatcmpl-1", thoughts=thoughts)
    shown = [candidate.take(delta) for delta in deltas]
    return [*shown, candidate.rest()], candidate


@pytest.mark.parametrize(
    ("deltas", "shown"),
    [
        ([{"role": "assistant", "content": ""}, {"content": "Hi"}], [[], [{"text": "Hi"}], [{"text": ""}]]),
        ([], [[{"text": ""}]]),
        ([{"reasoning": "H"}, {"reasoning_content": "m."}, {"content": "Hi"}],
         [[{"text": "H", "thought": True}], [{"text": "m.", "thought": True}], [{"text": "Hi"}], [{"text": "", **HM}]]),
        # Under both names it is one thought.
        ([{"reasoning": "Hm.", "reasoning_content": "Hm."}],
         [[{"text": "Hm.", "thought": True}], [{"text": "", **HM}]]),
        ([{"refusal": "No."}], [[{"text": "No."}], [{"text": ""}]]),
        # A call waits for its end, and that of one is the beginning of the next.
        ([piece(0, id="a", name="f", arguments=""), piece(0, arguments='{"x"'), piece(0, arguments=":1}"),
          piece(1, id="b", name="g", arguments="{}")],
         [[], [], [], [part("a", "f", {"x": 1})], [part("b", "g", {})]]),
        # One without arguments may yet get some.
        ([piece(0, id="a", name="f"), piece(1, id="b", name="g", arguments="{}")],
         [[], [], [part("a", "f", {}), part("b", "g", {})]]),
        ([piece(0, id="a", name="f", arguments="{}"), {"content": "Hi"}],
         [[], [part("a", "f", {}), {"text": "Hi"}], [{"text": ""}]]),
        ([piece(0, id="a", name="f", arguments='{"x"'), {"content": "Hi"}, piece(0, arguments=":1}")],
         [[], [{"text": "Hi"}], [], [part("a", "f", {"x": 1})]]),
        # Two calls on one index, as engines have sent them.
        ([piece(0, id="a", name="f", arguments="{}"), piece(0, id="b", name="g", arguments="{}")],
         [[], [part("a", "f", {})], [part("b", "g", {})]]),
        # The name with each piece, arguments as an object, null.
        ([piece(0, id="a", name="f", arguments="{"), piece(0, name="f", arguments="}")],
         [[], [], [part("a", "f", {})]]),
        ([piece(0, id="a", name="f", arguments={"x": 1})], [[], [part("a", "f", {"x": 1})]]),
        ([piece(0, id="a", name="f", arguments="null")], [[], [part("a", "f", {})]]),
        ([piece(0, id="a", name="f", arguments=" ")], [[], [part("a", "f", {})]]),
        ([piece(0, id="a", name="f", arguments="[1]")], [[], [part("a", "f", {"__unparsed_arguments": "[1]"})]]),
        ([piece(0, id="a", name="f", arguments='{"x"')], [[], [part("a", "f", {"__unparsed_arguments": '{"x"'})]]),
        # The thought is sealed into the first call alone.
        ([{"reasoning": "Hm."}, piece(0, id="a", name="f"), piece(1, id="b", name="g")],
         [[{"text": "Hm.", "thought": True}], [], [], [part("a", "f", {}, **HM), part("b", "g", {})]]),
    ],
)  # fmt: skip
def test_what_is_shown_and_when(deltas: list[dict[str, Any]], shown: list[list[dict[str, Any]]]) -> None:
    assert fed(*deltas)[0] == shown


def test_thoughts_are_kept_from_who_did_not_ask() -> None:
    shown, candidate = fed({"reasoning": "Hm."}, {"content": "Hi"}, thoughts=False)
    assert shown == [[], [{"text": "Hi"}], [{"text": "", **HM}]]
    assert candidate.whole()["content"]["parts"] == [{"text": "Hi", **HM}]
    assert fed({"reasoning": "Hm."}, thoughts=False)[1].whole()["content"]["parts"] == [{"text": "", **HM}]


def test_a_call_without_an_id_gets_one() -> None:
    (first, second) = fed(piece(0, name="f"), piece(1, name="f"))[0][-1]
    assert first["functionCall"]["id"] != second["functionCall"]["id"]
    assert fed(piece(0, name="f"), piece(1, name="f"))[0][-1] == [first, second]


def test_a_piece_behind_its_end_is_no_reply() -> None:
    candidate = Candidate(0, "", thoughts=True)
    candidate.take(piece(0, id="a", name="f", arguments="{}"))
    candidate.take({"content": "Hi"})
    assert candidate.take(piece(0, arguments="\n")) == []
    with pytest.raises(ValueError, match="after what followed it"):
        candidate.take(piece(0, arguments='{"y":2}'))


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("stop", {"finishReason": "STOP"}),
        ("tool_calls", {"finishReason": "STOP"}),
        ("length", {"finishReason": "MAX_TOKENS"}),
        ("content_filter", {"finishReason": "SAFETY"}),
        ("abort", {"finishReason": "OTHER", "finishMessage": "abort"}),
        (None, {}),
        ("", {}),
    ],
)
def test_finishes(reason: str | None, fields: dict[str, Any]) -> None:
    candidate = Candidate(0, "", thoughts=True)
    candidate.end({"finish_reason": reason})
    assert candidate.ending() == fields


def test_logprobs_go_with_the_next_chunk() -> None:
    candidate = Candidate(1, "", thoughts=True)
    one = {"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": [{"token": "H", "logprob": -0.5}]}
    candidate.score({"logprobs": {"content": [one]}})
    candidate.score({"logprobs": {"content": [{**one, "logprob": -1.5, "top_logprobs": []}]}})
    candidate.score({"logprobs": None})
    told = {
        "chosenCandidates": [{"token": "H", "logProbability": -0.5}, {"token": "H", "logProbability": -1.5}],
        "topCandidates": [{"candidates": [{"token": "H", "logProbability": -0.5}]}, {"candidates": []}],
    }
    content = {"parts": [{"text": "H"}], "role": "model"}
    assert candidate.shown([{"text": "H"}]) == {"content": content, "index": 1, "logprobsResult": told}
    assert candidate.shown([{"text": "H"}]) == {"content": content, "index": 1}
    candidate.end({"finish_reason": "stop"})
    assert candidate.ending() == {"finishReason": "STOP", "avgLogprobs": -1.0}
    assert candidate.whole()["logprobsResult"] == told


ARGUMENTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3).map(json.dumps)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g"]), ARGUMENTS), max_size=3)
CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=20)


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    return pieces


@given(st.text(max_size=12), st.text(max_size=12), CALLS, CUTS, st.booleans())
def test_a_stream_is_put_together_to_the_whole(
    thought: str, text: str, calls: list[tuple[str, str]], sizes: list[int], thoughts: bool
) -> None:
    made = [
        {"id": f"c{k}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for k, (name, arguments) in enumerate(calls)
    ]
    _, whole = fed({"role": "assistant", "content": text, "reasoning": thought, "tool_calls": made}, thoughts=thoughts)
    deltas = [{"reasoning": one} for one in cut(thought, sizes)] + [{"content": one} for one in cut(text, sizes)]
    for k, (name, arguments) in enumerate(calls):
        deltas.append(piece(k, id=f"c{k}", name=name))
        deltas += [piece(k, arguments=one) for one in cut(arguments, sizes)]
    shown, streamed = fed(*deltas, thoughts=thoughts)
    assert streamed.whole() == whole.whole()
    assert [one["functionCall"]["id"] for parts in shown for one in parts if "functionCall" in one] == [
        call["id"] for call in made
    ]
