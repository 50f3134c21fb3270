"""OpenAI Responses (`openai` 3.57, codex 0.171), translated to chat completions and back.

Rules
1. A field is in one of the tables of `responses_tables`: translated, passed over for a reason, or refused. Any other is
   the engine's own (`top_k`, `chat_template_kwargs`, `structured_outputs`) and goes on to it as it stands.
2. What can't be translated is refused by its path in the client's own body; what is left out and could matter is named
   in `Request.repairs`.
3. A value of the wrong type is refused here: the engine's complaint would name a field that the client never sent.

Around it: `responses_history` (what a request goes on from), `responses_items` (items to messages), `responses_tools`
(tools and back), `responses_events` (the reply).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from capture import rawjson
from capture.dialects import responses_history, responses_shape
from capture.dialects.base import NO_TARGET, Earlier, Own, Request, Target, Translator, translated
from capture.dialects.chat import Chat
from capture.dialects.elements import value_digest
from capture.dialects.repeats import UNTRANSLATED, body_digest
from capture.dialects.responses_events import Original, ResponsesTranslator
from capture.dialects.responses_items import ChatMessages, as_items
from capture.dialects.responses_refusals import list_at, missing, object_at, text_in, unsupported, wrong
from capture.dialects.responses_repeats import READ_APART, maybe_apart
from capture.dialects.responses_tables import IGNORED, MAPPED, MISPLACED, REFUSED
from capture.dialects.responses_tools import Tools
from capture.dialects.said import Element
from capture.digests import Digests
from capture.errors import ClientError, TreeringError

LOGPROBS = "message.output_text.logprobs"
"""What `include` says to ask for logprobs."""

_EFFORT, _FORMAT = "reasoning.effort", "text.format"

_KNOWN = frozenset((*MAPPED, *IGNORED, *REFUSED, *MISPLACED, "reasoning", "text", "truncation"))


class Responses:
    """The dialect `responses`."""

    name = "responses"
    bears_comments = True

    def __init__(self) -> None:
        self._chat = Chat()

    def read(
        self, body: bytes, *, target: Target = NO_TARGET, earlier: Sequence[Earlier] = (), rollout: str = ""
    ) -> Request:
        """Read a request. Raises `ClientError`: 400 naming the field, 404 for an item that isn't in `earlier`."""
        try:
            request = None if earlier else self._maybe_read_apart(body)
        except UNTRANSLATED:
            # Perhaps no fault at all; if one, the long way names it.
            request = None
        return self._read_whole(body, earlier) if request is None else request

    def _maybe_read_apart(self, body: bytes) -> Request | None:
        """Read a request as `_read_whole` does, but of what came before only what is new. May raise `UNTRANSLATED`."""
        fields = rawjson.split(body)
        rest = {name: msgspec.json.decode(raw) for name, raw in fields.items() if name not in READ_APART}
        _check(rest)
        choice = rest.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            # It leaves some of the tools out.
            return None
        apart = maybe_apart(fields)
        if apart is None:
            return None
        own = Own(
            fields=fields,
            key="input",
            elements=[piece.raw for piece in apart.items],
            names=Digests.of([piece.name for piece in apart.items]),
        )
        others = {name: piece.value for name, piece in apart.others.items()}
        tools, said = apart.tools, apart.messages
        choice = tools.choice(choice)
        request = self._request(
            fields, rest, tools, choice, said, apart.repairs, listed=apart.listed, elements=apart.elements
        )
        digest = body_digest(rest, others, [piece.value for piece in apart.items])
        return msgspec.structs.replace(request, body=digest, own=own)

    def _read_whole(self, body: bytes, earlier: Sequence[Earlier]) -> Request:
        try:
            fields = rawjson.split(body)
        except ValueError as error:
            raise ClientError(
                "invalid_json", f"The request body can't be read: {error}.", hint="Send one JSON object."
            ) from error
        doubts: list[str] = []
        values = {name: _decoded(name, raw, fields, doubts) for name, raw in fields.items()}
        _check(values)
        repairs: list[str] = []
        tools = Tools(values.get("tools"))
        choice = tools.choice(values.get("tool_choice"))
        messages = self._messages(values, tools, earlier, repairs)
        request = self._request(fields, values, tools, choice, messages, repairs)
        return msgspec.structs.replace(request, body=_digest(values, body), undecoded="; ".join(doubts) or None)

    def _request(
        self,
        fields: dict[str, bytes],
        values: Mapping[str, Any],
        tools: Tools,
        choice: Any,
        messages: list[dict[str, Any]] | bytes,
        repairs: list[str],
        *,
        listed: bytes | None = None,
        elements: Sequence[Element] | None = None,
    ) -> Request:
        """Return the request of a body that is translated but for its simple fields.

        Messages that are raw JSON come with their `elements`, and with the tools as raw JSON, where there are any.
        """
        asked = {
            "model": values.get("model"),
            "messages": messages,
            **_tool_fields(values, tools, choice, listed),
            **_reply_fields(values, repairs),
            **_sampling_fields(values),
        }
        if values.get("stream"):
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        chat = {
            name: value if isinstance(value, bytes) else _encoded(value, name)
            for name, value in asked.items()
            if value is not None
        }
        chat |= {name: raw for name, raw in fields.items() if name not in _KNOWN and name not in chat}
        return msgspec.structs.replace(
            self._chat.read(rawjson.join(chat))
            if elements is None
            else self._chat.read_fields(chat, elements=elements),
            repairs=tuple(dict.fromkeys((*tools.repairs, *repairs))),
            original=Original(
                repeated=responses_shape.echo(fields), tools=tools, logprobs=asked.get("logprobs") is True
            ),
        )

    def read_count(self, body: bytes, *, target: Target = NO_TARGET) -> Request:
        """Read a request to count tokens: a call's body. Raises `ClientError` as `read` does."""
        return self.read(body, target=target)

    def refers_to(self, body: bytes) -> str | None:
        """Return the id of the reply that a request goes on from, if it names one; never raises."""
        return responses_history.refers_to(body)

    def translator(self, request: Request) -> Translator:
        """Return a translator for the reply."""
        return ResponsesTranslator(request.original)

    def counted(self, tokens: int) -> bytes:
        """Return the body that answers `POST /v1/responses/input_tokens`."""
        return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})

    def models(self, cards: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the list of models, as OpenAI gives it."""
        return self._chat.models(cards)

    def model(self, card: Mapping[str, Any]) -> bytes:
        """Return one model, as OpenAI gives it."""
        return self._chat.model(card)

    def error(self, error: TreeringError) -> bytes:
        """Return the body of an error; this dialect has the shape of OpenAI's others."""
        return self._chat.error(error)

    def last_reply(self, request: Request, *, reply_id: str, created: int, text: str) -> tuple[str, bytes]:
        """Return content type and body of a well-formed, completed response with `text` and no call."""
        kind, body = self._chat.last_reply(request, reply_id=reply_id, created=created, text=text)
        return translated(self.translator(request), kind, body, streamed=request.streamed)

    def _messages(
        self, values: Mapping[str, Any], tools: Tools, earlier: Sequence[Earlier], repairs: list[str]
    ) -> list[dict[str, Any]]:
        previous = values.get("previous_response_id")
        if values.get("input") is None and not previous:
            raise missing("input")
        if previous and not earlier:
            raise ClientError(
                "previous_response_not_found",
                f"No earlier response has the id {previous!r}.",
                status=404,
                param="previous_response_id",
            )
        history = responses_history.History(earlier)
        messages = ChatMessages(tools)
        if values.get("instructions") is not None:
            messages.say("system", values["instructions"])
        for item in history.items if previous else ():
            messages.add(item, "previous_response_id")
        given = as_items(values["input"] if values.get("input") is not None else [], "input")
        for i, item in enumerate(history.resolve(given, "input")):
            messages.add(item, f"input[{i}]")
        repairs += messages.repairs
        return messages.chat


def retrieved(reply: bytes) -> bytes:
    """Return the body that answers `GET /v1/responses/{id}` for a stored reply: the reply itself.

    Raises `ClientError` 404 for a reply of another dialect.
    """
    try:
        fields = rawjson.split(reply)
    except ValueError:
        fields = {}
    if fields.get("object") != b'"response"':
        raise ClientError(
            "response_not_found",
            "That reply is none of this dialect.",
            hint="Only replies of /v1/responses can be fetched.",
            status=404,
            param="response_id",
        )
    return reply


def _decoded(name: str, raw: bytes, fields: dict[str, bytes], doubts: list[str]) -> Any:
    """Return a field's value. One that is no strict JSON is mended, here and in `fields`. Raises `ClientError`."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        value = rawjson.mended(rawjson.loads(raw))
        # What isn't a number to JSON (NaN) is null, as JavaScript writes it.
        fields[name] = msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ClientError("invalid_json", f"The field '{name}' can't be decoded: {error}.", param=name) from error
    doubts.append(f"'{name}' is not strict JSON: it holds NaN, or half a surrogate pair (sent on as U+FFFD)")
    return value


def _encoded(value: Any, name: str) -> bytes:
    try:
        return msgspec.json.encode(value)
    except OverflowError:
        # An integer beyond 64 bits.
        return json.dumps(value).encode()
    except RecursionError as error:
        raise ClientError("invalid_json", f"The field '{name}' is nested too deeply.", param=name) from error


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_TEXT, _FLAG, _OBJECT = (_of(str), "a string"), (_of(bool), "true or false"), (_of(dict), "an object")
_WHOLE, _NUMBER, _LIST = (_whole, "a whole number"), (_number, "a number"), (_of(list), "a list")

# What each field must be unless null; those of `IGNORED` that aren't here may be anything.
_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "background": _FLAG,
    "include": _LIST,
    "input": (_of(str, list), "a string or a list of items"),
    "instructions": _TEXT,
    "max_output_tokens": _WHOLE,
    "max_tool_calls": _WHOLE,
    "metadata": _OBJECT,
    "model": _TEXT,
    "parallel_tool_calls": _FLAG,
    "previous_response_id": _TEXT,
    "prompt_cache_key": _TEXT,
    "reasoning": _OBJECT,
    "safety_identifier": _TEXT,
    "service_tier": _TEXT,
    "store": _FLAG,
    "stream": _FLAG,
    "temperature": _NUMBER,
    "text": _OBJECT,
    "tool_choice": (_of(str, dict), "a string or an object"),
    "tools": _LIST,
    "top_logprobs": _WHOLE,
    "top_p": _NUMBER,
    "truncation": (lambda value: value in ("auto", "disabled"), '"auto" or "disabled"'),
    "user": _TEXT,
}


def _check(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            continue
        if name in _TYPES and not _TYPES[name][0](value):
            raise wrong(name, _TYPES[name][1])
        if name in REFUSED and value is not False:
            raise unsupported(name, REFUSED[name])
        if name in MISPLACED and not (name == "n" and value == 1):
            raise ClientError(
                "unknown_field",
                f"The field '{name}' is none of this dialect.",
                hint=f"It has {MISPLACED[name]}.",
                param=name,
            )


def _tool_fields(values: Mapping[str, Any], tools: Tools, choice: Any, listed: bytes | None) -> dict[str, Any]:
    if not tools.chat:
        # A choice without tools is refused by vLLM, and an empty list by some templates.
        return {}
    shown = tools.chat if listed is None else listed
    return {"tools": shown, "tool_choice": choice, "parallel_tool_calls": values.get("parallel_tool_calls")}


def _reply_fields(values: Mapping[str, Any], repairs: list[str]) -> dict[str, Any]:
    text, reasoning = values.get("text") or {}, values.get("reasoning") or {}
    # No engine has a field for the two; what is asked for is not held to.
    if text.get("verbosity") is not None:
        repairs.append("verbosity_left_out")
    if values.get("truncation") == "auto":
        repairs.append("truncation_left_out")
    effort = reasoning.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise wrong(_EFFORT, "a string")
    return {"response_format": _format(text.get("format")), "reasoning_effort": effort}


def _format(form: Any) -> dict[str, Any] | None:
    if form is None:
        return None
    kind = text_in(object_at(form, _FORMAT), "type", _FORMAT)
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema":
        raise unsupported(f"{_FORMAT}.type", f"Replies in the format '{kind}' can't be asked for.")
    text_in(form, "name", _FORMAT)
    object_at(form.get("schema"), f"{_FORMAT}.schema")
    names = ("name", "description", "schema", "strict")
    return {"type": kind, "json_schema": {name: form[name] for name in names if form.get(name) is not None}}


def _sampling_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    include = list_at(values.get("include") or [], "include")
    top = values.get("top_logprobs")
    logprobs = LOGPROBS in include or bool(top)
    return {
        "max_completion_tokens": values.get("max_output_tokens"),
        "temperature": values.get("temperature"),
        "top_p": values.get("top_p"),
        "logprobs": True if logprobs else None,
        "top_logprobs": top if logprobs else None,
    }


def _digest(values: Mapping[str, Any], body: bytes) -> str:
    """Return a digest of the body that key order and spaces don't change."""
    given = values.get("input")
    try:
        return body_digest(
            {name: value for name, value in values.items() if name not in READ_APART},
            {name: value_digest(values[name]) for name in READ_APART - {"input"} if name in values},
            list(map(value_digest, given if isinstance(given, list) else [given])),
        )
    except (OverflowError, RecursionError):
        return hashlib.blake2b(body, digest_size=16).hexdigest()
