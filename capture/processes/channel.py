"""A channel: two processes that ask and tell each other things over one socket, many at a time.

Rules
1. What is handed over first is handled first: handlers start in the order of the frames, questions and tellings alike.
   Their answers come as they are ready.
2. A question has a time limit. When the other side is gone, every open question fails at once, and `run` returns.
3. Memory is bounded: who asks waits while the socket's buffer is full; a telling that may be left out is left out then;
   and no more is read while too many questions are being answered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from capture.errors import CaptureError, ClientError, EngineError, StoreError, TreeringError
from capture.processes.frames import Frame, Frames, encode
from capture.tasks import spawn

_log = logging.getLogger("treering")

T = TypeVar("T")

ASK_LIMIT_S = 60.0
"""For an answer; the slowest is a long rollout's calls, some seconds on a busy machine."""

MOST_BUFFERED = 64 << 20
"""Bytes on their way into the socket from which who asks waits: a second's worth of large requests."""

MOST_OPEN = 1024
"""Questions being answered at once on one channel, from which no more is read."""

READ_BYTES = 1 << 18

Handler = Callable[[msgspec.Raw], Awaitable[Any]]
Hearer = Callable[[msgspec.Raw], None]

_ERRORS: dict[str, Callable[..., TreeringError]] = {
    "client": ClientError,
    "engine": EngineError,
    "store": StoreError,
    "capture": CaptureError,
}
_FAILED = "!"

pack = msgspec.msgpack.encode


def unpack(body: msgspec.Raw, sort: type[T]) -> T:
    """Decode a frame's body."""
    return msgspec.msgpack.decode(body, type=sort)


class GoneError(CaptureError):
    """The other process is gone, or does not answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__("process_gone", message, status=503, retry_after_s=1)


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """An error on its way: a `TreeringError`'s fields."""

    sort: str
    code: str
    message: str
    hint: str
    status: int
    param: str | None
    retry_after_s: float | None


class Channel:
    """One side of a socket pair."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        name: str,
        answers: Mapping[str, Handler] | None = None,
        hears: Mapping[str, Hearer] | None = None,
    ) -> None:
        """`answers` says how to answer a word that is asked, `hears` what to do at one that is told."""
        self._sock = sock
        self._name = name
        self._answers = dict(answers or {})
        self._hears = dict(hears or {})
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._room = asyncio.Semaphore(MOST_OPEN)
        self._answering: set[asyncio.Task[None]] = set()
        self._open = False

    def __repr__(self) -> str:
        return f"<Channel {self._name} {'open' if self._open else 'closed'}, {len(self._waiting)} waiting>"

    @property
    def open(self) -> bool:
        """Whether the other side is there."""
        return self._open

    async def start(self) -> None:
        """Take the socket into the loop."""
        self._sock.setblocking(False)  # noqa: FBT003  the standard library's own
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._writer.transport.set_write_buffer_limits(high=MOST_BUFFERED)
        self._open = True

    async def run(self) -> None:
        """Handle what comes until the other side is gone."""
        assert self._reader is not None
        frames = Frames()
        try:
            while data := await self._reader.read(READ_BYTES):
                for frame in frames.feed(data):
                    await self._handle(frame)
        except (ConnectionError, ValueError, msgspec.DecodeError) as error:
            _log.warning("the channel %s broke: %r", self._name, error)
        finally:
            self.close()

    async def settled(self) -> None:
        """Return when all that was asked so far is answered, and all that was told is done."""
        await asyncio.sleep(0)
        while self._answering:
            await asyncio.wait(self._answering)

    def close(self) -> None:
        """Close this side; open questions fail."""
        self._open = False
        if self._writer is not None:
            self._writer.close()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(GoneError(f"{self._name} is gone"))

    async def ask(self, word: str, body: Any = None, *, limit_s: float = ASK_LIMIT_S) -> msgspec.Raw:
        """Ask the other side and return its answer.

        Raises the `TreeringError` that it answered with, or `GoneError`.
        """
        self._number += 1
        number = self._number
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(limit_s):
                self._put(Frame(number, word, msgspec.Raw(pack(body))))
                assert self._writer is not None
                # Behind the frame, not before it: order is that of asking.
                await self._writer.drain()
                return await future
        except TimeoutError:
            raise GoneError(f"{self._name} did not answer in {limit_s:g} s") from None
        except ConnectionError:
            raise GoneError(f"{self._name} is gone") from None
        finally:
            self._waiting.pop(number, None)
            # Nobody looks at the error of a question that was given up.
            if future.done() and not future.cancelled():
                future.exception()

    def tell(self, word: str, body: Any = None, *, may_drop: bool = False) -> bool:
        """Tell the other side something; False when it was left out, since its buffer is full.

        Raises `GoneError`.
        """
        assert self._writer is not None
        if may_drop and self._writer.transport.get_write_buffer_size() > MOST_BUFFERED:
            return False
        self._put(Frame(0, word, msgspec.Raw(pack(body))))
        return True

    def _put(self, frame: Frame) -> None:
        if not self._open:
            raise GoneError(f"{self._name} is gone")
        assert self._writer is not None
        self._writer.write(encode(frame))

    async def _handle(self, frame: Frame) -> None:
        if frame.number < 0:
            self._answered(frame)
        elif frame.number == 0:
            # Not at once: tasks for the questions before it have not had their first step yet.
            asyncio.get_running_loop().call_soon(self._heard, frame)
        else:
            await self._room.acquire()
            task = spawn(self._answer(frame), name=f"answer {frame.word} to {self._name}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    def _answered(self, frame: Frame) -> None:
        future = self._waiting.get(-frame.number)
        if future is None or future.done():
            return
        if frame.word == _FAILED:
            future.set_exception(_error(unpack(frame.body, Failure)))
        else:
            future.set_result(frame.body)

    def _heard(self, frame: Frame) -> None:
        try:
            self._hears[frame.word](frame.body)
        except Exception:  # noqa: BLE001  what one frame does wrong is no reason to hear no more
            _log.exception("%s: what was told (%s) could not be done", self._name, frame.word)

    async def _answer(self, frame: Frame) -> None:
        word = ""
        try:
            body = pack(await self._answers[frame.word](frame.body))
        except TreeringError as error:
            word, body = _FAILED, pack(_failure(error))
        except Exception as error:  # noqa: BLE001  who asked must hear of it, whatever it is
            _log.exception("%s: %s could not be answered", self._name, frame.word)
            word, body = _FAILED, pack(_failure(CaptureError("internal", f"{frame.word} failed: {error!r}")))
        finally:
            self._room.release()
        if self._open:
            self._put(Frame(-frame.number, word, msgspec.Raw(body)))


def _failure(error: TreeringError) -> Failure:
    sort = next(name for name, kind in (*_ERRORS.items(), ("capture", TreeringError)) if isinstance(error, kind))  # type: ignore[arg-type]  # the callables are the classes themselves
    return Failure(sort, error.code, error.message, error.hint, error.status, error.param, error.retry_after_s)


def _error(failure: Failure) -> TreeringError:
    rest: dict[str, Any] = {"hint": failure.hint}
    if failure.sort != "store":
        rest["status"] = failure.status
    if failure.sort in ("client", "capture"):
        rest["param"] = failure.param
    if failure.sort in ("engine", "capture"):
        rest["retry_after_s"] = failure.retry_after_s
    return _ERRORS[failure.sort](failure.code, failure.message, **rest)
