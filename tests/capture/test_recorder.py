"""A call's life: as packet captures, through its table, and in any order of events at all."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capture import sse
from capture.recorder import LIFE, UnknownTransition
from tests.engine import PROMPT, STREAM, chunk, event, usage_chunk, whole
from tests.playbook import ALL, agent, committed, data_of, engine, play, reader_of, record, recorder, run

ROLE, TEXT, MORE, FINISH, USAGE, DONE = STREAM
ABORT = event(chunk(finish="abort"))
ERROR = event({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})
# -- packet captures


def test_a_stream_is_relayed_as_it_comes_and_its_end_waits_for_the_record() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE),
        agent.gets(ROLE),
        engine.sends(TEXT),
        agent.gets(TEXT),
        engine.sends(MORE[:30]),
        agent.gets_nothing,
        engine.sends(MORE[30:]),
        agent.gets(MORE),
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
    (hidden,) = data_of(TEXT)
    hidden["choices"][0] |= {"token_ids": None, "logprobs": None}
    play(
        recorder(stream=True),
        engine.answers(200),
        engine.sends(ROLE),
        agent.gets_json(chunk(role=True) | {"prompt_token_ids": None}),
        engine.sends(TEXT),
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
    relayed, held = run(call, [ROLE, TEXT, FINISH] + [DONE] * done)
    assert (call.status, call.clean) == ("complete", True)
    assert relayed + held == ROLE + TEXT + FINISH + DONE * done


def test_a_break_before_the_finish_breaks_the_agents_stream() -> None:
    call = play(
        recorder(**ALL),
        engine.answers(200),
        engine.sends(ROLE, TEXT),
        agent.gets(ROLE, TEXT),
        engine.sends(MORE[:-1]),
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
        engine.sends(ROLE, TEXT, FINISH),
        agent.gets(ROLE, TEXT),
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
        engine.sends(ROLE, TEXT),
        agent.gets(ROLE, TEXT),
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
        engine.sends(ROLE, TEXT),
        agent.gets(ROLE, TEXT),
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
        engine.sends(ROLE, TEXT, FINISH),
        agent.gets(ROLE, TEXT),
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
        engine.sends(ROLE, TEXT),
        agent.gets(ROLE, TEXT),
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
        engine.sends(ROLE, TEXT),
        agent.gets(ROLE, TEXT),
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
        engine.sends(ERROR, TEXT),
        agent.gets(ERROR, TEXT),
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
    run(call, [ROLE, TEXT, FINISH, ERROR])
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
    relayed, held = run(call, [ROLE + TEXT, FINISH + DONE[:-1]])
    assert (relayed, held) == (ROLE + TEXT, FINISH + DONE[:-1])
    assert (call.status, call.clean) == ("complete", True)
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + TEXT, FINISH[:-2]])
    assert (relayed, held, call.status) == (ROLE + TEXT, FINISH[:-2], "complete")
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + TEXT + FINISH + USAGE[:-9]])
    assert (relayed, held, call.status) == (ROLE + TEXT, FINISH, "complete")
    assert reader_of(call).undecoded == [f"the stream ended inside an event, after {len(USAGE) - 9} bytes of it"]
    # A CR that might have been half of a CR LF is a blank line when nothing more can come: the event was whole.
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + FINISH + b"data: oops\n\r"])
    assert (relayed, held) == (ROLE, FINISH + b"data: oops\n\r")
    call = recorder(**ALL)
    relayed, held = run(call, [ROLE + TEXT + FINISH[:-9]])
    assert (relayed, held, call.status, call.clean) == (ROLE + TEXT, b"", "aborted", False)


def test_comments_pass_as_comments() -> None:
    ping = b": ping\n\n"
    named = b": x\nid: 1\nevent: message\n" + TEXT
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


# -- any stream, cut anywhere; any order of events

EVENTS = {
    "role": ROLE,
    "text": TEXT,
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
    "crlf": TEXT.replace(b"\n", b"\r\n"),
    "cr": TEXT.replace(b"\n", b"\r"),
    "nan": TEXT.replace(b"-0.5", b"NaN"),
    "garbage": b"data: {oops\n\n",
    "named": b"event: x\nid: 3\n: c\n" + TEXT,
    "newline": b"\n",
    "half": TEXT[: len(TEXT) // 2],
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
