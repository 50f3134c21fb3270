"""A call's record while it is being made."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from capture.admission import Admitted, Rules, admit
from capture.dialects.chat import Chat
from capture.dialects.messages import Messages
from capture.digests import digest
from capture.draft import SLIM_FROM, Draft
from capture.engines.vllm import Vllm
from capture.errors import EngineError
from capture.recorder import Recorder
from capture.store.base import Delta
from tests.engine import PROMPT, STREAM, chunk, event, usage_chunk, whole
from tests.house import ASK


def draft(**asked: Any) -> Draft:
    """A draft whose request has just been sent."""
    body = json.dumps({**ASK, **asked}).encode()
    live: Any = SimpleNamespace(id="r")
    made = Draft(
        live=live, n=4, arrived=7, started_at="t", start=0.0, dialect="chat", body=body, hints={"x-session-id": "s"}
    )
    made.request = Chat().read(body)
    made.admitted = Admitted(body=b'{"sent":1}', sampling={"temperature": 1.0}, reply_model=None)
    made.engine = "vllm=http://e"
    made.reader = Vllm().reader(made.request)
    made.recorder = Recorder(made.request, made.reader)
    return made


def test_a_running_call_says_what_was_asked() -> None:
    call = draft(temperature=0.5).running()
    assert (call.n, call.status, call.arrived, call.ended, call.delivered) == (4, "running", 7, None, None)
    assert (call.sampling_asked["temperature"], call.sampling_sent) == (0.5, {"temperature": 1.0})
    assert (call.hints, call.engine, call.model_asked) == ({"x-session-id": "s"}, "vllm=http://e", "tiny")
    assert [message.text for message in call.messages] == ["Hello"]
    assert call.prompt_ids is None


def test_an_ended_stream_becomes_a_record() -> None:
    made = draft(stream=True)
    made.recorder.answered(200)
    for piece in STREAM:
        made.recorder.feed(piece, 12.0)
    made.recorder.eof()
    (record,) = made.records(ended=8, delivered=None, delta=Delta(holder=1, shared=2))
    call = record.call
    assert (call.status, call.id, call.finish_reason, call.ended) == ("complete", "chatcmpl-1", "stop", 8)
    assert call.prompt_ids.tolist() == PROMPT
    assert call.sampled_ids.tolist() == [5, 6, 7]
    assert (call.prompt_ids.dtype, call.logprobs.dtype) == (np.int32, np.float32)
    assert (call.usage_prompt, call.usage_sampled, call.first_token_ms) == (4, 3, 12.0)
    assert (record.delta, record.exchange.sent) == (Delta(holder=1, shared=2), b'{"sent":1}')
    assert json.loads(record.exchange.reply)["choices"][0]["message"]["content"] == "Hello"
    assert record.exchange.error is None


def test_a_spool_holds_what_has_come() -> None:
    made = draft(stream=True)
    assert made.spool() is None
    made.recorder.answered(200)
    made.recorder.feed(STREAM[0] + STREAM[1], 1.0)
    spool = made.spool()
    assert (spool.prompt_ids.tolist(), spool.sampled_ids.tolist(), spool.logprobs.tolist()) == (PROMPT, [5], [-0.5])


@pytest.mark.parametrize(("counted", "expected"), [(5, [2, 3]), (6, [3, 3]), (4, [1, 3])])
def test_usage_counts_all_choices_together_and_a_gap_shows_on_the_first(counted: int, expected: list[int]) -> None:
    made = draft(stream=True, n=2)
    made.recorder.answered(200)
    for piece in (
        chunk(role=True), chunk(5, 6, finish="stop"), chunk(7, 8, 9, finish="stop", index=1), usage_chunk(counted),
    ):  # fmt: skip
        made.recorder.feed(event(piece), 1.0)
    made.recorder.eof()
    records = made.records(ended=8, delivered=None, delta=None)
    assert [record.call.usage_sampled for record in records] == expected
    assert [(record.call.n, record.call.choice) for record in records] == [(4, 0), (5, 1)]
    assert made.numbers == [4, 5]


def test_a_failure_is_recorded_with_its_blame() -> None:
    made = draft()
    made.fail(EngineError("engine_unreachable", "It is down."))
    (record,) = made.records(ended=8, delivered=None, delta=None)
    assert (made.status, record.call.status, record.call.id) == ("error", "error", None)
    assert record.exchange.error == {"blame": "engine", "status": 502, "message": "It is down."}
    assert made.numbers == [4]


def test_a_last_reply_is_a_stop() -> None:
    made = draft()
    made.reader = made.recorder = None
    made.stop_reply = ("chatcmpl-stop-1", b'{"a":1}')
    (record,) = made.records(ended=8, delivered=None, delta=None)
    assert (record.call.status, record.call.id, record.exchange.reply) == ("stopped", "chatcmpl-stop-1", b'{"a":1}')


def test_the_log_line_has_numbers_and_no_content() -> None:
    made = draft()
    made.recorder.answered(200)
    made.recorder.whole(json.dumps(whole([5, 6, 7], text="SECRET TEXT")).encode(), 3.0)
    made.records(ended=8, delivered=None, delta=None)
    line = made.line()
    assert (line["rollout"], line["call"], line["prompt"], line["sampled"]) == ("r", 4, 4, 3)
    assert "SECRET" not in str(line)
    assert "Hello" not in str(line)


def test_a_translated_request_is_handed_over_as_it_was_taken_apart() -> None:
    made = draft()
    said = [{"role": "user", "content": "Hello"}]
    made.request = Messages().read(json.dumps({"model": "m", "max_tokens": 5, "messages": said}).encode())
    made.translator = Messages().translator(made.request)
    parts = made.parts()
    assert parts is not None
    assert (parts.key, list(map(json.loads, parts.elements)), parts.messages) == ("messages", said, ())
    assert parts.names == [digest(raw) for raw in parts.elements]
    # One that the long way read was not.
    made.request = msgspec.structs.replace(made.request, own=None)
    assert made.parts() is None


HELLO = {"role": "user", "content": "Hello"}


def long_draft(dialect: Any = Chat, **asked: Any) -> Draft:
    """A draft of a long request, sent as admission has it."""
    made = draft()
    body = json.dumps({"model": "tiny", "max_tokens": 5, **asked, "messages": [HELLO] * (SLIM_FROM // 20)}).encode()
    request = dialect().read(body)
    made = Draft(live=made.live, n=4, arrived=7, started_at="t", start=0.0, dialect="chat", body=body, hints={})
    made.request = request
    made.translator = dialect().translator(request)
    made.admitted = admit(request, Vllm(), Rules(), served=("m",), rollout="r", n=4)
    return made


@pytest.mark.parametrize("dialect", [Chat, Messages])
def test_bodies_that_were_let_go_of_are_put_together_again(dialect: Any) -> None:
    made = long_draft(dialect)
    body, sent, parts, sent_parts = made.body, made.sent, made.parts(), made.sent_parts()
    assert sent is not None
    assert json.loads(sent) != json.loads(body)
    gone = [sys.getrefcount(made.body), sys.getrefcount(made.admitted.body)]
    made.slim()
    made.slim()
    assert [sys.getrefcount(body), sys.getrefcount(sent)] == [each - 1 for each in gone]
    assert (json.loads(made.body), made.sent) == (json.loads(body), sent)
    assert list(json.loads(made.body)) == list(json.loads(body))
    assert (made.size, made.parts(), made.sent_parts()) == (len(body), parts, sent_parts)
    made.in_line = True
    assert made.sent is None


def test_bodies_of_what_nobody_could_take_apart_are_kept() -> None:
    for made in (long_draft(temperature=float("nan")), draft()):
        body = made.body
        made.slim()
        assert made.body is body
