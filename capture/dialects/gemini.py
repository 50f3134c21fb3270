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
from capture.dialects.base import NO_TARGET, Asked, Earlier, Request, Target, Translator, translated
from capture.dialects.chat import Chat
from capture.dialects.gemini_error import error_body
from capture.dialects.gemini_fields import Node
from capture.dialects.gemini_reply import Form, GeminiTranslator
from capture.dialects.gemini_request import chat_request, shows_thoughts
from capture.errors import TreeringError

_chat = Chat()


class Gemini:
    """The dialect `gemini`."""

    name = "gemini"
    bears_comments = False

    def read(self, body: bytes, *, target: Target = NO_TARGET, earlier: Sequence[Earlier] = ()) -> Request:
        """Read a request. Raises `ClientError` (400) naming the field for what can't be taken or translated."""
        values, strict = field.decoded(body)
        return _read(Node(values, ""), target, strict=strict)

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


def _read(body: Node, target: Target, *, strict: bool) -> Request:
    streamed = bool(target.streamed)
    try:
        chat, repairs = chat_request(body, model=target.model, streamed=streamed)
        thoughts = shows_thoughts(body)
        fields = {name: field.encoded(value, strict=strict) for name, value in chat.items()}
        digest = field.digest([target.model, body.fields], strict=strict)
    except RecursionError as error:
        raise field.unreadable("it is nested too deeply") from error
    request = _chat.read(rawjson.join(fields))
    # Usage comes through to the translator, which tells it in the API's own way.
    asked = Asked(usage=streamed, logprobs=request.asked.logprobs, top_logprobs=request.asked.top_logprobs)
    return msgspec.structs.replace(
        request,
        asked=asked,
        body=digest,
        repairs=tuple(repairs),
        original=Form(sse=target.sse, thoughts=thoughts),
    )


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
