"""Which of the data plane's routes a request means, and which secret it shows. Pure.

Rule 1: paths are matched on their raw form, by whole segments from the end: base URLs carry prefixes (`/v1`, a
gateway's path, `/r/{secret}`), and agents append to them.
Rule 2: the secret is looked for in one order, and the first place that holds one decides; a wrong key is never helped
by a right one elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from capture import keys

Kind = Literal["call", "count", "stored", "models", "model", "relay", "state", "task", "health", "unknown"]

# The last segments of a POST → what it is, and in which dialect.
_POST: dict[tuple[str, ...], tuple[Kind, str]] = {
    ("chat", "completions"): ("call", "chat"),
    ("completions",): ("call", "completions"),
    ("responses",): ("call", "responses"),
    ("messages", "count_tokens"): ("count", "messages"),
    ("messages",): ("call", "messages"),
}
# Gemini's verbs, behind `models/{model}:`.
_GEMINI: dict[str, tuple[Kind, bool | None]] = {
    "generateContent": ("call", False),
    "streamGenerateContent": ("call", True),
    "countTokens": ("count", None),
}
# Method and last segment, for a rollout's tool servers.
_FOR_TOOLS: dict[tuple[str, ...], Kind] = {
    ("GET", "state"): "state",
    ("PUT", "state"): "state",
    ("GET", "task"): "task",
}
RELAYED: tuple[tuple[str, str], ...] = (
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/embeddings"),
    ("GET", "/version"),
)
"""Relayed to the engine and not recorded: none of them samples (vLLM 0.32's routes)."""


SHORT = 200
"""Characters of a path that is remembered with its route; a longer one is nobody's that asks at it often."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is for, and the dialect that it speaks."""

    kind: Kind
    dialect: str = "chat"
    # From `/r/{secret}/…`; None when the path holds none.
    secret: str | None = None
    # A relayed route's path at the engine; a model's id, a stored reply's.
    target: str = ""
    # Gemini's: whether a stream is asked for.
    streamed: bool | None = None


def locate(
    method: str, raw_path: str, *, headers: Mapping[str, str] | None = None, allowed: tuple[str, ...] = ()
) -> Route:
    """Find the route of a request.

    `raw_path` is the path as it stood on the wire, still quoted, without the query. `headers` tell the dialect where
    the path doesn't. `allowed` are further paths that the operator lets through to the engine, any method.
    """
    spoken = _told(headers or {})
    if len(raw_path) <= SHORT and "/r/" not in raw_path and keys.PREFIX not in raw_path:
        # No secret stands in it, and agents ask at a few again and again.
        return _short(method, raw_path, spoken, allowed)
    return _read(method, raw_path, spoken, allowed)


def _read(method: str, raw_path: str, told: str, allowed: tuple[str, ...]) -> Route:
    segments = tuple(part for part in raw_path.split("/") if part)
    secret: str | None = None
    for i, part in enumerate(segments[:-1]):
        if part == "r":
            secret = unquote(segments[i + 1])
            segments = segments[:i] + segments[i + 2 :]
            break
    found = _located(method, segments, "gemini" if "v1beta" in segments else told, allowed)
    return found if secret is None else msgspec.structs.replace(found, secret=secret)


_short = lru_cache(256)(_read)


def _located(method: str, segments: tuple[str, ...], spoken: str, allowed: tuple[str, ...]) -> Route:
    if method == "HEAD" and not segments:
        return Route(kind="health")
    if method in ("GET", "HEAD") and segments[-1:] == ("healthz",):
        return Route(kind="health")
    if method == "POST":
        for tail, (kind, dialect) in _POST.items():
            if segments[-len(tail) :] == tail:
                return Route(kind=kind, dialect=dialect)
        if "models" in segments[:-1]:
            name, colon, verb = unquote("/".join(segments[segments.index("models") + 1 :])).rpartition(":")
            if colon and verb in _GEMINI:
                kind, streamed = _GEMINI[verb]
                return Route(kind=kind, dialect="gemini", target=name, streamed=streamed)
    if method == "GET":
        if segments[-1:] == ("models",):
            return Route(kind="models", dialect=spoken)
        if "models" in segments[:-1]:
            # A model's id may hold slashes, quoted or not.
            name = unquote("/".join(segments[segments.index("models") + 1 :]))
            return Route(kind="model", dialect=spoken, target=name)
        if segments[-2:-1] == ("responses",):
            return Route(kind="stored", dialect="responses", target=unquote(segments[-1]))
    if (method, *segments[-1:]) in _FOR_TOOLS:
        return Route(kind=_FOR_TOOLS[method, segments[-1]], dialect=spoken)
    for verb, path in (*RELAYED, *((method, path) for path in allowed)):
        wanted = tuple(part for part in path.split("/") if part)
        if verb == method and wanted and segments[-len(_bare(wanted)) :] == _bare(wanted):
            return Route(kind="relay", dialect=spoken, target=path)
    return Route(kind="unknown", dialect=spoken)


def _told(headers: Mapping[str, str]) -> str:
    """Return the dialect that headers tell where the path doesn't: that of an error, or of a list of models."""
    if "x-goog-api-key" in headers:
        return "gemini"
    if "anthropic-version" in headers:
        return "messages"
    return "chat"


def find_secret(headers: Mapping[str, str], query: str, route: Route) -> str | None:
    """Return the secret that a request shows, None if it shows none.

    Order: `Authorization: Bearer`, `x-api-key`, `x-goog-api-key`, `api-key`, `?key=`, the path `/r/{secret}/…`.
    `headers` must look names up without regard to case.
    """
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    for name in ("x-api-key", "x-goog-api-key", "api-key"):
        if given := headers.get(name, "").strip():
            return given
    for name, given in parse_qsl(query):
        if name == "key" and given:
            return given
    return route.secret


def without_key(raw_query: str) -> str:
    """Return a query, as it stood on the wire, without the places where a secret is looked for, and without secrets."""
    pairs = raw_query.split("&")
    return "&".join(
        pair for pair in pairs if unquote(pair.partition("=")[0]) != "key" and not keys.holds_secret(unquote(pair))
    )


def _bare(path: tuple[str, ...]) -> tuple[str, ...]:
    return path[1:] if path[0] == "v1" and len(path) > 1 else path
