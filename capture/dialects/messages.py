"""Anthropic Messages, translated to and from chat completions.

Read first `messages_request` (a body's fields), `messages_content` (its messages), then `messages_reply` (what comes
back). The types are those of anthropic 2.14, the traffic claude-code 2.1's. vLLM 0.32 has a Messages route of its own,
which gives neither token ids nor logprobs; where both would be right, its choices are kept, so that an agent gets the
prompt that it would have got there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from capture import rawjson
from capture.dialects import messages_fields as field
from capture.dialects.base import NO_TARGET, Asked, Earlier, Own, Request, Target, Translator, translated
from capture.dialects.chat import Chat
from capture.dialects.elements import value_digest
from capture.dialects.messages_content import of_message, system_messages
from capture.dialects.messages_error import error_body
from capture.dialects.messages_reply import MessagesTranslator
from capture.dialects.messages_request import chat_request, tool_list
from capture.dialects.repeats import (
    FEW_BYTES,
    UNTRANSLATED,
    Known,
    Repairs,
    Repeats,
    ToolList,
    Unit,
    body_digest,
    joined,
    unit_of,
)
from capture.digests import Digests
from capture.errors import TreeringError

_chat = Chat()


class Messages:
    """The dialect `messages`."""

    name = "messages"
    bears_comments = True

    def read(
        self, body: bytes, *, target: Target = NO_TARGET, earlier: Sequence[Earlier] = (), rollout: str = ""
    ) -> Request:
        """Read a request. Raises `ClientError` (400) naming the field for what can't be taken or translated."""
        return _read(body, streamed=target.streamed)

    def read_count(self, body: bytes, *, target: Target = NO_TARGET) -> Request:
        """Read a request to count tokens: a message's, without `max_tokens`; the chat request has the same prompt."""
        return _read(body, streamed=False, counting=True)

    def refers_to(self, body: bytes) -> str | None:
        """Return None: each request brings its whole history."""
        return None

    def translator(self, request: Request) -> Translator | None:
        """Return a translator for the reply."""
        return MessagesTranslator()

    def counted(self, tokens: int) -> bytes:
        """Return `{"input_tokens": tokens}`."""
        return msgspec.json.encode({"input_tokens": tokens})

    def models(self, cards: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the list of models, as the API gives it: all on one page."""
        data = [_card(card) for card in cards]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return msgspec.json.encode({"data": data, "has_more": False, "first_id": first, "last_id": last})

    def model(self, card: Mapping[str, Any]) -> bytes:
        """Return one model, as the API gives it."""
        return msgspec.json.encode(_card(card))

    def error(self, error: TreeringError) -> bytes:
        """Return the body of an error, the hint in its message; `code` and `param` are further fields."""
        message = error.told
        return error_body(error.status, message, code=error.code, param=error.param)

    def last_reply(self, request: Request, *, reply_id: str, created: int, text: str) -> tuple[str, bytes]:
        """Return content type and body of a well-formed reply with `text`, no tool call and the stop `end_turn`."""
        kind, body = _chat.last_reply(request, reply_id=reply_id, created=created, text=text)
        return translated(MessagesTranslator(), kind, body, streamed=request.streamed)


def _read(body: bytes, *, streamed: bool | None, counting: bool = False) -> Request:
    try:
        request = _maybe_read_apart(body, streamed=streamed, counting=counting)
    except UNTRANSLATED:
        # Perhaps no fault at all; if one, the long way names it.
        request = None
    return _read_whole(body, streamed=streamed, counting=counting) if request is None else request


def _maybe_read_apart(body: bytes, *, streamed: bool | None, counting: bool) -> Request | None:
    """Read a request as `_read_whole` does, but of what came before only what is new. May raise `UNTRANSLATED`."""
    fields = rawjson.split(body)
    if "messages" not in fields:
        return None
    pieces = _messages.elements(fields["messages"])
    apart = {name: known.read([fields[name]])[0] for name, known in _APART.items() if name in fields}
    system, tools = apart.get("system"), apart.get("tools")
    if not pieces:
        return None
    units = [piece.meaning for piece in pieces] if system is None else [system.meaning, *[p.meaning for p in pieces]]
    said, elements, repairs = joined(units)
    known = Known(
        messages=said,
        repairs=repairs,
        is_open=units[-1].is_open,
        tools=ToolList() if tools is None else tools.meaning,
    )
    rest = {name: msgspec.json.decode(raw) for name, raw in fields.items() if name not in _READ_APART}
    streamed = field.flag(rest, "stream", "") if streamed is None else streamed
    chat, repairs = chat_request(rest, streamed=streamed, counting=counting, known=known)
    digest = body_digest(rest, {name: piece.value for name, piece in apart.items()}, [piece.value for piece in pieces])
    names = Digests.of([piece.name for piece in pieces])
    return msgspec.structs.replace(
        _chat.read_fields({name: _raw(value) for name, value in chat.items()}, elements=elements),
        asked=Asked(usage=streamed),
        body=digest,
        repairs=tuple(repairs),
        own=Own(fields=fields, key="messages", elements=[piece.raw for piece in pieces], names=names),
    )


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


def _unit(message: Any) -> Unit:
    repairs = Repairs()
    return unit_of(of_message(message, "messages", repairs.note), repairs)


def _system(value: Any) -> Unit:
    repairs = Repairs()
    return unit_of(system_messages(value, repairs.note), repairs)


_messages = Repeats(_unit)
_APART: dict[str, Repeats[Any]] = {
    "system": Repeats(_system, room=FEW_BYTES),
    "tools": Repeats(tool_list, room=FEW_BYTES),
}
_READ_APART = frozenset(("messages", *_APART))


def _read_whole(body: bytes, *, streamed: bool | None, counting: bool) -> Request:
    values, strict = field.decoded(body)
    if streamed is None:
        streamed = field.flag(values, "stream", "")
    try:
        chat, repairs = chat_request(values, streamed=streamed, counting=counting)
        fields = {name: field.encoded(value, strict=strict) for name, value in chat.items()}
        digest = _digest(values) if strict else field.digest(values, strict=False)
    except RecursionError as error:
        raise field.unreadable("it is nested too deeply") from error
    # Usage comes through to the translator, which tells it in the API's own way.
    return msgspec.structs.replace(
        _chat.read(rawjson.join(fields)), asked=Asked(usage=streamed), body=digest, repairs=tuple(repairs)
    )


def _digest(values: Mapping[str, Any]) -> str:
    """Return a digest of a body, all of it parsed, that is the one of a body read apart."""
    rest = {name: value for name, value in values.items() if name not in _READ_APART}
    apart = {name: value_digest(values[name]) for name in _APART if name in values}
    return body_digest(rest, apart, [value_digest(message) for message in values["messages"]])


def _card(card: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": datetime.fromtimestamp(card["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": card["max_model_len"],
    }
