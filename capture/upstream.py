"""The engine's side of the wire: with `wire`, the one file that opens connections to engines.

Dull on purpose: it sends what it is given and hands back what comes. What to send is `capture.admission`'s business,
what an answer means `capture.engines`' and `capture.recorder`'s.

An ordinary request to an engine in the clear goes by `wire`; one that is large, by TLS or through a proxy, or with
another method, by aiohttp's client. Both give an answer that is read alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Literal

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from capture.content import Answer, Content
from capture.engines.base import Adapter, Ask, Identity, Inquirer
from capture.errors import ClientError, EngineError
from capture.pieces import Pieces
from capture.wire import Wire
from graph.records import LogprobsMode

CONNECT_TIMEOUT_S = 10.0
"""To open a connection; an engine on the same network answers in milliseconds, an overloaded one in a few seconds."""

IDENTITY_TIMEOUT_S = 10.0
"""For the engine's small answers (models, version, health): vLLM serves them beside running prefills."""

KEEPALIVE_S = 3.0
"""Strictly below the 5 s after which vLLM's server (uvicorn) closes an idle connection: a POST must not meet a closing
socket, since it can't be repeated safely once it may have been read."""

ASK_TIMEOUT_S = 30.0
"""For a side question: engines render and tokenise 100,000 tokens in well below a second, and may be busy."""

HEADER_LIMIT = 65_536
"""Bytes of one header line, both ends alike: long authorisation and trace headers pass."""

REPLY_LIMIT = 256 * 2**20
"""Bytes of one whole answer, and of one event of a stream, after decompression: as large as the largest request. A
reply of 100,000 tokens with twenty alternatives each is some 150 MB."""

PIECEWISE_FROM = 2**20
"""Bytes of a request's body from which it is written piece by piece: a slow engine leaves all of it in the socket's
buffer, which is then a second copy."""

Reply = Answer | aiohttp.ClientResponse
"""An engine's answer, by either way."""

_AUTO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class Engine:
    """One engine: where it is, who it says it is, and what the probe made of it."""

    def __init__(
        self, adapter: Adapter, url: str, *, key: str | None = None, kind: str | None = None, proxied: bool = False
    ) -> None:
        """`url` is the engine's root, with or without `/v1`; `key` goes to this engine only and is never printed.

        `kind` names it where that differs from the adapter's: the scripted engine is read by vLLM's. `proxied`: through
        the proxy that the environment names (HTTP_PROXY and its like); else no variable sends a key anywhere else.
        """
        self._proxied = proxied
        self.adapter = adapter
        self.kind = kind or adapter.kind
        root = url.rstrip("/")
        self.url = root[:-3].rstrip("/") if root.endswith("/v1") else root
        self._key = key
        self._session: aiohttp.ClientSession | None = None
        # The short way, where there is one; and what comes before a path on it, and the name of its host.
        self._wire: Wire | None = None
        self._prefix = ""
        self._host = ""
        self.identity: Identity | None = None
        self.tier: Literal["train", "eval"] = "eval"
        self.tier_reason = "not probed yet"
        self.logprobs_mode: LogprobsMode = "unknown"
        self.healthy = False
        self.reason = "not reached yet"
        self.in_flight = 0
        # How the engine that came back differs from the one that was first met; None while it doesn't.
        self.changed: str | None = None
        # It broke off or couldn't be reached: who answers there now is asked before the next call.
        self.doubted = False
        # How often it was away, and came back as itself.
        self.returns = 0
        self._away = False
        self._recognising = asyncio.Lock()
        # Injected fields that it refused; left out from then on.
        self.refused: set[str] = set()

    def __repr__(self) -> str:
        state = "healthy" if self.healthy else f"unhealthy: {self.reason}"
        return f"<Engine {self.name} {self.tier} {state}, {self.in_flight} in flight>"

    @property
    def name(self) -> str:
        """The engine's kind and address, as calls and people name it."""
        return f"{self.kind}={self.url}"

    @property
    def models(self) -> tuple[str, ...]:
        """Names that the engine serves, the first being its default; empty while it hasn't been reached."""
        return self.identity.models if self.identity else ()

    async def open(self) -> None:
        """Make the connection pool; opens no connection yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            # A total limit would cut long generations; silence is bounded by the agent, who may hang up.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=self._proxied,
            raise_for_status=False,
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
        )
        url = URL(self.url, encoded=True)
        if url.scheme == "http" and url.host and url.user is None and not self._proxied and not url.query_string:
            self._wire = Wire(
                url.host,
                url.port or 80,
                keepalive_s=KEEPALIVE_S,
                connect_s=CONNECT_TIMEOUT_S,
                max_line=HEADER_LIMIT,
            )
            self._prefix, self._host = url.raw_path.rstrip("/"), url.host_port_subcomponent or url.host

    async def close(self) -> None:
        """Close all connections to the engine."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self, method: str, path: str, *, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()
    ) -> Reply:
        """Send a request and return the answer when its head has come; the caller closes it.

        `headers` are the agent's, already cleaned. Repeats once where the engine closed the connection before a byte of
        an answer came. Raises `EngineError` `engine_unreachable` (502).
        """
        assert self._session is not None, "open() comes first"
        out = CIMultiDict(headers)
        if body is not None:
            out.setdefault("Content-Type", "application/json")
        out["Accept-Encoding"] = "identity"
        if self._key:
            out["Authorization"] = f"Bearer {self._key}"
        head = self._short_head(method, path, out, body)
        for attempt in (1, 2):
            answer: Reply
            try:
                if head is not None and self._wire is not None:
                    answer = await self._wire.ask(head, body or b"", anew=attempt == 2)
                else:
                    answer = await self._session.request(
                        method,
                        URL(self.url + path, encoded=True),
                        data=Pieces(body) if body is not None and len(body) > PIECEWISE_FROM else body,
                        headers=out,
                        skip_auto_headers=_AUTO_HEADERS,
                        allow_redirects=False,
                    )
            except aiohttp.ServerDisconnectedError as error:
                # With a message of the engine's instead of words, some of its answer had come.
                if attempt == 1 and isinstance(error.message, str):
                    continue
                raise self._unreachable(error) from error
            except (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError) as error:
                raise self._unreachable(error) from error
            self.healthy, self.reason = True, ""
            if not 200 <= answer.status < 600:
                # Passed on, a 101 would make the agent speak another protocol on a connection that stays HTTP.
                answer.close()
                raise EngineError(
                    "engine_garbled",
                    f"The engine at {self.url} answered with the status {answer.status}.",
                    hint="Another program may be listening on that port.",
                )
            return answer
        raise AssertionError("unreachable")

    def _short_head(self, method: str, path: str, headers: CIMultiDict[str], body: bytes | None) -> bytes | None:
        """Return the head of a request that goes the short way; None for one that doesn't."""
        if self._wire is None:
            return None
        if body is None:
            if method != "GET":
                return None
            length = ""
        elif method != "POST" or len(body) > PIECEWISE_FROM:
            return None
        else:
            length = f"Content-Length: {len(body)}\r\n"
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        text = f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}\r\n{fields}{length}\r\n"
        ends = len(headers) + 3 + bool(length)
        if text.count("\n") != ends or text.count("\r") != ends or not path.isprintable() or " " in path or "#" in path:
            # Something in it would end a line.
            return None
        try:
            return text.encode()
        except UnicodeEncodeError:
            return None

    async def ask(self, ask: Ask) -> tuple[int, bytes]:
        """Ask a side question, and those that follow from its answers; return the last one's status and body.

        A status of 400 or more is the last. Raises `EngineError`: `engine_unreachable`, or what `Ask.then` raises.
        """
        while True:
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    async with await self.send("POST", ask.path, body=ask.body) as answer:
                        body = await whole(answer)
            except (TimeoutError, aiohttp.ClientError) as error:
                raise self._unreachable(error) from error
            if answer.status >= 400 or ask.then is None:
                return answer.status, body
            ask = ask.then(body)

    async def inquire(self, reader: Inquirer) -> None:
        """Ask for what a reader must know beside the reply, and tell it; never raises."""
        try:
            status, body = await self.ask(reader.question())
        except EngineError as error:
            status, body = error.status, error.message.encode()
        reader.answered(status, body)

    def _unreachable(self, error: Exception) -> EngineError:
        self.doubted = self._away = True
        self.healthy, self.reason = False, _told(error)
        return EngineError(
            "engine_unreachable",
            f"The engine at {self.url} did not answer ({self.reason}).",
            hint="Check that it runs and that Treering can reach it; `treering doctor` says more.",
        )

    async def read_json(self, path: str) -> Any:
        """GET a small JSON document from the engine.

        Raises `EngineError`: `engine_unreachable`, `engine_refused` (a status of 400 or more) or `engine_garbled`.
        """
        try:
            async with asyncio.timeout(IDENTITY_TIMEOUT_S):
                answer = await self.send("GET", path)
                async with answer:
                    body = await whole(answer)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise self._unreachable(error) from error
        if answer.status >= 400:
            raise EngineError(
                "engine_refused",
                f"The engine at {self.url} answered GET {path} with {answer.status}.",
                hint="A 401 or 403 means that the engine wants a key: --engine-key-file."
                if answer.status in (401, 403)
                else "Is it an OpenAI-compatible engine, and is the address its root?",
            )
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise EngineError(
                "engine_garbled",
                f"The engine at {self.url} answered GET {path} with something that is not JSON.",
                hint="Another program may be listening on that port.",
            ) from error

    async def identify(self) -> Identity:
        """Ask the engine who it is (`/v1/models`, `/version`) and keep the answer. Raises `EngineError`."""
        listed = await self.read_json("/v1/models")
        cards = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(cards, list):
            raise EngineError(
                "engine_garbled",
                f"The engine at {self.url} gave no list of models.",
                hint="Is it an OpenAI-compatible engine, and is the address its root?",
            )
        cards = [card for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str)]
        length = cards[0].get("max_model_len") if cards else None
        try:
            told = await self.read_json("/version")
            version = told.get("version") if isinstance(told, dict) else None
        except EngineError:
            version = None
        self.doubted = False
        met = self.identity
        found = Identity(
            kind=self.kind,
            url=self.url,
            version=version if isinstance(version, str) else None,
            models=tuple(card["id"] for card in cards),
            max_model_len=length if isinstance(length, int) else None,
        )
        if met is not None:
            self.changed = _difference(met, found)
            self.returns += self._away
            self._away = False
            # A newer program that serves the same is the same engine.
            self.identity = found = msgspec.structs.replace(met, version=found.version)
            return found
        self.identity = found
        self._away = False
        return found

    async def recognise(self) -> None:
        """Ask an engine that is in doubt who it is now, before it gets a call.

        Raises `EngineError` where nothing usable answers, `ClientError` 409 `engine_changed` where another does.
        """
        async with self._recognising:
            if self.doubted:
                await self.identify()
        if self.changed is not None:
            raise ClientError(
                "engine_changed",
                f"The engine is not the one that this rollout began with: {self.changed}",
                hint="Register new rollouts; this one can't go on.",
                status=409,
            )

    def is_like(self, other: Engine) -> bool:
        """Say whether a call may move between the two: same kind, model and context length."""
        mine, its = self.identity, other.identity
        if mine is None or its is None:
            return self is other
        return (mine.kind, mine.models[:1], mine.max_model_len) == (its.kind, its.models[:1], its.max_model_len)

    async def check(self) -> bool:
        """Ask the engine's `/health` and note the outcome; never raises."""
        try:
            async with asyncio.timeout(IDENTITY_TIMEOUT_S):
                async with await self.send("GET", "/health") as answer:
                    status = answer.status
        except (EngineError, TimeoutError, aiohttp.ClientError) as error:
            self.healthy, self.reason = False, str(error) or type(error).__name__
        else:
            # Engines without that route answer 404, which is an answer.
            self.healthy = status < 500
            self.reason = "" if self.healthy else f"GET /health answered {status}"
        return self.healthy


async def whole(answer: Reply, limit: int = REPLY_LIMIT) -> bytes:
    """Read an answer's body, decompressed, to its end. Raises `EngineError` `engine_reply_too_large` (502)."""
    content = answer.content
    if isinstance(content, Content):
        if (body := await content.rest(limit)) is not None:
            return body
        answer.close()
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in content.iter_any():
        size += len(piece)
        if size > limit:
            answer.close()
            raise _too_large(limit)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(limit: int) -> EngineError:
    return EngineError(
        "engine_reply_too_large",
        f"The engine's answer is larger than {limit} bytes.",
        hint="No reply is: is it an engine that answers there?",
    )


def _told(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        # Its text quotes what came, which may repeat the key that was sent.
        return "what came is no HTTP"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _difference(met: Identity, found: Identity) -> str | None:
    """Say how an engine differs from itself in what a rollout can't bear; None if it doesn't."""
    if met.models[:1] != found.models[:1]:
        return f"it served {', '.join(met.models) or 'no model'} and now serves {', '.join(found.models) or 'none'}."
    if met.max_model_len != found.max_model_len:
        return f"its context was {met.max_model_len} tokens and now is {found.max_model_len}."
    return None
