"""OpenAI Chat Completions, as vLLM 0.32 serves it (`vllm/entrypoints/openai/chat_completion/protocol.py`).

Rules
- Refused here is only what no engine could take: no JSON, no object, and the few fields that Treering itself must
  understand to serve the call. All else goes on for the engine to judge, so that its own error reaches the agent.
- What cannot be decoded for the record is forwarded all the same, and `Request.undecoded` says what is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capture import rawjson, sse
from capture.dialects.base import NO_TARGET, Asked, Earlier, Request, Target, Translator
from capture.dialects.elements import Elements, Tools
from capture.dialects.said import Element, Said
from capture.errors import ClientError, TreeringError
from graph import messages as canonical
from graph.records import Message

# One for all: the dialects that are translated come by here too.
_elements = Elements()

MAX_CHOICES = 128
"""Most replies one call may ask for: OpenAI's own limit; each is a record of its own."""

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "n",
)

# Fields that, with any value but null, false, 0 or empty, take tokens away from the sampler or force them on it. From
# vLLM's request (`guided_…` before 0.12, then `structured_outputs`) and SGLang's (`regex`, `ebnf`, `json_schema`).
_CONSTRAINTS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "grammar",
    "regex",
    "ebnf",
    "json_schema",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "thinking_token_budget",
    "use_beam_search",
    "watermarking",
    "logits_processors",
    "custom_logit_processor",
)


_CONSTRAINING = frozenset(_CONSTRAINTS)


class Chat:
    """The dialect `chat`."""

    name = "chat"
    bears_comments = True

    def read(
        self, body: bytes, *, target: Target = NO_TARGET, earlier: Sequence[Earlier] = (), rollout: str = ""
    ) -> Request:
        """Read a request. Raises `ClientError` (400) naming the field for what no engine could take."""
        begun = _elements.maybe_begun(body, rollout=rollout)
        if begun is not None:
            return self.read_fields(begun[0], elements=begun[1], body=body)
        try:
            fields = rawjson.split(body)
        except ValueError as error:
            raise ClientError(
                "invalid_json", f"The request body can't be read: {error}.", hint="Send one JSON object."
            ) from error
        return self.read_fields(fields, body=body, rollout=rollout)

    def read_fields(
        self,
        fields: dict[str, bytes],
        *,
        elements: Sequence[Element] | None = None,
        body: bytes = b"",
        rollout: str = "",
    ) -> Request:
        """Read a request that was taken apart; `elements` are those of its messages, where they have been read.

        `body` stands for what can't be put in order. Raises `ClientError` as `read` does.
        """
        _check(fields)
        doubts: list[str] = []
        # What strict JSON can't read is decoded with the other values, as far as that goes.
        said = (
            _elements.maybe_messages(fields["messages"], rollout=rollout)
            if elements is None
            else elements
            if isinstance(elements, Said)
            else Said(elements)
        )
        tools = _elements.maybe_tools(fields["tools"]) if "tools" in fields else None
        read = {name for name, found in (("messages", said), ("tools", tools)) if found is not None}
        values = _values({name: raw for name, raw in fields.items() if name not in read}, doubts)
        options = values.get("stream_options")
        top = values.get("top_logprobs")
        streamed = values.get("stream") is True
        asked = Asked(
            token_ids=values.get("return_token_ids") is True,
            logprobs=values.get("logprobs") is True,
            top_logprobs=top if isinstance(top, int) and not isinstance(top, bool) else None,
            usage=streamed and isinstance(options, dict) and options.get("include_usage") is True,
        )
        return Request(
            fields=fields,
            streamed=streamed,
            model=values.get("model"),
            choices=values.get("n") or 1,
            asked=asked,
            messages=_messages(values.get("messages")) if said is None else said.messages,
            tools=canonical.tools_digest(values.get("tools")) if tools is None else tools.digest,
            tool_names=canonical.tool_names(values.get("tools")) if tools is None else tools.names,
            sampling={name: values[name] for name in _SAMPLING if values.get(name) is not None},
            constrained=_constrained(values),
            body=_digest(values, said, tools, body),
            undecoded="; ".join(doubts) or None,
            elements=said,
        )

    def read_count(self, body: bytes, *, target: Target = NO_TARGET) -> Request:
        """Read a request to count tokens. Raises `ClientError` as `read` does."""
        return self.read(body, target=target)

    def refers_to(self, body: bytes) -> str | None:
        """Return None: each request brings its whole history."""
        return None

    def translator(self, request: Request) -> Translator | None:
        """Return None: the engine speaks this dialect."""
        return None

    def counted(self, tokens: int) -> bytes:
        """Return a count; this dialect has no route for it, and vLLM's `/tokenize` says it so."""
        return msgspec.json.encode({"count": tokens})

    def models(self, cards: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the list of models, as vLLM and OpenAI give it."""
        return msgspec.json.encode({"object": "list", "data": [_card(card) for card in cards]})

    def model(self, card: Mapping[str, Any]) -> bytes:
        """Return one model, as vLLM and OpenAI give it."""
        return msgspec.json.encode(_card(card))

    def error(self, error: TreeringError) -> bytes:
        """Return the body of an error: `{"error": {"message", "type", "param", "code"}}`, the hint in the message."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": error.told,
                    "type": _error_type(error.status),
                    "param": error.param,
                    "code": error.code,
                }
            }
        )

    def last_reply(self, request: Request, *, reply_id: str, created: int, text: str) -> tuple[str, bytes]:
        """Return content type and body of a well-formed reply with `text`, no tool call and a normal stop.

        In the request's own stream mode, with as many choices as it asked for. `created` is in seconds. Nothing was
        sampled, so its usage is zeros.
        """
        usage = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
        head: dict[str, Any] = {
            "id": reply_id,
            "object": "chat.completion.chunk" if request.streamed else "chat.completion",
            "created": created,
            "model": request.model or "",
        }
        indices = range(request.choices)
        if not request.streamed:
            choices = [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
                for index in indices
            ]
            return "application/json", msgspec.json.encode({**head, "choices": choices, "usage": usage})
        deltas: tuple[tuple[dict[str, str], str | None], ...] = (
            ({"role": "assistant", "content": ""}, None),
            ({"content": text}, None),
            ({}, "stop"),
        )
        chunks: list[dict[str, Any]] = [
            {**head, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]}
            for delta, finish in deltas
            for index in indices
        ]
        if request.asked.usage:
            chunks.append({**head, "choices": [], "usage": usage})
        events = [msgspec.json.encode(chunk) for chunk in chunks] + [b"[DONE]"]
        return "text/event-stream; charset=utf-8", b"".join(sse.encode(event) for event in events)


def rest() -> bool:
    """Let go of messages that no request has brought for a while; say whether there were any."""
    return _elements.rest()


def _check(fields: Mapping[str, bytes]) -> None:
    """Raise `ClientError` for a field that Treering must understand and can't."""
    if "messages" not in fields:
        raise ClientError("missing_field", "The field 'messages' is missing.", param="messages")
    _expect(fields, "messages", b"[", "a list of messages")
    for name, starts, what in (
        ("model", (b'"', b"null"), "a string"),
        ("stream", (b"true", b"false", b"null"), "true or false"),
    ):
        if name in fields:
            _expect(fields, name, starts, what)
    n = fields.get("n", b"null")
    # Read as digits: Python would refuse to make a number of five thousand of them.
    if n != b"null" and not (n.isdigit() and len(n) <= 3 and 1 <= int(n) <= MAX_CHOICES):
        raise _wrong("n", f"a whole number from 1 to {MAX_CHOICES}")


def _expect(fields: Mapping[str, bytes], name: str, starts: bytes | tuple[bytes, ...], what: str) -> None:
    # The first byte of a JSON value tells its type.
    if not fields[name].startswith(starts):
        raise _wrong(name, what)


def _wrong(name: str, what: str) -> ClientError:
    return ClientError("wrong_type", f"The field '{name}' must be {what}.", param=name)


def _values(fields: Mapping[str, bytes], doubts: list[str]) -> dict[str, Any]:
    """Decode every field, as far as that goes."""
    values: dict[str, Any] = {}
    for name, raw in fields.items():
        try:
            values[name] = msgspec.json.decode(raw)
            continue
        except (msgspec.DecodeError, RecursionError):
            pass
        try:
            values[name] = rawjson.mended(rawjson.loads(raw))
            doubts.append(f"'{name}' is not strict JSON: it holds NaN, or half a surrogate pair (recorded as U+FFFD)")
        except ValueError as error:
            doubts.append(f"'{name}' can't be decoded ({error})")
    return values


def _messages(items: Any) -> tuple[Message, ...]:
    return tuple(canonical.from_chat(item) for item in items) if isinstance(items, list) else ()


def _constrained(values: Mapping[str, Any]) -> tuple[str, ...]:
    found = [] if _CONSTRAINING.isdisjoint(values) else [name for name in _CONSTRAINTS if values.get(name)]
    form = values.get("response_format")
    if form and not (isinstance(form, dict) and form.get("type") == "text"):
        found.append("response_format")
    choice = values.get("tool_choice")
    if isinstance(choice, dict) or choice in ("required", "any"):
        found.append("tool_choice")
    return tuple(found)


def _digest(values: Mapping[str, Any], said: Said | None, tools: Tools | None, body: bytes) -> str:
    """Return a digest of the body that key order and spaces don't change; `values` are those that are not read."""
    try:
        canon = msgspec.json.encode(values, order="sorted")
    except (UnicodeEncodeError, OverflowError, RecursionError):
        try:
            canon = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
        except RecursionError:
            canon = body
    state = hashlib.blake2b(canon, digest_size=16)
    if tools is not None:
        state.update(b"\0tools" + tools.value)
    if said is not None:
        state.update(b"\0messages" + said.heard.values.data)
    return state.hexdigest()


def _error_type(status: int) -> str:
    """Return OpenAI's name for the kind of error that a status means."""
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _card(card: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": card["id"],
        "object": "model",
        "created": card["created"],
        "owned_by": "treering",
        "max_model_len": card["max_model_len"],
    }
