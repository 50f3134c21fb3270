"""What of an installation can be reached, or read, by others than should: for `treering doctor`, and for the start.

Rule 1: everything said here is safe to paste: addresses, flags and paths; never a key, a secret or a password.
Rule 2: nothing is opened but to be looked at: modes of files, and a key's length.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from capture import allowlist
from capture.client import find_key
from capture.errors import UsageError
from capture.keys import LEAST_KEY
from capture.settings import Settings, is_loopback, key_path, parse_address, parse_engine, store_path


class Exposed(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is open to others."""

    name: str
    message: str
    # What to do.
    todo: str


def exposed(settings: Settings) -> list[Exposed]:
    """Return what is open to others, the worst first."""
    return [*_planes(settings), *_weak_key(settings), *files(settings), *_engines(settings), *_paths(settings)]


def files(settings: Settings) -> Iterator[Exposed]:
    """Yield files that others may read although they hold keys, or what agents said."""
    tls = settings.tls_key or settings.tls_cert
    keys = [settings.admin_key_file, tls, *(item.partition("=")[2] for item in settings.engine_key_file)]
    if not settings.admin_key_file and not settings.admin_key:
        keys.append(str(key_path(settings.store)))
    for path in filter(None, keys):
        if mode := _mode(Path(path)) & (stat.S_IRWXG | stat.S_IRWXO):
            who = "everyone" if mode & stat.S_IRWXO else "their group"
            yield Exposed(name="key file", message=f"{path} is open to {who} on this machine", todo=f"chmod 600 {path}")
    store = store_path(settings.store)
    for path in () if store is None else (str(store), f"{store}-wal"):
        if _mode(Path(path)) & stat.S_IRWXO:
            message = f"{path} is open to everyone on this machine: it holds all that agents and models said"
            yield Exposed(name="store file", message=message, todo=f"chmod 600 {path}")


def make_private(settings: Settings) -> None:
    """Make a new store's file, empty, for its owner alone: SQLite would let everyone read what its umask does.

    One that exists is left as it is, and what can't be made is for the store to say.
    """
    path = store_path(settings.store)
    if path is not None:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return


def _planes(settings: Settings) -> Iterator[Exposed]:
    if settings.no_admin_key:
        todo = "leave --no-admin-key out: every program on this machine can read and grade every rollout"
        yield Exposed(name="control plane", message="asks for no key (--no-admin-key)", todo=todo)
    elif not is_loopback(parse_address(settings.admin_listen)[0]):
        where = settings.admin_listen
        if settings.tls_cert is None:
            todo = "give --tls-cert and --tls-key, or listen on 127.0.0.1 and forward the port"
            message = f"on {where}: its key crosses the network in clear"
            yield Exposed(name="control plane", message=message, todo=todo)
        else:
            todo = "listen on 127.0.0.1 and forward the port, unless trainers on other machines need it"
            message = f"on {where}: whoever can reach it may guess at its key"
            yield Exposed(name="control plane", message=message, todo=todo)
    if not is_loopback(parse_address(settings.listen)[0]) and settings.tls_cert is None:
        todo = "give --tls-cert and --tls-key, put a proxy with TLS in front, or keep it on a network of its own"
        message = f"on {settings.listen} without TLS: rollouts' secrets and all content cross the network in clear"
        yield Exposed(name="data plane", message=message, todo=todo)


def _weak_key(settings: Settings) -> Iterator[Exposed]:
    if settings.no_admin_key:
        return
    try:
        key = find_key(settings)
    except UsageError:
        # The check of key files says so.
        return
    if key is not None and (len(key) < LEAST_KEY or len(set(key)) < LEAST_KEY // 2):
        message = f"shorter than {LEAST_KEY} characters, or of very few different ones: it can be guessed"
        yield Exposed(name="admin key", message=message, todo="leave it out: a random one is made at start")


def _engines(settings: Settings) -> Iterator[Exposed]:
    for prefix in settings.allow_engine:
        if why := allowlist.breadth(prefix):
            todo = "allow the narrowest prefix that does: scheme, host, port, path"
            yield Exposed(name="allowed engines", message=f"{prefix} {why}", todo=todo)
    keyed = {item.partition("=")[0] for item in settings.engine_key_file}
    for engine in settings.engine:
        try:
            kind, url = parse_engine(engine)
        except UsageError:
            # The check of engines says so.
            continue
        parts = urlsplit(url or "")
        if kind in keyed and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            message = f"the key of {kind} crosses the network in clear, to {url}"
            yield Exposed(name="engine key", message=message, todo="name the engine by https://")


def _paths(settings: Settings) -> Iterator[Exposed]:
    if settings.allow_path:
        message = f"{', '.join(settings.allow_path)}: relayed, not recorded"
        todo = "allow only paths that don't sample: what an agent samples there is not captured"
        yield Exposed(name="allowed paths", message=message, todo=todo)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
