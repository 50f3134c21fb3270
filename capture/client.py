"""The command line's own client of the control plane: the standard library alone.

Rules:
- The key goes to the address that was asked for and nowhere else: no proxy from the environment, no redirect.
- An error that the control plane names is raised as it was named, so that the exit code and the hint are its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from capture import certificates
from capture.errors import ClientError, EngineError, StoreError, TreeringError, UsageError
from capture.keys import without_password
from capture.settings import URL_VARIABLE, Settings, is_key, is_wildcard, key_path, parse_address
from capture.version import version
from tunnel.base import url_at

TIMEOUT_S = 60.0
"""For one answer; a request that itself waits on the server adds its own time."""


class Client:
    """One control plane, and the key for it."""

    def __init__(
        self, url: str, *, key: str | None = None, trust: Callable[[str], ssl.SSLContext] | None = None
    ) -> None:
        """`url` is the control plane's root; `trust` says whose certificates are believed at a host.

        Raises `UsageError` for a URL that is none, or that holds a password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url: {without_password(url)!r} is no URL", hint="write http://HOST:PORT")
        if "@" in parts.netloc:
            raise UsageError("--url holds a name or a password", hint="the admin key goes into --admin-key-file")
        self.url = url.rstrip("/")
        self._host, self._port, self._tls = parts.hostname, port, parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._key = key
        self._trust = trust

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        wait_s: float = 0.0,
    ) -> bytes:
        """Send a request and return the answer's body; empty for 204.

        `path` is quoted already (see `segment`); null values of `query` are left out; `body` is sent as JSON; `wait_s`
        is how long the server may take beyond the ordinary. Raises what the control plane names, or `UsageError`
        when nothing answers there.
        """
        connection, answer = self._asked(method, path, query=query, body=body, wait_s=wait_s)
        try:
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise refusal(answer.status, text, self.url)
        return text

    @contextlib.contextmanager
    def stream(
        self, path: str, *, query: Mapping[str, Any] | None = None, wait_s: float = 0.0
    ) -> Iterator[http.client.HTTPResponse]:
        """GET an answer and hand it over unread, to be read as it comes; `wait_s` as for `request`.

        Raises as `request` does, before the block; a connection that is cut raises OSError or HTTPException in it.
        """
        connection, answer = self._asked("GET", path, query=query, wait_s=wait_s)
        try:
            if answer.status >= 300:
                raise refusal(answer.status, answer.read(), self.url)
            yield answer
        finally:
            connection.close()

    def _asked(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        wait_s: float = 0.0,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request; return the connection, to be closed, and the answer, of which the headers have come."""
        given = {name: item for name, item in (query or {}).items() if item is not None}
        target = self._prefix + path + ("?" + urlencode(given, doseq=True) if given else "")
        headers = {"Accept": "application/json", "User-Agent": f"treering/{version().partition(' ')[0]}"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        connection = self._connection(TIMEOUT_S + wait_s)
        try:
            connection.request(method, target, body=data, headers=headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> UsageError:
        hint = "is `treering serve` running there? --url names its control plane"
        if isinstance(error, ssl.SSLError):
            hint = "if its certificate is one of your own, name it: --tls-cert FILE"
        why = (error.strerror if isinstance(error, OSError) else None) or error or type(error).__name__
        return UsageError(f"no answer from {self.url}: {why}", hint=hint)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        context = self._trust(self._host) if self._trust is not None else None
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)

    def json(self, method: str, path: str, **rest: Any) -> Any:
        """Send a request and return the answer's JSON; None for 204."""
        text = self.request(method, path, **rest)
        return decode(text) if text else None


def decode(text: bytes) -> Any:
    """Decode an answer's JSON, lone surrogates included, which agents send and msgspec refuses."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def segment(name: str) -> str:
    """Quote one segment of a path."""
    return quote(name, safe="")


def refusal(status: int, body: bytes, url: str) -> TreeringError:
    """Return an answer of 300 or more as the error that it names, of the class whose exit code fits."""
    try:
        named = msgspec.json.decode(body)["error"]
        code, message, hint = str(named["code"]), str(named["message"]), str(named.get("hint") or "")
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        hint = "another program may be listening there"
        return UsageError(f"{url} answered {status}, not as Treering's control plane does", hint=hint)
    if status == 401:
        return UsageError(message, hint=hint or "give the server's key: --admin-key-file or TREERING_ADMIN_KEY")
    if code.startswith("store_"):
        return StoreError(code, message, hint=hint)
    if code.startswith("engine_"):
        return EngineError(code, message, hint=hint, status=status)
    return ClientError(code, message, hint=hint, status=status)


def find_key(settings: Settings) -> str | None:
    """Return the admin key for a control plane of these settings, None if there is none to be found.

    From `admin_key_file`, else TREERING_ADMIN_KEY, else the file beside the store. Raises `UsageError` for a file
    that can't be read or holds no key.
    """
    if settings.admin_key_file:
        return read_key(Path(settings.admin_key_file))
    if settings.admin_key:
        return settings.admin_key
    beside = key_path(settings.store)
    return read_key(beside) if beside.exists() else None


def read_key(path: Path) -> str:
    """Return the key in a file: its text without white space around it. Raises `UsageError`."""
    try:
        if path.stat().st_mode & stat.S_IWOTH:
            # Whoever can write it can open the control plane, or have the engine asked with a key of theirs.
            raise UsageError(f"everyone on this machine may write the key in {path}", hint=f"chmod 600 {path}")
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"can't read the key in {path}: {why}", hint="name a file that you may read") from error
    if not is_key(key):
        raise UsageError(f"{path} holds no key", hint="it must hold one line of printable ASCII, without spaces")
    return key


def is_private(path: Path) -> bool:
    """Say whether only a file's owner may read it."""
    return not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def control_url(settings: Settings) -> str:
    """Return the address of a control plane of these settings, as seen from this machine."""
    host, port = parse_address(settings.admin_listen)
    # Every interface has loopback.
    host = "127.0.0.1" if is_wildcard(host) else host
    return url_at(host, port, scheme="http" if settings.tls_cert is None else "https")


def client(settings: Settings, url: str | None) -> Client:
    """Return a client of the control plane at a URL, else at `TREERING_URL`, else of that of these settings.

    Raises `UsageError`.
    """
    return Client(
        url or os.environ.get(URL_VARIABLE) or control_url(settings),
        key=find_key(settings),
        trust=lambda host: certificates.trusting(settings, host),
    )
