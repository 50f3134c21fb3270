"""How a tunnel is described in one word: `direct`, `direct=HOST`, `custom=URL`, `gradio`, `gradio=HOST:PORT`,
`ssh=[USER@]HOST[:PORT][,bind=ADDRESS][,port=N][,url=URL]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tunnel.base import Tunnel
from tunnel.errors import SpecError
from tunnel.given import Custom, Direct
from tunnel.gradio import Gradio
from tunnel.ssh import Ssh

ACCEPTED = "direct, direct=HOST, custom=URL, gradio, gradio=HOST:PORT, ssh=USER@HOST"

MADE = frozenset(("gradio", "ssh"))
"""Kinds that are made anew, so that there can be as many as are needed; of the others there is what there is."""

_HOST_PORT = re.compile(r"^(?P<host>[^:\s]+|\[[0-9A-Fa-f:]+\])(?::(?P<port>\d{1,5}))?$")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One description, read."""

    kind: str
    text: str
    make: Callable[[], Tunnel]
    # Whether every opening gives the same URL: there can be one such at a time, and it may come back after a restart.
    fixed: bool = False


def parse(text: str) -> Spec:
    """Read a description. Raises `SpecError` saying what is accepted."""
    kind, given, rest = text.partition("=")
    reader = _READERS.get(kind)
    if reader is None:
        raise SpecError(f"a tunnel is one of {ACCEPTED}; not {text!r}")
    if given and not rest:
        raise SpecError(f"nothing stands behind {kind}=; a tunnel is one of {ACCEPTED}")
    # Where sshd chooses the port, each opening has another.
    fixed = kind not in MADE or (kind == "ssh" and ",port=" in rest)
    return Spec(kind=kind, text=text, make=reader(rest), fixed=fixed)


def _direct(rest: str) -> Callable[[], Tunnel]:
    found = _HOST_PORT.match(rest) if rest else None
    if rest and (found is None or found["port"]):
        raise SpecError(f"direct= takes the name or address of this machine, without a port; not {rest!r}")
    return lambda: Direct(rest.strip("[]") or None)


def _custom(rest: str) -> Callable[[], Tunnel]:
    _web(rest, "custom=")
    return lambda: Custom(rest)


def _gradio(rest: str) -> Callable[[], Tunnel]:
    found = _HOST_PORT.match(rest) if rest else None
    if rest and (found is None or not found["port"]):
        raise SpecError(f"gradio= takes an FRP server's HOST:PORT; not {rest!r}")
    return lambda: Gradio(rest or None)


def _ssh(rest: str) -> Callable[[], Tunnel]:
    where, *pairs = rest.split(",")
    user, at, address = where.rpartition("@")
    found = _HOST_PORT.match(address)
    if found is None or found["host"].startswith("-") or (at and not user):
        raise SpecError(f"ssh= takes [USER@]HOST[:PORT]; not {where!r}")
    fields: dict[str, Any] = {"port": int(found["port"]) if found["port"] else None}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in ("bind", "port", "url") or not value:
            raise SpecError(f"ssh=… takes bind=ADDRESS, port=N and url=URL behind commas; not {pair!r}")
        if name == "port":
            if not value.isdecimal() or not 0 < int(value) < 65_536:
                raise SpecError(f"port={value} is no port")
            fields["remote_port"] = int(value)
        else:
            fields[name] = value
    if "url" in fields:
        _web(fields["url"], "url=")
    return lambda: Ssh(user + at + found["host"].strip("[]"), **fields)


def _web(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        fine = fine and parts.username is None and parts.password is None and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine or re.search(r"[\s\x00-\x1f]", url):
        raise SpecError(f"{name} takes an http:// or https:// URL without user, query or fragment; not {url!r}")


_READERS: dict[str, Callable[[str], Callable[[], Tunnel]]] = {
    "direct": _direct,
    "custom": _custom,
    "gradio": _gradio,
    "ssh": _ssh,
}
