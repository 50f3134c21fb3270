"""A call's record while it is being made: what was asked and sent, and, at its end, the records for the store."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from capture import rawjson
from capture.admission import Admitted
from capture.dialects.base import Request, Translator
from capture.engines.base import Choice, Reader
from capture.errors import TreeringError
from capture.live import Live
from capture.pinning.pins import Try as Pinned
from capture.recorder import Recorder
from capture.retries import Try
from capture.store.base import Arrival, Delta, Exchange, Parts, Record, Spool, Start
from capture.upstream import Engine
from graph.records import Call, Status, Weights

if TYPE_CHECKING:
    from capture.passage import Passage


SLIM_FROM = 128 << 10
"""Bytes of a request from which its bodies are not kept while its reply comes: to put them together again takes some
0.1 ms a megabyte."""


class Draft:
    """One request on its way, from its arrival to its end."""

    def __init__(
        self,
        *,
        live: Live,
        n: int,
        arrived: int,
        started_at: str,
        start: float,
        dialect: str,
        body: bytes,
        hints: dict[str, str],
    ) -> None:
        """`n` is the number of the first choice; `arrived` a reading of the rollout's counter.

        `started_at` is the time of arrival for people, `start` the same on the monotonic clock, in seconds.
        """
        self.live = live
        self.n = n
        self.arrived = arrived
        self.started_at = started_at
        self.start = start
        self.dialect = dialect
        self._body: bytes | None = body
        # Its bytes.
        self.size = len(body)
        self.hints = hints
        self.request: Request | None = None
        self.admitted: Admitted | None = None
        # Those that may serve it, in order of preference; and the name of the one that does.
        self.engines: list[Engine] = []
        self.engine: str | None = None
        self.translator: Translator | None = None
        self.recorder: Recorder | None = None
        # What a retry of it is told by, once it runs.
        self.tried: Try | None = None
        self._passage: weakref.ref[Passage] | None = None
        self.reader: Reader | None = None
        # Its pin, or why it has none, in a rollout that asked for pinned prompts; and the tokens that it kept.
        self.pin: Pinned | None = None
        self.kept: int | None = None
        # The engine is being asked for the prompt's ids.
        self.inquiry: asyncio.Task[None] | None = None
        self.queued_ms: float | None = None
        # Seconds in line; from its arrival until it was sent, the line included; and from the end of what the engine
        # gave until the record was committed.
        self.waited_s = 0.0
        self.sent_after_s: float | None = None
        self.behind_s: float | None = None
        # It waits for a place at its engine, or left without one.
        self.in_line = False
        # The version of the engine's weights, as told, when the call began there and when it ended.
        self.weights = Weights()
        # What the store said when it arrived, where that is shared and so the one to say.
        self.arrival: Arrival | None = None
        # Its engine was held then, and it has not begun there yet.
        self.told_to_wait = False
        # Where calls are traced (`capture.tracing`).
        self.span: Any = None
        # A place under the rollout's limit is held for it.
        self.reserved = False
        # An end that didn't come from the engine's reply.
        self.failure: tuple[Status, TreeringError] | None = None
        self.stop_reply: tuple[str, bytes] | None = None
        # The limit that broke it off while it ran.
        self.cut_by: str | None = None
        self.ended_ms: float | None = None
        # What the choices brought in all, once the call has ended: asked for several times, and dear to put together.
        self._brought: list[Choice] | None = None

    @property
    def passage(self) -> Passage | None:
        """What carries the call, while anything does."""
        return None if self._passage is None else self._passage()

    @passage.setter
    def passage(self, passage: Passage) -> None:
        # Weakly, for it holds the draft: a request's megabytes are not left to the collector.
        self._passage = weakref.ref(passage)

    def __repr__(self) -> str:
        return f"<Draft {self.n} {self.recorder.state if self.recorder else 'not sent'}>"

    @property
    def body(self) -> bytes:
        """The request as it came; the same as JSON, once that was let go of."""
        if self._body is not None:
            return self._body
        assert self.request is not None
        return rawjson.join(self.request.fields if self.request.own is None else self.request.own.fields)

    def slim(self) -> None:
        """Let go of a long request's bodies, now that the engine has it: what they are put together from is kept.

        Of an agent's 100,000 tokens each is half a megabyte, for as long as the engine writes.
        """
        if self._body is None or self.size < SLIM_FROM or self.parts() is None:
            return
        assert self.admitted is not None
        self._body = None
        self.admitted = msgspec.structs.replace(self.admitted, body=b"")

    @property
    def sent(self) -> bytes | None:
        """What the engine was sent; None for a call that never left the line."""
        if self.admitted is None or self.in_line:
            return None
        return self.admitted.body or rawjson.join(self.admitted.fields)

    @property
    def status(self) -> Status:
        """How the call has ended; `running` while it hasn't."""
        if self.failure is not None:
            return self.failure[0]
        if self.stop_reply is not None:
            return "stopped"
        return self.recorder.status if self.recorder is not None else "running"

    def _status_of(self, choice: Choice) -> Status:
        """A choice that finished is complete even where another was broken off."""
        if self.failure is not None or self.recorder is None or choice.reply is None:
            return self.status
        return self.recorder.status_of(choice)

    def _choices(self) -> list[Choice]:
        if self._brought is not None:
            return self._brought
        return self.reader.choices() if self.reader is not None else []

    @property
    def numbers(self) -> list[int]:
        """The numbers of the choices that brought anything; the first's when none did."""
        return [self.n + choice.index for choice in self._choices()] or [self.n]

    @property
    def n_tokens(self) -> tuple[int, int]:
        """The tokens of the prompt and those sampled, all choices together; the engine's count where it gave no ids."""
        choices, reader = self._choices(), self.reader
        prompt = reader.prompt_ids if reader is not None else None
        usage = reader.usage if reader is not None else None
        given = [int(one.sampled_ids.size) for one in choices if one.sampled_ids is not None]
        return (
            (_count(usage, "prompt_tokens") or 0) if prompt is None else int(prompt.size),
            sum(given) if given else _count(usage, "completion_tokens") or 0,
        )

    @property
    def first_token_ms(self) -> float | None:
        """Milliseconds from its arrival to the first token, None while there is none."""
        at = self.recorder.first_token_ms if self.recorder is not None else None
        return None if at is None else round(at, 3)

    def is_told_to_wait(self, engine: Engine) -> bool:
        """Say whether the store told on its arrival that an engine is held."""
        state = self.arrival.engines.get(engine.name) if self.arrival is not None else None
        return state is not None and state.held

    def fail(self, error: TreeringError, *, status: Status = "error") -> None:
        """End the call with an error instead of a reply."""
        self.failure = status, error

    def running(self) -> Call:
        """Return the call as it stands at its start."""
        return self._call(Choice(index=0), "running", ended=None, ended_ms=None, delivered=None)

    def starting(self) -> Start:
        """Return the same for the store."""
        return Start(call=self.running(), request=self.body, parts=self.parts())

    def spool(self) -> Spool | None:
        """Return what the first choice has brought so far, None while there is nothing."""
        choices = self.reader.choices() if self.reader is not None else []
        if self.reader is None or not choices:
            return None
        first = choices[0]
        return Spool(prompt_ids=self.reader.prompt_ids, sampled_ids=first.sampled_ids, logprobs=first.logprobs)

    def records(self, *, ended: int | None, delivered: bool | None, delta: Delta | None) -> list[Record]:
        """Return the ended call's records, one for each choice that brought anything, and at least one.

        `ended` is a reading of the rollout's counter; None where the store gives it.
        """
        self.ended_ms = round((time.monotonic() - self.start) * 1000, 3)
        self._brought = self._choices()
        choices = self._brought or [Choice(index=0)]
        exchange = self._exchange()
        return [
            Record(
                call=self._call(
                    choice, self._status_of(choice), ended=ended, ended_ms=self.ended_ms, delivered=delivered
                ),
                exchange=exchange,
                delta=delta,
            )
            for choice in choices
        ]

    def line(self) -> dict[str, Any]:
        """Return the fields of the call's line in the log: numbers and names, never content."""
        reader = self.reader
        choices = self._choices()
        prompt = reader.prompt_ids if reader is not None else None
        return {
            "rollout": self.live.id,
            "call": self.n,
            "status": self.status,
            "dialect": self.dialect,
            "streamed": self.request.streamed if self.request else False,
            "prompt": None if prompt is None else int(prompt.size),
            "sampled": sum(int(one.sampled_ids.size) for one in choices if one.sampled_ids is not None),
            "first_token_ms": self.first_token_ms,
            "ended_ms": self.ended_ms,
        }

    def _call(
        self, choice: Choice, status: Status, *, ended: int | None, ended_ms: float | None, delivered: bool | None
    ) -> Call:
        # Of one that runs nothing of its reply: it is still to come, or the spool has it.
        request, reader = self.request, self.reader if status != "running" else None
        usage = reader.usage if reader is not None else None
        return Call(
            n=self.n + choice.index,
            choice=choice.index,
            id=self.stop_reply[0] if self.stop_reply else reader.reply_id if reader is not None else None,
            status=status,
            delivered=delivered,
            arrived=self.arrived,
            ended=ended,
            dialect=self.dialect,
            streamed=request.streamed if request else False,
            engine=self.engine,
            model_asked=request.model if request else None,
            finish_reason=choice.finish_reason,
            messages=request.messages if request else (),
            tools=request.tools if request else None,
            tool_names=request.tool_names if request else (),
            reply=choice.reply,
            body=request.body if request else None,
            prompt_ids=reader.prompt_ids if reader is not None else None,
            sampled_ids=choice.sampled_ids,
            logprobs=choice.logprobs,
            usage_prompt=_count(usage, "prompt_tokens"),
            usage_sampled=self._usage_sampled(choice, _count(usage, "completion_tokens")),
            sampling_asked=request.sampling if request else {},
            sampling_sent=self.admitted.sampling if self.admitted else {},
            constrained=request.constrained if request else (),
            repairs=(request.repairs if request else ()) + (self.admitted.repairs if self.admitted else ()),
            pinned=self.kept,
            # What the engine says of its tokens counts before what was said of the engine.
            weights=choice.weights or self.weights,
            hints=self.hints,
            started_at=self.started_at,
            queued_ms=self.queued_ms,
            first_token_ms=self.first_token_ms,
            ended_ms=ended_ms,
        )

    def _usage_sampled(self, choice: Choice, total: int | None) -> int | None:
        """Return the engine's count of this choice's tokens.

        Usage counts all choices together. What the others brought is taken off for the first, so that a count that
        does not add up shows on one of them.
        """
        if total is None or self.reader is None:
            return None
        choices = self._choices()
        if len(choices) < 2:
            return total
        lengths = {one.index: 0 if one.sampled_ids is None else int(one.sampled_ids.size) for one in choices}
        if choice.index != choices[0].index:
            return lengths[choice.index]
        return total - sum(lengths.values()) + lengths[choice.index]

    def parts(self) -> Parts | None:
        """Return the request as it was taken apart, None where it wasn't, or is no strict JSON."""
        request = self.request
        if request is None or request.elements is None or request.undecoded is not None:
            return None
        if (own := request.own) is not None:
            return Parts(fields=own.fields, elements=own.elements, names=own.names, messages=(), key=own.key)
        if self.translator is not None:
            return None
        if request.repairs or self.dialect != "chat" or not all(map(str.isascii, request.fields)):
            # Half a surrogate pair in a name is read, and no strict JSON; any other odd name is left out with it.
            return None
        return Parts(
            fields=request.fields,
            elements=request.elements.raws,
            names=request.elements.heard.names,
            messages=request.messages,
            sent=self.admitted.fields if self.admitted is not None else None,
        )

    def sent_parts(self) -> Parts | None:
        """Return what the engine got of a translated request as it was taken apart; None where that isn't known."""
        request, admitted = self.request, self.admitted
        if request is None or admitted is None or self.translator is None:
            return None
        if request.elements is None or request.undecoded is not None or not all(map(str.isascii, admitted.fields)):
            return None
        if admitted.fields.get("messages") != request.fields["messages"]:
            # A repair changed them.
            return None
        return Parts(
            fields=admitted.fields,
            elements=request.elements.raws,
            names=request.elements.heard.names,
            messages=request.messages,
        )

    def _exchange(self) -> Exchange:
        reader = self.reader
        error: dict[str, Any] | None = None
        if self.failure is not None:
            blamed = self.failure[1]
            error = {"blame": blamed.blame, "status": blamed.status, "message": blamed.message}
        elif self.recorder is not None:
            error = self.recorder.error
        teller = self.translator or reader
        reply = self.stop_reply[1] if self.stop_reply else teller.reply() if teller is not None else None
        undecoded = "\n".join(reader.undecoded) if reader is not None else ""
        return Exchange(
            request=self.body,
            parts=self.parts(),
            sent_parts=self.sent_parts(),
            sent=self.sent,
            reply=reply,
            error=error,
            usage=msgspec.json.encode(reader.usage) if reader is not None and reader.usage is not None else None,
            top_logprobs=reader.top_logprobs() if reader is not None else None,
            undecoded=undecoded.encode() or None,
        )


def _count(usage: dict[str, Any] | None, name: str) -> int | None:
    value = usage.get(name) if usage else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
