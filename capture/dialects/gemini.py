"""Gemini's generateContent, translated to and from chat completions.

Read first `gemini_request` (a body's fields), `gemini_content` (its contents), then `gemini_reply` and `gemini_parts`
(what comes back). The model, and whether a stream is asked for, stand in the path. The types are those of google-genai
3.6, the traffic gemini-cli's (0.61), which dies of comments in a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capture import rawjson
from capture.dialects import messages_fields as field
from capture.dialects.base import NO_TARGET, Asked, Earlier, Own, Request, Target, Translator, translated
from capture.dialects.chat import Chat
from capture.dialects.elements import value_digest
from capture.dialects.gemini_error import error_body
from capture.dialects.gemini_fields import Node
from capture.dialects.gemini_repeats import READ_APART, maybe_apart
from capture.dialects.gemini_reply import Form, GeminiTranslator
from capture.dialects.gemini_request import chat_request, shows_thoughts
from capture.dialects.repeats import UNTRANSLATED, body_digest
from capture.digests import Digests
from capture.errors import TreeringError

_chat = Chat()


class Gemini:
    """The dialect `gemini`."""

    name = "gemini"
    bears_comments = False

    def read(
        self, body: bytes, *, target: Target = NO_TARGET, earlier: Sequence[Earlier] = (), rollout: str = ""
    ) -> Request:
        """Read a request. Raises `ClientError` (400) naming the field for what can't be taken or translated."""
        try:
            request = _maybe_read_apart(body, target)
        except UNTRANSLATED:
            # Perhaps no fault at all; if one, the long way names it.
            request = None
        return _read_whole(body, target) if request is None else request

    def read_count(self, body: bytes, *, target: Target = NO_TARGET) -> Request:
        """Read a request to count tokens: contents alone, or a whole body as `generateContentRequest`."""
        values, strict = field.decoded(body)
        node = Node(values, "")
        inner = node.node("generateContentRequest")
        return _read(node if inner is None else inner, msgspec.structs.replace(target, streamed=False), strict=strict)

    def refers_to(self, body: bytes) -> str | None:
        """Return None: each request brings its whole history."""
        return None

    def translator(self, request: Request) -> Translator | None:
        """Return a translator for the reply."""
        return GeminiTranslator(request.original)

    def counted(self, tokens: int) -> bytes:
        """Return `{"totalTokens": tokens}`."""
        return msgspec.json.encode({"totalTokens": tokens})

    def models(self, cards: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the list of models, as the API gives it: all on one page."""
        return msgspec.json.encode({"models": [_card(card) for card in cards]})

    def model(self, card: Mapping[str, Any]) -> bytes:
        """Return one model, as the API gives it."""
        return msgspec.json.encode(_card(card))

    def error(self, error: TreeringError) -> bytes:
        """Return the body of an error, the hint in its message; code, field and time to try again in its details."""
        message = error.told
        return error_body(error.status, message, reason=error.code, at=error.param, retry_after_s=error.retry_after_s)

    def last_reply(self, request: Request, *, reply_id: str, created: int, text: str) -> tuple[str, bytes]:
        """Return content type and body of a well-formed reply with `text`, no function call and the finish `STOP`."""
        kind, body = _chat.last_reply(request, reply_id=reply_id, created=created, text=text)
        return translated(GeminiTranslator(request.original), kind, body, streamed=request.streamed)


def _maybe_read_apart(body: bytes, target: Target) -> Request | None:
    """Read a request as `_read_whole` does, but of what came before only what is new. May raise `UNTRANSLATED`."""
    fields = rawjson.split(body)
    apart = maybe_apart(fields)
    if apart is None:
        return None
    rest = Node({name: msgspec.json.decode(raw) for name, raw in fields.items() if name not in READ_APART}, "")
    streamed = bool(target.streamed)
    chat, repairs = chat_request(rest, model=target.model, streamed=streamed, known=apart.known)
    chats = {name: value if isinstance(value, bytes) else msgspec.json.encode(value) for name, value in chat.items()}
    others = {name: piece.value for name, piece in apart.others.items()}
    own = Own(
        fields=fields,
        key="contents",
        elements=[piece.raw for piece in apart.contents],
        names=Digests.of([piece.name for piece in apart.contents]),
    )
    request = _chat.read_fields(chats, elements=apart.elements)
    digest = body_digest([target.model, rest.fields], others, [piece.value for piece in apart.contents])
    return _with(request, target, digest=digest, repairs=repairs, thoughts=shows_thoughts(rest), own=own)


def _read_whole(body: bytes, target: Target) -> Request:
    values, strict = field.decoded(body)
    return _read(Node(values, ""), target, strict=strict)


def _read(body: Node, target: Target, *, strict: bool) -> Request:
    streamed = bool(target.streamed)
    try:
        chat, repairs = chat_request(body, model=target.model, streamed=streamed)
        thoughts = shows_thoughts(body)
        fields = {name: field.encoded(value, strict=strict) for name, value in chat.items()}
        digest = _digest(body, target) if strict else field.digest([target.model, body.fields], strict=False)
    except RecursionError as error:
        raise field.unreadable("it is nested too deeply") from error
    return _with(_chat.read(rawjson.join(fields)), target, digest=digest, repairs=repairs, thoughts=thoughts)


def _with(
    request: Request, target: Target, *, digest: str, repairs: list[str], thoughts: bool, own: Own | None = None
) -> Request:
    # Usage comes through to the translator, which tells it in the API's own way.
    asked = Asked(usage=bool(target.streamed), logprobs=request.asked.logprobs, top_logprobs=request.asked.top_logprobs)
    return msgspec.structs.replace(
        request,
        asked=asked,
        body=digest,
        repairs=tuple(repairs),
        original=Form(sse=target.sse, thoughts=thoughts),
        own=own,
    )


def _digest(body: Node, target: Target) -> str:
    """Return a digest of a body, all of it parsed, that is the one of a body read apart."""
    values = body.fields
    rest = {name: value for name, value in values.items() if name not in READ_APART}
    apart = {name: value_digest(values[name]) for name in READ_APART - {"contents"} if name in values}
    contents = values.get("contents")
    listed = contents if isinstance(contents, list) else [contents]
    return body_digest([target.model, rest], apart, list(map(value_digest, listed)))


def _card(card: Mapping[str, Any]) -> dict[str, Any]:
    length = card["max_model_len"]
    limits = {} if length is None else {"inputTokenLimit": length, "outputTokenLimit": length}
    return {
        "name": f"models/{card['id']}",
        "version": "1",
        "displayName": card["id"],
        "description": "",
        **limits,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
