"""HTTP to the control plane, with the standard library alone.

Rule 1: connections are kept and lent to one thread at a time; any number of threads may share a `Transport`.
Rule 2: a request that may be repeated (GET, PUT, DELETE, and a POST with an `Idempotency-Key`) is tried a second time
on a fresh connection, once, when a kept one turns out to be closed. No other request is ever sent twice.
Rule 3: proxy variables of the environment are not looked at. The control plane is nobody's to relay.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from treering_client.errors import RequestError, TreeringError, Unreachable
from treering_client.version import version

KEPT = 16
"""Idle connections kept; more are opened as they are needed, and closed after use."""

_REPEATABLE = frozenset(("GET", "PUT", "DELETE"))


class Transport:
    """Requests to one Treering. Raises `ValueError` for an address that is none."""

    def __init__(self, url: str, key: str | None, *, timeout_s: float, context: ssl.SSLContext | None = None) -> None:
        self._made = (url, key, timeout_s)
        self._own_context = context is not None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the control plane's address is like http://127.0.0.1:8401; not {url!r}")
        self._host, self._port, self._base = parts.hostname, parts.port, parts.path.rstrip("/")
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = {"Accept": "application/json", "User-Agent": f"treering-client/{version()}"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def __repr__(self) -> str:
        return f"<Transport {self.where}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it as what it was made of: trainers send what they are given to processes of their own.

        Raises `TypeError` for one with a TLS context of its own, which can't be sent.
        """
        if self._own_context:
            raise TypeError("a Client with an SSL context of its own can't be pickled: make it where it is used")
        return _transport, self._made

    def close(self) -> None:
        """Close the idle connections; those in use are closed by who uses them."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        """Return the answer's JSON, None for an empty one (204).

        `wait_s` is how long Treering may take by itself, on top of the time limit. Raises `RequestError`,
        `Unreachable`.
        """
        connection, answer = self._ask(method, path, body, headers or {}, self._timeout_s + wait_s)
        try:
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(f"{self.where} broke its answer off: {error or type(error).__name__}") from error
        self._keep(connection)
        if answer.status >= 300:
            raise _refusal(answer.status, text, self.where)
        return _json(text, self.where) if text else None

    def lines(self, path: str) -> Iterator[Any]:
        """Yield the JSON lines of an answer as they come. Raises `RequestError`, `Unreachable`."""
        connection, answer = self._ask("GET", path, None, {}, self._timeout_s)
        try:
            if answer.status >= 300:
                raise _refusal(answer.status, answer.read(), self.where)
            while line := answer.readline():
                yield _json(line, self.where)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.where} broke its answer off: {error or type(error).__name__}") from error
        finally:
            # Not kept: whoever stopped in the middle has left the rest of the answer on it.
            connection.close()

    def _ask(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        data = None if body is None else json.dumps(body).encode()
        sent = {**self._headers, **({"Content-Type": "application/json"} if data is not None else {}), **headers}
        repeatable = method in _REPEATABLE or "Idempotency-Key" in headers
        while True:
            connection = self._lend()
            fresh = connection.sock is None
            try:
                connection.timeout = timeout_s
                if connection.sock is not None:
                    connection.sock.settimeout(timeout_s)
                connection.request(method, self._base + path, body=data, headers=sent)
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A kept connection that the other side closed meanwhile fails at once, and says nothing of the server.
                if not fresh and repeatable and not isinstance(error, TimeoutError):
                    self.close()
                    continue
                raise Unreachable(
                    f"no Treering answers at {self.where}: {error or type(error).__name__}",
                    hint="is `treering serve` running, and is this its control plane (--admin-listen)?",
                ) from error

    def _lend(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, self._port, context=self._context)
        return http.client.HTTPConnection(self._host, self._port)

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and len(self._idle) < KEPT:
                self._idle.append(connection)
                return
        connection.close()


def _transport(url: str, key: str | None, timeout_s: float) -> Transport:
    return Transport(url, key, timeout_s=timeout_s)


def _json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TreeringError(
            f"{where} answered, but not with JSON", hint="another program may be listening there"
        ) from error


def _refusal(status: int, text: bytes, where: str) -> TreeringError:
    try:
        named = json.loads(text)["error"]
        return RequestError(
            str(named["message"]), status=status, code=str(named["code"]), hint=str(named.get("hint") or "")
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return RequestError(
            f"{where} answered {status}, not as Treering's control plane does",
            status=status,
            code="not_treering",
            hint="another program may be listening there",
        )
