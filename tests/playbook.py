"""A call written down like a packet capture: what the engine sends, and what leaves for the agent, in order.

    play(
        recorder(stream=True),
        engine.answers(200),
        engine.sends(b"data: …"), agent.gets(b"data: …"),
        engine.sends(b"data: finish"), agent.gets_nothing,
        engine.ends,
        committed, agent.gets(b"data: finish"),
        agent.sees_a_clean_end,
    )

What an agent gets must be written down before the next step: bytes that nobody expected are an error.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from capture import sse
from capture.dialects.chat import Chat
from capture.engines.vllm import Vllm, VllmReader
from capture.recorder import Recorder

CASES = Path(__file__).parent / "cases"

USER = {"role": "user", "content": "hi"}

# A client that asks for all that capture asks for gets every byte as it came.
ALL: dict[str, Any] = {
    "stream": True, "return_token_ids": True, "logprobs": True, "stream_options": {"include_usage": True},
}  # fmt: skip


def body(**fields: Any) -> bytes:
    """A request's body: one user message, and what a test adds."""
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def recorder(*, model: str | None = None, relay_abort: bool = False, **fields: Any) -> Recorder:
    """A recorder of a call whose request has these fields, on vLLM."""
    request = Chat().read(body(**fields))
    return Recorder(request, Vllm().reader(request, model=model), relay_abort=relay_abort)


def reader_of(recorder: Recorder) -> VllmReader:
    """The reader behind a recorder."""
    reader = recorder._reader
    assert isinstance(reader, VllmReader)
    return reader


class Play:
    """What has left for the agent and was not yet written down."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.sent = b""
        self.now_ms = 0.0

    def __repr__(self) -> str:
        return f"<Play {self.recorder!r} unread={self.sent!r}>"


Step = Callable[[Play], None]


def play(recorder: Recorder, *steps: Step) -> Recorder:
    """Play the steps and return the recorder."""
    run = Play(recorder)
    for step in steps:
        if not getattr(step, "reads", False):
            assert run.sent == b"", f"the agent got what nobody wrote down: {run.sent!r}"
            run.now_ms += 10
        step(run)
    assert run.sent == b"", f"the agent got what nobody wrote down: {run.sent!r}"
    return recorder


def _reads(step: Step) -> Step:
    step.reads = True  # type: ignore[attr-defined] # a mark on a function, for `play`
    return step


class engine:  # noqa: N801 - reads as a name in a playbook
    """What the engine does."""

    @staticmethod
    def answers(status: int) -> Step:
        return lambda play: play.recorder.answered(status)

    @staticmethod
    def sends(*pieces: bytes) -> Step:
        def step(play: Play) -> None:
            for piece in pieces:
                play.sent += play.recorder.feed(piece, play.now_ms)

        return step

    @staticmethod
    def sends_whole(content: bytes | dict[str, Any]) -> Step:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        return lambda play: play.recorder.whole(raw, play.now_ms)

    @staticmethod
    def ends(play: Play) -> None:
        play.recorder.eof()

    @staticmethod
    def breaks(play: Play) -> None:
        play.recorder.cut("connection reset")


class agent:  # noqa: N801 - reads as a name in a playbook
    """What the agent gets and does."""

    @staticmethod
    def gets(*pieces: bytes) -> Step:
        @_reads
        def step(play: Play) -> None:
            assert play.sent == b"".join(pieces)
            play.sent = b""

        return step

    @staticmethod
    def gets_json(*forms: dict[str, Any] | str) -> Step:
        """As `gets`, by the meaning of the events' data."""

        @_reads
        def step(play: Play) -> None:
            assert data_of(play.sent) == list(forms)
            play.sent = b""

        return step

    @staticmethod
    @_reads
    def gets_nothing(play: Play) -> None:
        assert play.sent == b""

    @staticmethod
    @_reads
    def gets_whatever(play: Play) -> None:
        play.sent = b""

    @staticmethod
    @_reads
    def sees_a_clean_end(play: Play) -> None:
        assert play.recorder.clean

    @staticmethod
    @_reads
    def is_cut_off(play: Play) -> None:
        assert not play.recorder.clean

    @staticmethod
    def leaves(play: Play) -> None:
        play.recorder.hang_up()


def committed(play: Play) -> None:
    """The record is in the store: what was held leaves."""
    play.sent += play.recorder.release()


def data_of(stream: bytes) -> list[Any]:
    """The data of a stream's events, decoded; text where it is no JSON."""
    decoder = sse.Decoder()
    found: list[Any] = []
    for event in decoder.feed(stream):
        if event.data:
            try:
                found.append(json.loads(event.data))
            except ValueError:
                found.append(event.data.decode())
    assert decoder.rest == b""
    return found


def run(recorder: Recorder, reads: Iterable[bytes], *, close: str = "clean") -> tuple[bytes, bytes]:
    """Send a whole stream; return what left at once and what was released after the commit."""
    recorder.answered(200)
    relayed = b"".join(recorder.feed(read, 1.0) for read in reads)
    if close == "clean":
        recorder.eof()
    else:
        recorder.cut("connection reset")
    return relayed, recorder.release()


def case(number: int) -> dict[str, Any]:
    """A case by its number: a fault that users of such systems have met, with what is right."""
    (path,) = CASES.glob(f"{number}-*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def reads(found: dict[str, Any]) -> list[bytes]:
    """The network reads of a case's stream."""
    return [base64.b64decode(read) for read in found["upstream"]["network_chunks_b64"]]


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
