"""From what an agent asked to what the engine is sent. Pure.

Rule 1: only keys that a rollout's rules or capture itself need are changed; every other value passes as raw JSON.
Rule 2: what was asked and what was sent are both recorded; a value that nobody saw is absent, never guessed.
Rule 3: what steers the engine and not the reply is taken out unless the rollout allows it, and a notice names it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any

import msgspec

from capture import keys, media
from capture.dialects.base import Request, with_fields
from capture.engines.base import Adapter
from capture.errors import ClientError
from capture.rawjson import join, split

PINNABLE = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "seed_exact",
)
"""Sampling values that a rollout may pin; `seed_exact` is a switch for `seed`, not a value of its own."""

STEERING_FIELDS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "priority",
    "request_id",
    "cache_salt",
    "lora_request",
    "data_parallel_rank",
    "input_ids",
    "rid",
    "extra_key",
    "lora_path",
)
"""Body fields that choose how and where the engine works (vLLM 0.32 and SGLang 0.5 request models)."""

STEERING_HEADERS = ("x-request-id", "x-data-parallel-rank", "x-override-rid", "x-override-priority")
"""Headers of the same kind."""

COMPLETIONS_DEFAULT = 16
"""Tokens that `/v1/completions` samples where the request doesn't say."""

_SEED_BITS = 31
"""A mixed seed stays within what every engine takes."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout lays down for its calls."""

    pins: Mapping[str, Any] = {}
    max_output_tokens: int | None = None
    model: str | None = None
    strict_model: bool = False
    allow: frozenset[str] = frozenset()


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A request ready for the engine."""

    body: bytes
    # As sent, by the same names as `Request.sampling`.
    sampling: dict[str, Any]
    # The model's name in the reply, where it must be replaced by the one asked for.
    reply_model: str | None
    repairs: tuple[str, ...] = ()
    # Names of fields and headers taken out.
    removed: tuple[str, ...] = ()
    # Names of the fields that capture asks with.
    injected: tuple[str, ...] = ()
    # Of the body: its top-level keys with their values as raw JSON.
    fields: dict[str, bytes] = {}


def admit(
    request: Request,
    adapter: Adapter,
    rules: Rules,
    *,
    served: tuple[str, ...],
    rollout: str,
    n: int,
    without: Set[str] = frozenset(),
) -> Admitted:
    """Apply a rollout's rules to a request and add what capture needs, `without` the fields that the engine refuses.

    `served` are the engine's models. Raises `ClientError`: `model_not_found` (404, with `strict_model`) or
    `media_url_refused` (400).
    """
    refuse_media_urls(request, rules.allow)
    changes: dict[str, bytes | None] = {}
    sampling = dict(request.sampling)

    removed = tuple(name for name in STEERING_FIELDS if name in request.fields and name not in rules.allow)
    changes.update(dict.fromkeys(removed))

    model = rules.model or (served[0] if served else None)
    if rules.strict_model and request.model is not None and request.model != model:
        raise ClientError(
            "model_not_found",
            f"The model `{request.model}` is not this rollout's.",
            hint=f"Ask for `{model}`; the rollout was registered with strict_model.",
            status=404,
            param="model",
        )
    reply_model = None
    if model is not None and request.model != model:
        changes["model"] = msgspec.json.encode(model)
        reply_model = request.model

    for name, value in _pinned(rules.pins, rollout, n).items():
        changes[name] = msgspec.json.encode(value)
        sampling[name] = value
    if rules.max_output_tokens is not None:
        for name, value in _clamped(request, rules.max_output_tokens).items():
            changes[name] = msgspec.json.encode(value)
            sampling[name] = value

    injected = adapter.inject(request)
    changes.update({name: value for name, value in injected.items() if name not in without})
    fields = with_fields(request.fields, changes)
    return Admitted(
        body=join(fields),
        sampling=sampling,
        reply_model=reply_model,
        removed=removed,
        injected=tuple(injected),
        fields=fields,
    )


def refused_fields(body: bytes, injected: Iterable[str]) -> set[str]:
    """Return which of the injected fields an engine's 400 or 422 names: their names stand in its message."""
    text = body.decode("utf-8", "replace")
    return {name for name in injected if re.search(rf"\b{re.escape(name)}\b", text)}


def with_model(body: bytes, model: str | None) -> bytes:
    """Return a JSON object's body with its `model` replaced, if it has one; any other body as it is."""
    try:
        fields = split(body)
    except ValueError:
        return body
    if model is None or "model" not in fields:
        return body
    return join(with_fields(fields, {"model": msgspec.json.encode(model)}))


def hints(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that claim a role, parent, session or label, by lower-case name: shown, never deciding.

    A secret in one of them is masked: they are recorded, and no content.

    Names are those that opencode 1.18, codex 0.171, claude-code 2.1, Harbor 0.25 and the Stainless SDKs send, and
    Treering's own `x-treering-…`.
    """
    return {name.lower(): keys.masked(value) for name, value in headers if name.lower() in _HINTS}


_HINTS = frozenset(
    (
        "x-treering-role",
        "x-treering-parent",
        "x-treering-label",
        # W3C Trace Context: which trace of the agent's side a call belongs to. It goes on to the engine too.
        "traceparent",
        "x-session-id",
        "x-parent-session-id",
        "session-id",
        "thread-id",
        "x-codex-parent-thread-id",
        "x-openai-subagent",
        "x-claude-code-session-id",
        "x-claude-code-agent-id",
        "x-stainless-retry-count",
    )
)

_DROPPED_HEADERS = frozenset(
    (
        # Hop by hop (RFC 9110, 7.6.1), and what our own client writes.
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "content-encoding",
        "accept-encoding",
        "expect",
        # The agent's secret is never sent to an engine, nor are its cookies.
        "authorization",
        "x-api-key",
        "x-goog-api-key",
        "api-key",
        "cookie",
    )
)


def engine_headers(
    headers: Iterable[tuple[str, str]], allow: frozenset[str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the agent's headers that go on to the engine, and the names of those that steer and were taken out.

    None that holds a secret goes on, whatever its name.
    """
    out: list[tuple[str, str]] = []
    removed: list[str] = []
    allowed = {word.lower() for word in allow}
    lowered = [(name.lower(), name, value) for name, value in headers]
    named = {part.strip().lower() for low, _, value in lowered if low == "connection" for part in value.split(",")}
    for low, name, value in lowered:
        if low in _DROPPED_HEADERS or low in named or low.startswith("x-treering-") or keys.holds_secret(value):
            continue
        if low in STEERING_HEADERS and low not in allowed:
            removed.append(low)
            continue
        out.append((name, _one_line(value)))
    return out, removed


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]+")
"""What no header's value may hold (RFC 9110, 5.5), and aiohttp refuses to send."""


def _named_hop_by_hop(headers: Iterable[tuple[str, str]]) -> set[str]:
    """Return the headers that `Connection` names: for this hop alone, whatever they are."""
    return {
        part.strip().lower() for name, value in headers if name.lower() == "connection" for part in value.split(",")
    }


def reply_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the engine's response headers that go on to the agent: all but hop-by-hop ones and the body's framing.

    A value is a line: what an engine folded, or put a control character into, is one line for the agent.
    """
    listed = list(headers)
    dropped = _DROPPED_HEADERS
    if named := _named_hop_by_hop(listed):
        dropped |= named
    return [(name, _one_line(value)) for name, value in listed if name.lower() not in dropped]


def _one_line(value: str) -> str:
    return value if value.isprintable() else _CONTROL.sub(" ", value)


def _pinned(pins: Mapping[str, Any], rollout: str, n: int) -> dict[str, Any]:
    out = {name: value for name, value in pins.items() if name != "seed_exact"}
    if "seed" in out and not pins.get("seed_exact"):
        # One seed for all would make the siblings of a group, and equal prompts of one rollout, draw the same tokens.
        mixed = hashlib.blake2b(f"{out['seed']}\0{rollout}\0{n}".encode(), digest_size=8).digest()
        out["seed"] = int.from_bytes(mixed, "little") & ((1 << _SEED_BITS) - 1)
    return out


def _clamped(request: Request, limit: int) -> dict[str, int]:
    given = {
        name: request.sampling.get(name)
        for name in ("max_completion_tokens", "max_tokens")
        if request.sampling.get(name) is not None
    }
    out = {name: limit for name, value in given.items() if isinstance(value, int | float) and value > limit}
    if given:
        return out
    if request.path == "/v1/completions":
        # It knows the older name alone, and gives 16 tokens where the field is absent (vLLM 0.32, OpenAI).
        return {"max_tokens": limit if "max_tokens" in request.fields else min(COMPLETIONS_DEFAULT, limit)}
    return {"max_completion_tokens": limit}


def refuse_media_urls(request: Request, allow: Set[str]) -> None:
    """Raise `ClientError` `media_url_refused` (400) where the engine would fetch a medium that the rollout forbids."""
    if media.ALLOWED in allow:
        return
    if request.elements is None:
        media.refuse_in_messages(request.fields.get("messages", b""))
    elif request.elements.heard.fetches:
        # Of four hundred messages hardly ever one has any, so they are not looked at one by one.
        i, at = next((i, one.fetched) for i, one in enumerate(request.elements) if one.fetched is not None)
        raise media.refused(f"messages[{i}].{at}")


def relayed(body: bytes, model: str | None, allow: Set[str]) -> bytes:
    """Return the body of a request that is relayed unrecorded, for the engine. Raises `ClientError` as above."""
    if media.ALLOWED not in allow:
        media.refuse_in(body)
    return with_model(body, model)
