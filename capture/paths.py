"""Which of the data plane's routes a request means, and which secret it shows. Pure.

Rule 1: paths are matched on their raw form, by whole segments from the end: base URLs carry prefixes (`/v1`, a
gateway's path, `/r/{secret}`), and agents append to them.
Rule 2: the secret is looked for in one order, and the first place that holds one decides; a wrong key is never helped
by a right one elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

Kind = Literal["chat", "models", "model", "relay", "health", "unknown"]

_POST: dict[tuple[str, ...], Kind] = {("chat", "completions"): "chat"}
_GET: dict[tuple[str, ...], Kind] = {("models",): "models", ("healthz",): "health"}
RELAYED: tuple[tuple[str, str], ...] = (
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/embeddings"),
    ("GET", "/version"),
)
"""Relayed to the engine and not recorded: none of them samples (vLLM 0.32's routes)."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is for."""

    kind: Kind
    # From `/r/{secret}/…`; None when the path holds none.
    secret: str | None = None
    # A relayed route's path at the engine; a model's id.
    target: str = ""


def locate(method: str, raw_path: str, *, allowed: tuple[str, ...] = ()) -> Route:
    """Find the route of a request.

    `raw_path` is the path as it stood on the wire, still quoted, without the query. `allowed` are further paths that
    the operator lets through to the engine, any method.
    """
    segments = tuple(part for part in raw_path.split("/") if part)
    secret: str | None = None
    for i, part in enumerate(segments[:-1]):
        if part == "r":
            secret = unquote(segments[i + 1])
            segments = segments[:i] + segments[i + 2 :]
            break
    if method == "HEAD" and not segments:
        return Route(kind="health", secret=secret)
    table = _POST if method == "POST" else _GET if method in ("GET", "HEAD") else {}
    for tail, kind in table.items():
        if segments[-len(tail) :] == tail:
            return Route(kind=kind, secret=secret)
    if method == "GET" and "models" in segments[:-1]:
        # A model's id may hold slashes, quoted or not.
        at = segments.index("models")
        return Route(kind="model", secret=secret, target=unquote("/".join(segments[at + 1 :])))
    for verb, path in (*RELAYED, *((method, path) for path in allowed)):
        wanted = tuple(part for part in path.split("/") if part)
        if verb == method and wanted and segments[-len(_bare(wanted)) :] == _bare(wanted):
            return Route(kind="relay", secret=secret, target=path)
    return Route(kind="unknown", secret=secret)


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


def _bare(path: tuple[str, ...]) -> tuple[str, ...]:
    return path[1:] if path[0] == "v1" and len(path) > 1 else path
