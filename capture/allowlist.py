"""Which engines a rollout may name: URLs under the prefixes that the operator allows, and no others. Pure.

Rule 1: a URL is taken apart before it is compared: scheme, host and port must be equal, the path must lie under the
prefix's by whole segments. `http://gpu:80` allows neither `http://gpu:8000` nor `http://gpu.evil.example`.
Rule 2: what two parsers might read in two ways is refused rather than read: a user or a password, a query or fragment,
a backslash, white space or a control character, a dot segment or an encoded slash in any spelling, a host that is not
plain ASCII, a number that is an address in disguise.
Rule 3: a name is what the operator's resolver says it is. Whoever allows a name trusts its zone; an address can't move.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\Z")
# 2130706433, 0x7f000001, 0177.0.0.1, 127.1: addresses to some resolvers, names to others.
_NUMERIC = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*\Z")
_CLEAN = re.compile(r"[!-\[\]-~]+\Z")

Unsafe = ipaddress.IPv4Address | ipaddress.IPv6Address


class Place(NamedTuple):
    """A URL taken apart."""

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]


def read(url: str) -> Place:
    """Take an engine's URL apart; the path is without `/v1` and slashes at its end. Raises `ValueError` saying why."""
    if not _CLEAN.match(url):
        raise ValueError("it holds white space, a backslash, or what is no ASCII")
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError("it must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("it names a user or a password")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError("it has a query or a fragment")
    host, port = (parts.hostname or "").lower(), parts.port
    if parts.netloc.endswith(":") or port == 0:
        raise ValueError("its port is none")
    return Place(scheme, _host(host), port or _PORTS[scheme], _path(parts.path))


def allows(prefixes: Iterable[str], url: str) -> bool:
    """Say whether a URL lies under one of these prefixes; False for one that can't be read."""
    try:
        given = read(url)
    except ValueError:
        return False
    for prefix in prefixes:
        wanted = read(prefix)
        if given[:3] == wanted[:3] and given.path[: len(wanted.path)] == wanted.path:
            return True
    return False


def address(place: Place) -> Unsafe | None:
    """Return the address that a URL names, None where it names a name."""
    try:
        return ipaddress.ip_address(place.host)
    except ValueError:
        return None


def breadth(prefix: str) -> str | None:
    """Return what is worrying about an allowed prefix, as a sentence's end; None for one that is narrow."""
    place = read(prefix)
    found = address(place)
    if found is not None and (found.is_link_local or found.is_multicast or found.is_unspecified):
        return "is where clouds answer for a machine's own credentials, or no one machine"
    if place.host == "localhost" or (found is not None and found.is_loopback):
        return "is this machine: whoever registers rollouts can make Treering call what listens on that port"
    if urlsplit(prefix).port is None:
        return f"names no port, so it means port {place.port}"
    return None


def _host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if "%" in host or not _HOST.match(host) or ".." in host or _NUMERIC.match(host):
        raise ValueError("its host is none that every resolver reads alike")
    return host


def _path(path: str) -> tuple[str, ...]:
    trimmed = path.rstrip("/").removesuffix("/v1").rstrip("/")
    segments = tuple(trimmed.split("/"))[1:]
    for segment in segments:
        plain = unquote(unquote(segment)).partition(";")[0]
        if plain in ("", ".", "..") or "/" in plain or "\\" in plain or not plain.isprintable():
            raise ValueError("its path has an empty or a dot segment, or an encoded slash")
    return segments
