"""A call's life, from the request's leaving to the end of the engine's answer. Sans-I/O.

Rules
1. The table `LIFE` is the whole of it: a state and an event give the next state; a pair that isn't there is the error
   `UnknownTransition`, and nothing has changed.
2. What the client gets is decided here, byte by byte: `feed` returns what may leave at once, `release`, after the
   record is committed, what was held. Every byte leaves by one of the two, at most once, in order.
3. Nothing is invented. A reply that broke is never given a clean end (`clean`), since agents keep half a reply for a
   whole one when it ends cleanly.

Theory of operation
The end of a reply is the first event by which a client can take it as finished: the finish of the last choice, or
`[DONE]` where no finish came. From there on everything is held, since usage, and some engines' ids, come behind it, and
the trainer must be able to read the call before the agent can act on it. A finish `abort` (vLLM pausing or shutting
down) is a broken reply however tidily it ends: it is held, and stays held unless aborts are to be relayed.

An event is relayed when it is complete, never in part: half an event is of no use to a client, and what capture asked
for must be cut out of it first. How the network cut the bytes therefore changes nothing.

    waiting ─▶ answering ─▶ relaying ─▶ finished ─▶ ended ─▶ released
                  │            ├─▶ closing ([DONE] without a finish)
                  │            ├─▶ aborting (a finish `abort`)
                  │            └─▶ failing (an error object in the stream) ─▶ failed
                  └─ a whole reply ─▶ ended
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

from capture import rawjson, sse
from capture.dialects.base import Request, Translator
from capture.dialects.express import Express, Lane, PlainLane, maybe_express
from capture.engines.base import Choice, Reader, Seen
from graph.records import Status

State = Literal[
    "waiting", "answering", "refused", "relaying", "finished", "closing", "aborting", "failing", "failed",
    "ended", "released",
]  # fmt: skip
Step = Literal[
    "answer", "refusal", "bytes", "whole", "finish", "abort", "done", "error", "eof", "cut", "hang_up", "stop",
    "release",
]  # fmt: skip

MAX_MESSAGE = 2000
"""Characters kept of an engine's error message: a proxy's HTML page says all that it has to say in fewer."""

_GONE: dict[Step, State] = {"cut": "ended", "hang_up": "ended", "stop": "ended"}
_OVER: dict[Step, State] = {"eof": "ended", **_GONE}


def _holding(state: State) -> dict[Step, State]:
    """Return the steps of a state in which all is held, and that only the end of the stream leaves."""
    return {"bytes": state, "finish": state, "abort": state, "done": state, "error": state, **_OVER}


LIFE: dict[State, dict[Step, State]] = {
    # The request has left; no answer yet.
    "waiting": {"answer": "answering", "refusal": "refused", **_GONE},
    # The engine said 2xx.
    "answering": {"bytes": "relaying", "whole": "ended", **_OVER},
    # The engine said something else; its body is on its way.
    "refused": {"whole": "ended", **_GONE},
    # Events pass as they come.
    "relaying": {
        "bytes": "relaying",
        "finish": "finished",
        "abort": "aborting",
        "done": "closing",
        "error": "failing",
        **_OVER,
    },
    # The last choice has finished. A client that leaves now has been served as far as sampling goes: the rest is read.
    "finished": {**_holding("finished"), "hang_up": "finished"},
    # `[DONE]` came and no finish.
    "closing": _holding("closing"),
    # A choice finished with `abort`.
    "aborting": _holding("aborting"),
    # An error object came; it passed, and so does what follows, up to an end of any kind.
    "failing": {
        "bytes": "failing",
        "finish": "failed",
        "abort": "failed",
        "done": "failed",
        "error": "failing",
        **_OVER,
    },
    # The end of a stream with an error in it.
    "failed": _holding("failed"),
    # The engine's side is over: the record can be made. An end may be told twice, and a client may leave late.
    "ended": {"eof": "ended", "hang_up": "ended", "release": "released"},
    # The held bytes were given out.
    "released": {"hang_up": "released"},
}

_HOLDING: frozenset[State] = frozenset({"finished", "closing", "aborting", "failed"})


class UnknownTransition(RuntimeError):  # noqa: N818 - named for what it is, as the table's rule has it
    """An event that the state has no place for: a fault of the caller's."""


class Recorder:
    """One call: fed with what the engine sends, read for what the client gets and for how it ended."""

    def __init__(
        self, request: Request, reader: Reader, *, translator: Translator | None = None, relay_abort: bool = False
    ) -> None:
        """With a `translator` the client gets its dialect of what the reader lets through.

        With `relay_abort` a finish `abort` passes on as the engine sent it; the call is `aborted` all the same.
        """
        self.state: State = "waiting"
        # Milliseconds from the request's arrival at the first sampled token, None while none came.
        self.first_token_ms: float | None = None
        # `{"blame": "client|engine|treering", "status", "message"}` of a call that did not end well.
        self.error: dict[str, Any] | None = None
        self._request = request
        self._reader = reader
        self._translator = translator
        # Why the reply couldn't be translated, None if it could: nothing more of it reaches the client.
        self.untranslatable: str | None = None
        self._relay_abort = relay_abort
        self._decoder = sse.Decoder()
        # The reader's short way, where it has one; of a translated stream, the one to its translator.
        self._express: Callable[[bytes], tuple[bytes, bool] | None] | None = (
            getattr(reader, "express", None) if translator is None else maybe_express(reader, translator, self.failed)
        )
        self._lane: Callable[[], Lane | None] | None = getattr(reader, "maybe_lane", None)
        # The choices that a reader has met, where it can say so cheaply.
        self._indices: Callable[[], Iterable[int]] | None = getattr(reader, "indices", None)
        self._answer_status: int | None = None
        self._finished: dict[int, str] = {}
        self._held: list[bytes] = []
        # The held finish: its place, the event, and the client's data of it.
        self._finish: tuple[int, sse.Event, bytes] | None = None
        self._n_relayed = 0
        # The state that the engine's side ended in, and the step that ended it.
        self._last: tuple[State, Step] | None = None
        self._gone = False
        # A 2xx whose whole body is an error object.
        self._broken_body = False
        self._at_ms = 0.0

    def __repr__(self) -> str:
        held = sum(map(len, self._held))
        return f"<Recorder {self.state} {self.status} relayed={self._n_relayed} held={held} clean={self.clean}>"

    @property
    def finish_seen(self) -> bool:
        """True once every choice has finished properly: what was asked for has been sampled in full."""
        return self.state == "finished" or (self._last is not None and self.status == "complete")

    @property
    def status(self) -> Status:
        """How the engine's side ended; `running` while it has not."""
        if self._last is None:
            return "running"
        state, step = self._last
        if state == "finished" or (step == "whole" and self.error is None):
            return "complete"
        if state in ("failing", "failed", "refused") or (state, step) == ("waiting", "cut") or self._broken_body:
            return "error"
        return "stopped" if step == "stop" else "aborted"

    def status_of(self, choice: Choice) -> Status:
        """Return how one choice of several ended: a call that broke may hold some that had finished."""
        if self.status == "aborted" and choice.finish_reason not in (None, "abort"):
            return "complete"
        return self.status

    @property
    def clean(self) -> bool:
        """True if the client may get a clean end: the engine gave one, and the reply is none that broke."""
        if self._last is None or self._gone or self.untranslatable:
            return False
        state, step = self._last
        if self._aborted and not self._relay_abort:
            return False
        if step == "whole":
            return True
        return (step == "eof" and state in _HOLDING) or (step == "stop" and state == "finished")

    @property
    def refuse(self) -> bool:
        """True if the reply was aborted before any of it was relayed: the client is told 503 and to try again."""
        return self._last is not None and self._aborted and not self._relay_abort and self._n_relayed == 0

    def answered(self, status: int) -> None:
        """Take the engine's status line."""
        self._step("answer" if status < 300 else "refusal")
        self._answer_status = status

    def feed(self, data: bytes, at_ms: float) -> bytes:
        """Take the next bytes of the stream, at a time in milliseconds; return the bytes to relay now."""
        # The ordinary token, in one step: it is relayed in this state, and leads to no other.
        if self._express is not None and self.state == "relaying" and self._decoder.at_border:
            try:
                quick = self._express(data)
            except Exception as error:  # noqa: BLE001 - as in `_read`
                self.failed(error)
                quick = data, False
            if quick is not None:
                relayed, sampled = quick
                if sampled and self.first_token_ms is None:
                    self.first_token_ms = at_ms
                self._n_relayed += len(relayed)
                return relayed
        self._step("bytes")
        self._at_ms = at_ms
        events = self._decoder.feed(data)
        relayed = self._take(events[0]) if len(events) == 1 else b"".join([self._take(event) for event in events])
        self._n_relayed += len(relayed)
        return relayed

    def maybe_lane(self) -> Lane | None:
        """Return the short way of `feed` for what comes next, where there is one; it serves until it says None.

        It says what to relay, without a look at the time: a first token goes the long way. Anything that isn't an
        ordinary token's event gives None, and has changed nothing.
        """
        if self.state != "relaying" or self.first_token_ms is None or not self._n_relayed:
            return None
        if not self._decoder.at_border:
            return None
        if self._translator is None and self._lane is not None:
            return self._lane()
        express = self._express
        if express is None:
            return None
        if isinstance(express, Express):
            # Not by itself: it must not be asked of an event that `feed` asks it of again.
            return express.maybe_lane()

        def way(data: bytes) -> bytes | None:
            quick = express(data)
            return None if quick is None else quick[0]

        return PlainLane(way)

    def whole(self, body: bytes, at_ms: float) -> None:
        """Take a whole body, at a time in milliseconds; `release` gives what the client gets of it.

        An error's body passes as it is, unread by the reader.
        """
        self._at_ms = at_ms
        self._end("whole")
        if self._last == ("refused", "whole"):
            shown = body if self._translator is None else self._translate(self._translator.failed, self._status, body)
            self._held.append(shown)
            self.error = self._refusal(_message(body))
            return
        seen = self._read(self._reader.whole, body)
        self._finished.update(seen.finished)
        self._note(seen)
        self._broken_body = self.error is not None
        shown = body if seen.data is None else seen.data
        if self._translator is not None:
            if self._broken_body:
                shown = self._translate(self._translator.failed, 500, shown)
            elif seen.finished:
                shown = self._translate(self._translator.whole, shown)
        self._held.append(shown)
        if self.error is None and (self._aborted or not seen.finished):
            why = "the engine aborted the reply" if self._aborted else "the engine's reply has no finish"
            self.error = _blamed("engine", None, why)

    def eof(self) -> None:
        """Take the end of the engine's stream, as tidy as HTTP could tell."""
        if self.state != "ended" and "eof" in LIFE[self.state]:
            self._drain()
            if self._translator is not None and self.state in _HOLDING:
                self._held.append(self._translate(self._translator.end))
        self._end("eof")
        if self.status == "aborted" and self.error is None:
            why = "the engine aborted the reply" if self._aborted else "the engine's stream ended without a finish"
            self.error = _blamed("engine", None, why)

    def cut(self, why: str) -> None:
        """Take a break of the engine's connection."""
        self._end("cut")
        if self.status != "complete" and self.error is None:
            self.error = _blamed("engine", self._answer_status if self.status == "error" else None, why)

    def hang_up(self) -> None:
        """Take the client's leaving. After the finish the rest may still be fed, and goes nowhere."""
        self._end("hang_up")
        self._gone = True
        if self.error is None and self.status == "error":
            self.error = self._refusal("the client closed the connection before the engine's error was read")
        elif self.error is None and self.status == "aborted":
            self.error = _blamed("client", None, "the client closed the connection")

    def stopped(self, why: str) -> None:
        """Take our own decision to read no further: a limit, or the end of the time for what follows a finish."""
        self._end("stop")
        if self.status != "complete" and self.error is None:
            self.error = _blamed("treering", None, why)

    def release(self) -> bytes:
        """Return the bytes that were held, once, after the record is committed.

        Nothing comes when the reply was aborted, or broke before its finish, or the client is gone.
        """
        self._step("release")
        held, self._held = self._held, []
        assert self._last is not None
        if self._gone or self.untranslatable or not (self.clean or self._last[0] == "finished"):
            return b""
        return b"".join(held)

    @property
    def _aborted(self) -> bool:
        return "abort" in self._finished.values()

    def _all_finished(self) -> bool:
        """Say if no choice is left running, whether or not the engine gave as many as were asked for."""
        if not self._finished:
            return False
        # To put all together that they brought would cost as much as the rest of a call.
        met = self._indices() if self._indices is not None else [choice.index for choice in self._reader.choices()]
        return all(index in self._finished for index in met)

    def _refusal(self, message: str) -> dict[str, Any]:
        status = self._answer_status or 0
        # 401 and 403 judge Treering's own key, 429 the engine's load; every other 4xx judges the request.
        client = 400 <= status < 500 and status not in (401, 403, 429)
        return _blamed("client" if client else "engine", status, message)

    def _step(self, step: Step) -> None:
        following = LIFE[self.state].get(step)
        if following is None:
            raise UnknownTransition(f"{step!r} in state {self.state!r}")
        self.state = following

    def _end(self, step: Step) -> None:
        before = self.state
        self._step(step)
        if self.state == "ended" and before != "ended":
            self._last = (before, step)

    def _read(self, reader: Callable[[bytes], Seen], data: bytes) -> Seen:
        try:
            return reader(data)
        except Exception as error:  # noqa: BLE001 - recording never decides forwarding: a fault here costs the record
            self.failed(error)
            return Seen(data=data)

    def failed(self, error: Exception) -> None:
        """Note that recording failed; it costs the record, not the reply."""
        note = f"the reader failed: {type(error).__name__}: {error}"
        if note not in self._reader.undecoded:
            self._reader.undecoded.append(note)

    def _take(self, event: sse.Event) -> bytes:
        """Read one event; return its bytes for the client if they may leave now, else hold them."""
        # A comment of the engine's own passes where the client gets the engine's own stream.
        raw = event.raw if self._translator is None else b""
        if event.data is not None:
            seen = self._read(self._reader.event, event.data)
            # First where it leads, then its own bytes: the finish itself is held.
            self._follow(seen)
            self._note(seen)
            if self._translator is not None:
                raw = b"" if seen.data is None else self._translate(self._translator.event, seen.data)
            elif seen.data is not event.data:
                raw = sse.with_data(event, seen.data)
            if seen.moved and self._finish is not None:
                at, finish, data = self._finish
                self._held[at] = sse.with_data(finish, rawjson.join(rawjson.split(data) | seen.moved))
            if seen.finished and seen.data is not None and self.state in _HOLDING and self._translator is None:
                self._finish = len(self._held), event, seen.data
        if self.state in _HOLDING:
            self._held.append(raw)
            return b""
        return raw

    def _translate(self, work: Callable[..., bytes], *given: Any) -> bytes:
        if self.untranslatable is not None:
            return b""
        try:
            return work(*given)
        except Exception as error:  # noqa: BLE001 - a reply that is none: broken off, and said, whatever it broke
            self.untranslatable = f"the engine's reply can't be translated: {type(error).__name__}: {error}"
            self.error = _blamed("engine", self._answer_status, self.untranslatable)
            return b""

    @property
    def _status(self) -> int:
        return self._answer_status or 500

    def _follow(self, seen: Seen) -> None:
        if not (seen.finished or seen.done or seen.error is not None):
            return
        self._finished.update(seen.finished)
        if seen.error is not None:
            self._step("error")
        if any(reason == "abort" for _, reason in seen.finished):
            self._step("abort")
        elif (seen.finished and len(self._finished) >= self._request.choices) or (seen.done and self._all_finished()):
            self._step("finish")
        if seen.done:
            self._step("done")

    def _note(self, seen: Seen) -> None:
        if seen.sampled and self.first_token_ms is None:
            self.first_token_ms = self._at_ms
        if seen.error is not None and self.error is None and self.state != "finished":
            self.error = _blamed("engine", self._answer_status, seen.error)

    def _drain(self) -> None:
        """Take what the decoder still has when the stream ends.

        A last event without its blank line counts if it can be read; one that was cut off does not, and is left out:
        a client would drop it too, and it may hold what capture asked for.
        """
        events = self._decoder.end()
        last = self._decoder.last()
        if last is not None:
            if last.data is None or last.data.strip() == b"[DONE]" or _readable(last.data):
                events.append(last)
            else:
                self._reader.undecoded.append(f"the stream ended inside an event, after {len(last.raw)} bytes of it")
        for event in events:
            if raw := self._take(event):
                self._held.append(raw)
        if self.state == "relaying" and self._all_finished():
            self._step("finish")


def _readable(data: bytes) -> bool:
    try:
        rawjson.split(data)
    except ValueError:
        return False
    return True


def _blamed(blame: str, status: int | None, message: str) -> dict[str, Any]:
    return {"blame": blame, "status": status, "message": message}


def _message(body: bytes) -> str:
    """Return what an error's body says, for the record: `error.message`, `error`, `message`, `detail`, or its start."""
    try:
        said = rawjson.loads(body)
    except ValueError:
        said = body.decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and name in said:
            said = said[name]
    text = said if isinstance(said, str) else json.dumps(said)
    return str(rawjson.mended(text[:MAX_MESSAGE]))
