"""A listener: connections that may still prove whose they are, and the answer to what is no HTTP.

Dull on purpose: aiohttp's own server, with four things changed.

Rule 1: what is no HTTP is refused in our words. aiohttp's quote the line at fault, in the answer and in the log, and
that line may be the one with the key in it.
Rule 2: a connection is *proved* when a request on it showed a right key. Until then it gets `UNPROVED_S` to send a
whole head, and again between two requests; afterwards it may idle for as long as agents do (`keepalive_timeout`).
Rule 3: at most so many connections are unproved at once. When one more comes, the oldest idle one that had its time
(`GRACE_S`) goes: sockets held open by whoever has no key push out each other, never an agent that was let in.

Rule 4: a connection ends with a request whose body came in chunks. aiohttp 3.14.5 carries the last line of such a
body's trailer over into the headers of the next request on the connection: behind a load balancer that shares
connections among agents, one would put its own key before another's.

Bodies have their own limit, where they are read: nothing here cuts a request that runs.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE, RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from capture.errors import CaptureError, ClientError, TreeringError

UNPROVED_S = 60.0
"""A head is sent in milliseconds; an hour's patience (`keepalive_timeout`) is for agents that run tools."""

MOST_UNPROVED = 4_096
"""Unproved at once, or a quarter of the descriptors that the process may have, if that is less."""

GRACE_S = 1.0
"""No connection is pushed out younger than this: a batch of agents connects within a second and proves itself."""

CODED_LINGER_S = 2.0
"""For the rest of a refused body in a coding, so that its sender reads the refusal and not a reset. aiohttp would go on
inflating it for ten seconds, and a small one may hold gigabytes."""

LOOKED_AT = 16
"""Of the oldest, how many are looked at for one to push out."""

Refuse = Callable[[TreeringError], web.Response]
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(RequestHandler):
    """One connection."""

    def __init__(self, door: Door, **options: Any) -> None:
        super().__init__(door, **options)
        self._door = door
        self.since = 0.0
        # Runs while it is unproved.
        self._patience: asyncio.TimerHandle | None = None
        self._requests_seen = 0
        self._dropping = False

    @property
    def idle(self) -> bool:
        """Whether it waits for a request."""
        return self._waiter is not None and not self._waiter.done()

    def prove(self) -> None:
        """Note that a request on this connection showed a right key."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            self._door.unproved.pop(self, None)

    def drop_rest(self) -> None:
        """Throw away what still comes of a refused body, without inflating it, until its sender has read why."""
        self._dropping = True
        self._lingering_time = CODED_LINGER_S

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if not self._dropping:
            super().data_received(data)

    def _lose_patience(self) -> None:
        if self.idle and self._request_count == self._requests_seen:
            self._patience = None
            self.force_close()
            return
        # It asked something meanwhile, or still does: it gets as long again.
        self._requests_seen = self._request_count
        self._patience = self._loop.call_later(UNPROVED_S, self._lose_patience)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; count as unproved."""
        super().connection_made(transport)
        self.since = self._loop.time()
        self._patience = self._loop.call_later(UNPROVED_S, self._lose_patience)
        self._door.came(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End; nothing more is to be proved."""
        self.prove()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, or what nobody caught, without a word of what was sent."""
        del message
        error: TreeringError
        if status >= 500:
            self.log_exception("a request failed outside of every handler", exc_info=exc)
            error = CaptureError("internal", "Treering failed.", hint="Its log says where; please report it.")
        elif isinstance(exc, LineTooLong):
            error = ClientError(
                "header_too_long", "A line of the request's head is too long.", hint="64 KiB are taken.", status=431
            )
        else:
            hint = "Plain HTTP is spoken here; https:// only where --tls-cert is given."
            error = ClientError("bad_request", "This is no request that HTTP allows.", hint=hint, status=400)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is on its way already")
        response = self._door.refuse(error)
        # Not what we are made of, and in which version.
        response.headers["Server"] = "treering"
        response.force_close()
        return response


class Door(web.Server):
    """Makes connections, and knows which are unproved, the oldest first."""

    def __init__(self, handler: Any, *, refuse: Refuse, **options: Any) -> None:
        super().__init__(self._handle, **options)
        self._handler = handler
        self.refuse = refuse
        self.unproved: OrderedDict[Connection, None] = OrderedDict()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Whether it tells a client that waits for it to send its body; an application does that by itself.
        self.says_go_on = False
        self.most_unproved = MOST_UNPROVED if soft == resource.RLIM_INFINITY else min(MOST_UNPROVED, soft // 4)

    def __call__(self) -> Connection:
        """Make a connection."""
        return Connection(self, loop=self._loop, **self._kwargs)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request._message.path.startswith(("/", "http://", "https://")):  # noqa: SLF001 -- nowhere else as it came
            # `CONNECT host:port` and `OPTIONS *`: what follows the first on its connection would be read by nobody.
            error = ClientError("bad_request", "Only paths are served here.", hint="There is no tunnel.", status=400)
            response = self.refuse(error)
            response.force_close()
            return response
        if self.says_go_on and "Expect" in request.headers:
            await _go_on(request)
        answer: web.StreamResponse = await self._handler(request)
        connection = request.protocol
        refused = answer.status >= 400 and "Content-Encoding" in request.headers and not request.content.is_eof()
        if refused and isinstance(connection, Connection):
            answer.force_close()
            connection.drop_rest()
        return answer

    def came(self, one: Connection) -> None:
        """Take a new connection in; push the oldest idle one out if there are too many."""
        self.unproved[one] = None
        if len(self.unproved) <= self.most_unproved:
            return
        before = one.since - GRACE_S
        for old in islice(self.unproved, LOOKED_AT):
            if old.since <= before and old.idle:
                del self.unproved[old]
                old.force_close()
                return


class Runner(web.AppRunner):
    """aiohttp's runner of an application, behind a `Door`."""

    __slots__ = ("_refuse",)

    def __init__(self, app: web.Application, *, refuse: Refuse, **options: Any) -> None:
        """`refuse` shapes the answer to what is no HTTP; `options` are aiohttp's."""
        super().__init__(app, **options)
        self._refuse = refuse

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        options = dict(made._kwargs)  # noqa: SLF001 -- aiohttp has no other way
        return Door(
            made.request_handler,
            refuse=self._refuse,
            request_factory=_closing(made.request_factory),
            handler_cancellation=made.handler_cancellation,
            loop=asyncio.get_running_loop(),
            **options,
        )


class Plain(web.BaseRunner):
    """A runner of one handler, behind a `Door`.

    No application: its router, its signals and its own sort of request take 5% of a call's time, for nothing.
    """

    __slots__ = ("_handler", "_refuse")

    def __init__(self, handler: Handler, *, refuse: Refuse, shutdown_timeout: float, **options: Any) -> None:
        """`refuse` shapes the answer to what is no HTTP; `options` are those of aiohttp's server."""
        super().__init__(shutdown_timeout=shutdown_timeout, **options)
        self._handler = handler
        self._refuse = refuse

    async def shutdown(self) -> None:
        """Do nothing: whoever made the handler ends what it began."""

    async def _make_server(self) -> web.Server:
        door = Door(
            self._handler,
            refuse=self._refuse,
            request_factory=_closing(_request),
            loop=asyncio.get_running_loop(),
            **self._kwargs,
        )
        door.says_go_on = True
        return door

    async def _cleanup_server(self) -> None:
        return


async def _go_on(request: web.BaseRequest) -> None:
    """Say `100 Continue` where it is waited for; any other expectation may be passed over (RFC 9110, 10.1.1)."""
    if request.version == HttpVersion11 and request.headers["Expect"].lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The answer itself has not begun.
        request.writer.output_size = 0
        await request.writer.drain()


class Incoming(web.BaseRequest):
    """A request whose answer says nothing of the server that aiohttp is."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        headers = response.headers
        if headers.get("Server") == SERVER_SOFTWARE:
            del headers["Server"]


def _request(
    message: RawRequestMessage, payload: StreamReader, protocol: Any, writer: AbstractStreamWriter, task: Any
) -> Incoming:
    return Incoming(message, payload, protocol, writer, task, protocol._loop)  # noqa: SLF001 -- as aiohttp's own maker


def _closing(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Have a connection end with a request in chunks (rule 4), and its answer say so."""

    def factory(message: Any, *rest: Any) -> web.BaseRequest:
        return make(message._replace(should_close=True) if message.chunked else message, *rest)

    return factory


def prove(request: web.BaseRequest) -> None:
    """Note that a request showed a right key."""
    if isinstance(request.protocol, Connection):
        request.protocol.prove()
