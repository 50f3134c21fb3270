"""OpenAI Completions, as vLLM 0.32 serves it (`vllm/entrypoints/openai/completion/protocol.py`); it passes through.

Rules
- Refused is what `chat` refuses, and what could not be recorded as a call: several prompts at once, and prompts that
  are no text and no ids (`prompt_embeds`). All else goes on for the engine to judge.
- A prompt of text is one user message, so that a conversation can be told by its texts; one of ids has no messages,
  and is told by its ids alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capture import rawjson, sse
from capture.dialects.base import NO_TARGET, Asked, Earlier, Request, Target
from capture.dialects.chat import Chat
from capture.errors import ClientError
from graph import messages as canonical

_chat = Chat()
_text = msgspec.json.Decoder(str).decode


class Completions(Chat):
    """The dialect `completions`: lists of models, errors and counts are chat's own."""

    name = "completions"

    def read(
        self, body: bytes, *, target: Target = NO_TARGET, earlier: Sequence[Earlier] = (), rollout: str = ""
    ) -> Request:
        """Read a request. Raises `ClientError` (400) naming the field for what no engine could take."""
        try:
            fields = rawjson.split(body)
        except ValueError as error:
            raise ClientError(
                "invalid_json", f"The request body can't be read: {error}.", hint="Send one JSON object."
            ) from error
        plain = _maybe_plain(fields)
        return _read_any(fields) if plain is None else _read_plain(fields, plain)

    def last_reply(self, request: Request, *, reply_id: str, created: int, text: str) -> tuple[str, bytes]:
        """Return content type and body of a well-formed reply with `text` and a normal stop.

        In the request's own stream mode, with as many choices as it asked for. `created` is in seconds. Nothing was
        sampled, so its usage is zeros.
        """
        usage = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
        head = {"id": reply_id, "object": "text_completion", "created": created, "model": request.model or ""}
        indices = range(request.choices)
        if not request.streamed:
            choices = [_choice(index, text, "stop") for index in indices]
            return "application/json", msgspec.json.encode({**head, "choices": choices, "usage": usage})
        pieces: tuple[tuple[str, str | None], ...] = ((text, None), ("", "stop"))
        chunks: list[dict[str, Any]] = [
            {**head, "choices": [_choice(index, piece, finish)]} for piece, finish in pieces for index in indices
        ]
        if request.asked.usage:
            chunks.append({**head, "choices": [], "usage": usage})
        events = [msgspec.json.encode(chunk) for chunk in chunks] + [b"[DONE]"]
        return "text/event-stream; charset=utf-8", b"".join(sse.encode(event) for event in events)


def _read_any(fields: dict[str, bytes]) -> Request:
    text = _prompt(fields)
    messages = [] if text is None else [{"role": "user", "content": text}]
    # Read as a chat with the same fields: sampling values, limits and constraints have the same names.
    return _with(_chat.read(rawjson.join(fields | {"messages": msgspec.json.encode(messages)})), fields)


def _read_plain(fields: dict[str, bytes], text: str) -> Request:
    """Read a request whose prompt is a text: all of that is new to chat each time, so it is read and hashed once."""
    said = canonical.from_chat({"role": "user", "content": text})
    rest = {name: raw for name, raw in fields.items() if name != "prompt"} | {"messages": b"[]"}
    request = _chat.read_fields(rest, elements=())
    body = hashlib.blake2b(request.body.encode() + b"\0prompt" + said.digest, digest_size=16)
    return _with(msgspec.structs.replace(request, messages=(said,), body=body.hexdigest(), elements=None), fields)


def _with(request: Request, fields: dict[str, bytes]) -> Request:
    return msgspec.structs.replace(
        request,
        fields=fields,
        path="/v1/completions",
        # Tools have no meaning here.
        tools=None,
        tool_names=(),
        asked=_asked(fields, request.asked),
    )


def _maybe_plain(fields: Mapping[str, bytes]) -> str | None:
    """Return a prompt that is a text, in strict JSON; None for any other, and where there is more to look at."""
    raw = fields.get("prompt", b"")
    if not raw.startswith(b'"') or "prompt_embeds" in fields:
        return None
    try:
        return _text(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}


def _prompt(fields: Mapping[str, bytes]) -> str | None:
    """Return the prompt's text, None for one of ids. Raises `ClientError` for what is none, or several."""
    if fields.get("prompt_embeds", b"null") != b"null":
        raise ClientError(
            "untranslatable",
            "The field 'prompt_embeds' holds a prompt without token ids, which can't be captured.",
            hint="Send a text or token ids as `prompt`.",
            param="prompt_embeds",
        )
    if "prompt" not in fields:
        raise ClientError("missing_field", "The field 'prompt' is missing.", param="prompt")
    try:
        prompt = rawjson.mended(rawjson.loads(fields["prompt"]))
    except ValueError:
        # Deeper than any prompt: the engine's to refuse.
        return None
    if not isinstance(prompt, str | list) and prompt is not None:
        raise ClientError("wrong_type", "The field 'prompt' must be a text or a list of token ids.", param="prompt")
    if isinstance(prompt, list):
        if len(prompt) > 1 and any(isinstance(each, str | list) for each in prompt):
            raise ClientError(
                "several_prompts",
                f"The field 'prompt' holds {len(prompt)} prompts; one call is one prompt.",
                hint="Send a request for each.",
                param="prompt",
            )
        prompt = prompt[0] if prompt else None
    return prompt if isinstance(prompt, str) else None


def _asked(fields: Mapping[str, bytes], asked: Asked) -> Asked:
    """Return what the client asked to see: `logprobs` is a number here, and 0 asks for those of the sampled tokens."""
    raw = fields.get("logprobs", b"null")
    number = int(raw) if raw.isdigit() and len(raw) < 10 else None
    return msgspec.structs.replace(asked, logprobs=number is not None, top_logprobs=number)
