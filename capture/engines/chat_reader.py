"""A reply of chat completions on OpenAI's wire, read as it passes: what every engine that speaks it has in common.

Rules
- A reply is handled raw: only the values that capture asked for change, and an event without any keeps its bytes.
- A chunk that is left with nothing after that was sent only for the sake of what capture asked for, so it goes too:
  one that finishes nothing and brings no text, and the one that holds usage alone.
- What can't be decoded is named in `undecoded` and passes, cut by `rawjson` where that can still read it.

Theory of operation
An event is split into raw fields twice (the chunk, its choices), then the few fields that are read are decoded, each
by a decoder made once. So every byte is decoded at most once, the same dictionaries serve for cutting, and one bad
value (a NaN logprob, half a surrogate pair) spoils itself alone. About 10 us for a chunk of one token.

An engine's own reader says where ids and logprobs are (`_take` in a choice, `_beside` beside the choices), and what is
to be cut again. The choices are read first, since what stands beside them may be about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from capture import rawjson
from capture.dialects.assembly import Assembly
from capture.dialects.base import Request
from capture.engines.base import Choice, Seen
from capture.engines.sampled import NULL, Doubts, Sampled
from capture.engines.wire import error_message, listed
from graph import messages as canonical
from graph.records import IntArray, Weights

FLAGS = (None, NULL, b"true", b"false")
"""Raw values of a switch that capture may turn on; any other is the engine's to refuse."""


class Track:
    """What one choice has brought so far."""

    def __init__(self, index: int, doubts: Doubts) -> None:
        self.index = index
        self.sampled = Sampled(doubts)
        # Logprobs that came without their ids, in order, for engines that give the ids elsewhere.
        self.scores: list[float] = []
        # The engine's logprob entries, raw and without their brackets; kept only for a client that asked for them.
        self.entries: list[bytes] = []
        self.finish_reason: str | None = None
        # What the engine says beside the finish (`matched_stop`), raw.
        self.beside_finish: dict[str, bytes] = {}
        self.weights: Weights | None = None
        self.assembly = Assembly()
        # Of a whole reply.
        self.message: dict[str, Any] | None = None

    def said(self) -> dict[str, Any] | None:
        """Return the assistant message, None while nothing came."""
        if self.message is not None:
            return self.message
        return None if self.assembly.empty and self.finish_reason is None else self.assembly.message()

    def keep_entries(self, logprobs: bytes) -> None:
        """Keep the engine's logprob entries as they are."""
        try:
            content = rawjson.split(logprobs).get("content", NULL).strip()
        except ValueError:
            return
        if content[:1] == b"[" and (inner := content[1:-1].strip()):
            self.entries.append(inner)

    def choice(self) -> Choice:
        """Return what the choice has brought so far."""
        said = self.said()
        return Choice(
            index=self.index,
            finish_reason=self.finish_reason,
            reply=None if said is None else canonical.from_chat(said),
            sampled_ids=self.sampled.ids,
            logprobs=self.sampled.logprobs,
            weights=self.weights,
        )


ONCE = ("created", "model", "system_fingerprint")
"""Fields of a reply that stand once in it, and in each event of a stream."""


class ChatReader:
    """Reads one reply; as it stands, one without ids."""

    # Fields that say more of a finish, and what a whole reply has where a stream did not say.
    _beside_finish: ClassVar[dict[str, bytes]] = {}
    # Whether chunks say `"usage": null` only where usage is asked for.
    _null_usage_is_ours: ClassVar[bool] = True
    # Fields that stand on the last chunk, be that the finish or usage.
    _on_the_last: ClassVar[tuple[str, ...]] = ()

    def __init__(self, request: Request, *, model: str | None = None) -> None:
        self.reply_id: str | None = None
        self.usage: dict[str, Any] | None = None
        self.prompt_ids: IntArray | None = None
        self._doubts = Doubts()
        self.undecoded: list[str] = self._doubts
        self._request = request
        self._asked = request.asked
        self._model = None if model is None else msgspec.json.encode(model)
        self._tracks: dict[int, Track] = {}
        # Fields of the reply that stand once: created, model, system_fingerprint; raw.
        self._head: dict[str, bytes] = {}
        self._whole: bytes | None = None
        self._events = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{t.index}: {t.sampled} {t.finish_reason}" for t in self._tracks.values())
        return f"<{type(self).__name__} {self.reply_id} {counts}>"

    def event(self, data: bytes) -> Seen:
        """Read the data of one server-sent event."""
        if len(data) < 16:
            text = data.strip()
            if text == b"[DONE]":
                return Seen(data=data, done=True)
            if not text:
                return Seen(data=data)
        self._events += 1
        try:
            top = self._split(data)
            choices = rawjson.objects(top["choices"]) if top.get("choices", NULL) != NULL else None
        except ValueError as error:
            self._doubts.add(f"event {self._events} can't be read: {error}")
            return Seen(data=data)
        self._met(data, top, choices)
        edited = self._read_head(top)
        finished: list[tuple[int, str]] = []
        sampled = cut = False
        for fields in choices or ():
            track = self._track(fields)
            took = self._take(track, fields)
            delta = self._doubts.value(fields.get("delta", NULL), "delta", halves=True)
            sampled = (isinstance(delta, dict) and track.assembly.add(delta)) or took or sampled
            reason = self._read_finish(track, fields)
            if reason is not None:
                finished.append((track.index, reason))
            cut = self._cut(fields) or cut
        cut_beside = self._beside(top)
        if not self._asked.usage and (top.get("usage", NULL) != NULL or ("usage" in top and self._null_usage_is_ours)):
            cut_beside = top.pop("usage") != NULL or cut_beside
            edited = True
        if choices == [] and cut_beside and not self._tells(top):
            return Seen(data=None, moved={name: top[name] for name in self._on_the_last if name in top})
        if choices and not finished and self._is_idle(choices, cut=cut):
            return Seen(data=None, sampled=sampled)
        if cut and choices is not None:
            top["choices"] = rawjson.join_elements([rawjson.join(fields) for fields in choices])
        return Seen(
            data=rawjson.join(top) if edited or cut or cut_beside else data,
            finished=tuple(finished),
            error=error_message(top),
            sampled=sampled,
        )

    def whole(self, body: bytes) -> Seen:
        """Read a whole reply; `Seen.data` is the body for the client."""
        self._whole = body
        try:
            top, choices = self._split_whole(body)
        except ValueError as error:
            self._doubts.add(f"the body can't be read: {error}")
            return Seen(data=body)
        edited = self._read_head(top)
        finished: list[tuple[int, str]] = []
        sampled = cut = False
        for fields in choices:
            track = self._track(fields)
            sampled = self._take(track, fields) or sampled
            message = self._doubts.value(fields.get("message", NULL), "message")
            track.message = message if isinstance(message, dict) else None
            reason = self._read_finish(track, fields)
            if reason is not None:
                finished.append((track.index, reason))
            cut = self._cut(fields) or cut
        edited = self._beside(top) or edited
        if cut:
            top["choices"] = rawjson.join_elements([rawjson.join(fields) for fields in choices])
        if edited or cut:
            self._whole = rawjson.join(top)
        return Seen(data=self._whole, finished=tuple(finished), error=error_message(top), sampled=sampled)

    def choices(self) -> list[Choice]:
        """Return what each choice brought, in order of index."""
        return [track.choice() for track in self._sorted()]

    def indices(self) -> list[int]:
        """Return the indices of the choices that brought anything, as `choices` does with all of it."""
        return list(self._tracks)

    def reply(self) -> bytes | None:
        """Return the reply as the client got it, as JSON; of a stream the assembled whole; None when nothing came.

        An assembled reply holds the usage whether or not the client asked: a whole one always does.
        """
        if self._whole is not None:
            return self._whole
        tracks = self._sorted()
        if not tracks:
            return None
        head = {"id": msgspec.json.encode(self.reply_id), "object": b'"chat.completion"', **self._head}
        head["choices"] = rawjson.join_elements([rawjson.join(self._assembled(track)) for track in tracks])
        if self.usage is not None:
            head["usage"] = msgspec.json.encode(self.usage)
        return rawjson.join(head | self._assembled_beside())

    def top_logprobs(self) -> bytes | None:
        """Return the engine's logprob entries, a list for each choice, as JSON; None unless alternatives were asked."""
        if not (self._asked.logprobs and self._asked.top_logprobs and self._tracks):
            return None
        return rawjson.join_elements([listed(track.entries) for track in self._sorted()])

    # -- what an engine's own reader says

    def _split(self, data: bytes) -> dict[str, bytes]:
        """Return the fields of an event or a reply, in order. Raises ValueError for what is no JSON object."""
        return rawjson.split(data)

    def _split_whole(self, body: bytes) -> tuple[dict[str, bytes], list[dict[str, bytes]]]:
        """Return the fields of a whole reply, and those of its choices. Raises ValueError as `_split` does."""
        top = self._split(body)
        return top, rawjson.objects(top["choices"]) if top.get("choices", NULL) != NULL else []

    def _met(self, data: bytes, top: dict[str, bytes], choices: Sequence[dict[str, bytes]] | None) -> None:
        """Look at an event before any of it is read or cut."""

    def _take(self, track: Track, fields: dict[str, bytes]) -> bool:
        """Read a choice's ids and logprobs; say if any came."""
        if self._asked.logprobs and fields.get("logprobs", NULL) != NULL:
            track.keep_entries(fields["logprobs"])
        return False

    def _cut(self, fields: dict[str, bytes]) -> bool:  # noqa: ARG002 - for the readers that override it
        """Take out of a choice what the client did not ask for; say if anything was."""
        return False

    def _beside(self, top: dict[str, bytes]) -> bool:  # noqa: ARG002 - for the readers that override it
        """Read what stands beside the choices, and cut it if the client did not ask for it; say if anything was cut."""
        return False

    def _tells(self, top: dict[str, bytes]) -> bool:
        """Say if a chunk without choices that was cut still has something for the client."""
        return any(top.get(name, NULL) != NULL for name in ("usage", "error"))

    def _is_idle(self, choices: Sequence[dict[str, bytes]], *, cut: bool) -> bool:
        """Say if a chunk that finishes nothing has nothing for the client, now that it may have been cut."""
        return cut and not any(map(_tells_choice, choices))

    def _assembled(self, track: Track) -> dict[str, bytes]:
        """Return a choice of a stream as a whole reply would have it."""
        return {
            "index": b"%d" % track.index,
            "message": msgspec.json.encode(track.assembly.message()),
            "logprobs": b'{"content":' + listed(track.entries) + b"}" if track.entries else NULL,
            "finish_reason": msgspec.json.encode(track.finish_reason),
            **self._beside_finish,
            **track.beside_finish,
        }

    def _assembled_beside(self) -> dict[str, bytes]:
        """Return what stands beside the choices of an assembled reply."""
        return {}

    # -- shared steps

    def _sorted(self) -> Sequence[Track]:
        return [self._tracks[index] for index in sorted(self._tracks)]

    def _track(self, fields: dict[str, bytes]) -> Track:
        index = self._doubts.value(fields.get("index", b"0"), "index")
        index = index if isinstance(index, int) else 0
        track = self._tracks.get(index)
        if track is None:
            track = self._tracks[index] = Track(index, self._doubts)
        return track

    def _read_head(self, top: dict[str, bytes]) -> bool:
        """Read id, usage and model, and put the model's name right; say if that changed anything."""
        if self.reply_id is None and "id" in top:
            id_ = self._doubts.value(top["id"], "id")
            self.reply_id = id_ if isinstance(id_, str) else None
        if top.get("usage", NULL) != NULL:
            usage = self._doubts.value(top["usage"], "usage")
            self.usage = usage if isinstance(usage, dict) else self.usage
        edited = False
        if self._model is not None and top.get("model", self._model) != self._model:
            top["model"] = self._model
            edited = True
        for name in ONCE:
            if name in top:
                self._head[name] = top[name]
        return edited

    def _read_finish(self, track: Track, fields: dict[str, bytes]) -> str | None:
        """Return the choice's finish reason if it came just now."""
        for name in self._beside_finish:
            if name in fields:
                track.beside_finish[name] = fields[name]
        raw = fields.get("finish_reason", NULL)
        reason = None if raw == NULL else self._doubts.value(raw, "finish_reason")
        # Some engines say "" until there is one.
        if not isinstance(reason, str) or not reason or track.finish_reason is not None:
            return None
        track.finish_reason = reason
        return reason


def _tells_choice(fields: dict[str, bytes]) -> bool:
    """Say if a choice of a chunk brings logprobs or a delta with any value."""
    if fields.get("logprobs", NULL) != NULL:
        return True
    try:
        delta = rawjson.split(fields.get("delta", b"{}"))
    except ValueError:
        return True
    return any(value != NULL for value in delta.values())
