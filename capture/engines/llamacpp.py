"""llama.cpp's server: what to inject, and where ids and logprobs are found (`tools/server`, read from source).

Rules
1. The sampled ids stand in the logprobs: each entry of `logprobs.content` has an `id`, beyond OpenAI's form. Without
   `top_logprobs` twenty alternatives would come with each, so one is asked for.
2. A stream with tools and logprobs is refused by the server (400), so nothing is asked for there: such a call has no
   ids.
3. The prompt's ids are in no reply. They are asked for beside the call: `/apply-template` renders the request, and
   `/tokenize` makes ids of that, with the special tokens that the chat route adds. They count only if usage has as
   many.
4. A stream gives no chunk, and so no id, for a token whose text is withheld (the end token, part of a tool call). So
   the sampled ids too count only if usage has as many: else the array would be shorter than what was sampled, and look
   whole.
5. What the client did not ask for is left out, as the server leaves it out; timings stand on the last chunk.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from capture import rawjson
from capture.dialects.base import Request
from capture.engines import vllm_completions
from capture.engines.base import TO_THE_END, Ask, Choice, Reader
from capture.engines.chat_reader import FLAGS, ChatReader, Track
from capture.engines.id_text import MAX_ID
from capture.engines.openai import OpenAI
from capture.engines.sampled import NULL
from capture.errors import EngineError
from graph.records import IntArray

_DELIVERY = frozenset(("stream", "stream_options", "logprobs", "top_logprobs", "n"))
"""Fields that say how a reply comes; all others may have a part in the prompt, and go to `/apply-template`."""

MAX_SAID = 200
"""Bytes kept of an answer that is none: enough to know its kind."""

_openai = OpenAI()


class _Prompt(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]]


class _Entry(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)] | None = None
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None


_logprobs = msgspec.json.Decoder(_Logprobs)


class Llamacpp:
    """The adapter `llamacpp`."""

    kind = "llamacpp"
    require_tier: Literal["train", "eval"] = "eval"
    # A reply must come to its end: the end token is what streams leave out.
    no_ids: str | None = None
    probe_tokens = TO_THE_END

    def inject(self, request: Request) -> dict[str, bytes | None]:
        """Return the fields to set so that ids, logprobs and usage come back."""
        changes = _openai.inject(request)
        fields = request.fields
        tools = fields.get("tools", NULL) not in (NULL, b"[]")
        if request.path == vllm_completions.PATH or request.asked.logprobs or (request.streamed and tools):
            return changes
        # `top_logprobs` without `logprobs` is the engine's to refuse.
        if fields.get("logprobs") in FLAGS and fields.get("top_logprobs", NULL) == NULL:
            changes |= {"logprobs": b"true", "top_logprobs": b"1"}
        return changes

    def reader(self, request: Request, *, model: str | None = None) -> Reader:
        """Return a reader for the reply; with `model` the reply's model name is replaced by it."""
        if request.path == vllm_completions.PATH:
            return _openai.reader(request, model=model)
        return LlamacppReader(request, model=model)

    def count(self, request: Request, *, model: str | None) -> Ask:  # noqa: ARG002 - the interface's
        """Ask for the prompt's ids, by the server's own template and tokeniser."""
        return _prompt_question(request)

    def counted(self, body: bytes) -> int:
        """Read the answer to it. Raises `EngineError` `engine_garbled`."""
        return len(_tokens(body))


class LlamacppReader(ChatReader):
    """Reads one reply of llama.cpp's chat completions, and asks for its prompt's ids."""

    _on_the_last = ("timings",)

    def __init__(self, request: Request, *, model: str | None = None) -> None:
        self._prompt: IntArray | None = None
        super().__init__(request, model=model)

    @property
    def prompt_ids(self) -> IntArray | None:
        """The prompt's ids, None unless usage counted as many."""
        counted = self._counted("prompt_tokens")
        if self._prompt is None or counted is None or counted == self._prompt.size:
            return self._prompt
        self._doubts.add(f"usage counted {counted} tokens of prompt, and its rendering has {self._prompt.size}")
        return None

    @prompt_ids.setter
    def prompt_ids(self, ids: IntArray | None) -> None:
        self._prompt = ids

    def question(self) -> Ask:
        """Ask the server to render the request and to tokenise that."""
        return _prompt_question(self._request)

    def answered(self, status: int, body: bytes) -> None:
        """Take the prompt's ids."""
        if status != 200:
            said = body[:MAX_SAID].decode("utf-8", "replace")
            self._doubts.add(f"the engine did not tell the prompt's ids: it answered {status} {said}".rstrip())
            return
        try:
            self._prompt = np.array(_tokens(body), dtype=np.int32)
        except EngineError as error:
            self._doubts.add(f"the engine did not tell the prompt's ids: {error.message}")

    def choices(self) -> list[Choice]:
        """Return what each choice brought, in order of index; without ids where usage counted others than came."""
        found = super().choices()
        counted = self._counted("completion_tokens")
        came = [choice.sampled_ids.size for choice in found if choice.sampled_ids is not None]
        if counted is None or not came or sum(came) == counted:
            return found
        counts = f"usage counted {counted} sampled tokens and {sum(came)} ids came"
        self._doubts.add(f"{counts}: which are missing can't be told")
        return [msgspec.structs.replace(choice, sampled_ids=None, logprobs=None) for choice in found]

    def _take(self, track: Track, fields: dict[str, bytes]) -> bool:
        super()._take(track, fields)
        raw = fields.get("logprobs", NULL)
        if raw == NULL:
            return False
        entries = self._entries(raw)
        if not entries:
            return False
        ids = [entry.id for entry in entries if entry.id is not None]
        if len(ids) < len(entries):
            # Not an array of ids: makes all of the choice's ids unknown.
            track.sampled.add(b"[null]", NULL)
        else:
            track.sampled.take(ids, [np.nan if entry.logprob is None else entry.logprob for entry in entries])
        return True

    def _entries(self, raw: bytes) -> list[_Entry] | None:
        try:
            return _logprobs.decode(raw).content
        except (ValueError, RecursionError):
            try:
                return msgspec.convert(self._doubts.value(raw, "logprobs"), _Logprobs).content
            except msgspec.ValidationError as error:
                self._doubts.add(f"logprobs can't be read: {error}")
                return None

    def _cut(self, fields: dict[str, bytes]) -> bool:
        """Take out the logprobs that the client did not ask for: without them the server leaves the key out."""
        if self._asked.logprobs or "logprobs" not in fields or fields["logprobs"] == NULL:
            return False
        del fields["logprobs"]
        return True

    def _counted(self, name: str) -> int | None:
        value: Any = (self.usage or {}).get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _prompt_question(request: Request) -> Ask:
    fields = {name: value for name, value in request.fields.items() if name not in _DELIVERY}
    return Ask(path="/apply-template", body=rawjson.join(fields), then=_tokenise)


def _tokenise(body: bytes) -> Ask:
    try:
        text = msgspec.json.decode(body, type=_Prompt).prompt
    except msgspec.DecodeError as error:
        raise EngineError("engine_garbled", "The engine gave no rendering of the messages.") from error
    # As the chat route does it; a template's own first token is taken off by the server before.
    ask = {"content": text, "add_special": True, "parse_special": True}
    return Ask(path="/tokenize", body=msgspec.json.encode(ask))


def _tokens(body: bytes) -> list[int]:
    try:
        return msgspec.json.decode(body, type=_Tokens).tokens
    except msgspec.DecodeError as error:
        raise EngineError("engine_garbled", "The engine gave no count of tokens.") from error
