"""The connections to an engine under every order of events: hypothesis says what comes next, and cuts where it likes.

No network and no clock: the loop's time is a number, a connection is a list of what was written and a rule that says
what comes. Rules act at once and run nothing; `turn` is one turn of the loop. So whatever can happen between an
event and the next step of whoever waits for it does happen here.

What holds, whatever the order
1. An ask ends, with its answer or with an error, once its answer has come whole or its connection has ended.
2. Each is given its own body and nothing else: a beginning of it, and a clean end only behind all of it.
3. A request goes out only on a connection that owes no other answer; once a byte of an answer came, it is not repeated.
4. In the end nothing is held, kept or open.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capture import content as contents
from capture.chunks import maybe_one
from capture.content import Answer, Content
from capture.wire import Wire

KEEPALIVE_S = 3.0
HIGH_BYTES = 24
"""In place of half a mebibyte, so that a few bytes that nobody takes hold an engine."""

BROKEN = (aiohttp.ClientError, HttpProcessingError, OSError)


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time stands still, and whose connections go nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.wires: list[Connection] = []
        # Whether the engine takes what is written; and whether anything listens.
        self.taking = True
        self.listening = True

    def time(self) -> float:
        return self.now

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]

    async def create_connection(self, make: Callable[[], asyncio.Protocol], *_: Any, **__: Any) -> Any:  # type: ignore[override]  # only as it is called here
        if not self.listening:
            raise ConnectionRefusedError
        protocol = make()
        transport = Connection(self, protocol)
        self.wires.append(transport)
        protocol.connection_made(transport)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # As the real one does.
            transport.close()
            raise
        return transport, protocol

    def turn(self) -> None:
        """Run what is ready now."""
        self.call_soon(self.stop)
        self.run_forever()

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Act as a callback of this loop does, without letting it run anything else."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


class Connection(asyncio.Transport):
    """A connection and the engine at its other end."""

    def __init__(self, loop: Loop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self.protocol = protocol
        self.paused = self.closing = self.over = False
        self._buffer = b""
        # What the engine has of a request that isn't whole; the number of the one that it owes an answer.
        self._taken = b""
        self.owes: int | None = None
        # What is still to come of an answer, and whether the connection ends behind it.
        self.coming = b""
        self.ends = False
        self.together = 0
        self.begun = False
        # It has said something that makes it unfit for another request.
        self.spent = False

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: Any) -> None:
        assert not self.over
        self._buffer += bytes(data)
        if self._loop.taking:
            self.take()

    def take(self) -> None:
        """Let the engine read what was written."""
        self._taken, self._buffer = self._taken + self._buffer, b""
        head, found, body = self._taken.partition(b"\r\n\r\n")
        if found and len(body) >= 2:
            assert self.owes is None, "a second request on a connection that owes an answer"
            assert not self.spent, "a request on a connection that is good for no more"
            assert body == b"{}"
            self.owes, self._taken = int(head.split(b" ")[1][1:]), b""
        if self.closing:
            self.lose(None)

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            if not self._buffer:
                self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self.closing, self._buffer = True, b""
        self._loop.call_soon(self.lose, None)

    def lose(self, error: Exception | None) -> None:
        """End it."""
        if not self.over:
            self.closing = self.over = True
            self.protocol.connection_lost(error)

    # What the engine does.

    def say(self, n: int) -> None:
        """Send the next bytes, at most n."""
        if self.closing or self.paused:
            return
        if n >= len(self.coming) - self.together:
            n = len(self.coming)
        data, self.coming = self.coming[:n], self.coming[n:]
        if data:
            self.begun = True
            if not self.coming and not self.ends:
                self.owes = None
            self.protocol.data_received(data)
        if not self.coming and self.ends:
            self.eof()

    def eof(self) -> None:
        """Say that nothing more comes."""
        if not self.closing and not self.paused:
            self.spent = True
            if not self.protocol.eof_received():
                self.close()


class Asked:
    """One request, who reads its answer, and what they got."""

    def __init__(self, number: int, plan: list[str]) -> None:
        self.number = number
        self.body = b"".join(b"%d:%d," % (number, i) for i in range(9))
        self.plan = plan
        self.got = b""
        self.answer: Answer | None = None
        self.said = ""
        self.gate = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        # The engine's answer breaks off, and must be told as broken.
        self.whole = False
        # Bytes that came before the end, whatever that was.
        self.may_end_anywhere = False

    def __repr__(self) -> str:
        return f"<Asked {self.number} {self.plan} {self.said or 'running'} got {self.got!r}>"

    async def run(self, wire: Wire) -> None:
        head = b"POST /%d HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\n" % self.number
        try:
            answer = self.answer = await wire.ask(head, b"{}")
            for step in self.plan:
                await self._step(step, answer)
                if self.said:
                    return
            while piece := await answer.content.readany():
                self.got += piece
            self.said = "ended"
        except BROKEN as error:
            self.said = f"broke: {type(error).__name__}"
        except asyncio.CancelledError:
            self.said = "cancelled"
            raise
        finally:
            if self.said != "forgotten" and self.answer is not None:
                self.answer.close()
            self.answer = None

    async def _step(self, step: str, answer: Answer) -> None:
        content = answer.content
        if step == "wait":
            await self.gate.wait()
        elif step == "any":
            self.got += await content.readany()
        elif step in ("close", "forget"):
            self.said = "closed" if step == "close" else "forgotten"
            self.answer = None if step == "forget" else answer
        elif isinstance(content, Content):
            if step == "rest":
                rest = await content.rest(10_000)
                assert rest is not None
                self.got += rest
            elif step == "pour":
                await content.pour(self._sink)
            elif step == "rush":
                await content.pour(self._sink, self._rush)

    def _sink(self, piece: bytes) -> bool:
        self.got += piece
        return len(self.got) % 3 != 0

    def _rush(self, chunk: bytes) -> bool:
        piece = maybe_one(chunk)
        if piece is None or (len(self.got) + len(piece)) % 3 == 1:
            return False
        self.got += piece
        return True


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
KINDS = [
    "sized", "chunked", "closing", "old", "last", "hints", "zipped", "empty", "no content",
    "more", "more chunked", "short", "no last chunk", "bad chunk", "bad chunk, long", "garbage",
    "half a head", "nothing",
]  # fmt: skip


class Connections(RuleBasedStateMachine):
    """The machine."""

    def __init__(self) -> None:
        super().__init__()
        contents.HIGH_BYTES, self._high = HIGH_BYTES, contents.HIGH_BYTES
        self.loop = Loop()
        self.wire = Wire("e", 80, keepalive_s=KEEPALIVE_S, connect_s=5.0, max_line=65_536)
        self.asked: list[Asked] = []
        self.loop.set_exception_handler(self._failed)
        self.failures: list[dict[str, Any]] = []

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def _open(self, *, owing: bool | None = None) -> list[Connection]:
        return [one for one in self.loop.wires if not one.closing and (owing is None or bool(one.coming) == owing)]

    # What we do.

    @rule(plan=st.lists(st.sampled_from(["any", "pour", "rush", "wait", "rest", "close", "forget"]), max_size=4))
    def ask(self, plan: list[str]) -> None:
        one = Asked(len(self.asked), plan)
        self.asked.append(one)
        one.task = self.loop.create_task(one.run(self.wire))

    @precondition(lambda self: any(not one.said for one in self.asked))
    @rule(pick=st.integers(0, 9))
    def cancel(self, pick: int) -> None:
        running = [one for one in self.asked if one.task is not None and not one.task.done()]
        if running:
            running[pick % len(running)].task.cancel()  # type: ignore[union-attr]  # it runs

    @precondition(lambda self: any(one.answer is not None for one in self.asked))
    @rule(pick=st.integers(0, 9))
    def close(self, pick: int) -> None:
        answers = [one.answer for one in self.asked if one.answer is not None]
        if answers:
            with self.loop.within():
                answers[pick % len(answers)].close()

    @precondition(lambda self: any(not one.gate.is_set() for one in self.asked))
    @rule(pick=st.integers(0, 9))
    def go(self, pick: int) -> None:
        if self.asked:
            self.asked[-1 - pick % len(self.asked)].gate.set()

    @precondition(lambda self: self.asked)
    @rule(n=st.integers(1, 4))
    def turn(self, n: int) -> None:
        for _ in range(n):
            self.loop.turn()

    # What the engine does, and time.

    @rule(seconds=st.sampled_from([0.5, KEEPALIVE_S / 2, KEEPALIVE_S]))
    def passes(self, seconds: float) -> None:
        self.loop.now += seconds

    @rule(taking=st.sampled_from([True, True, True, False]))
    def takes(self, taking: bool) -> None:
        self.loop.taking = taking
        if taking:
            with self.loop.within():
                for one in list(self.loop.wires):
                    if not one.over:
                        one.take()

    @rule(listening=st.sampled_from([True, True, True, False]))
    def listens(self, listening: bool) -> None:
        self.loop.listening = listening

    @precondition(lambda self: self._unanswered())
    @rule(
        pick=st.integers(0, 9),
        kind=st.sampled_from(["sized", "chunked"]) | st.sampled_from(KINDS),
        size=st.integers(1, 40),
        n=st.sampled_from([0, 10, 70, 90, 10_000, 10_000]),
    )
    def answer(self, pick: int, kind: str, size: int, n: int) -> None:
        owing = self._unanswered()
        one = owing[pick % len(owing)]
        self._script(one, kind, size)
        if n:
            with self.loop.within():
                one.say(n)

    def _unanswered(self) -> list[Connection]:
        return [one for one in self._open(owing=False) if one.owes is not None and not one.spent]

    def _script(self, one: Connection, kind: str, size: int) -> None:
        assert one.owes is not None
        asked = self.asked[one.owes]
        body = asked.body
        asked.whole = kind in (
            "sized", "chunked", "closing", "old", "last", "hints", "zipped", "empty", "no content", "more",
            "more chunked",
        )  # fmt: skip
        asked.may_end_anywhere = kind in ("closing", "old")
        one.begun, one.together = False, 0
        one.spent = one.ends = kind not in ("sized", "chunked", "hints", "zipped", "empty")
        length = b"Content-Length: %d\r\n\r\n"
        match kind:
            case "sized":
                one.coming = OK + length % len(body) + body
            case "chunked":
                one.coming = CHUNKED + chunked(body, size) + b"0\r\n\r\n"
            case "closing":
                one.coming = OK + b"\r\n" + body
            case "old":
                one.coming = b"HTTP/1.0 200 OK\r\n\r\n" + body
            case "last":
                one.coming = OK + b"Connection: close\r\n" + length % len(body) + body
            case "hints":
                one.coming = b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK + length % len(body) + body
            case "zipped":
                zipped = gzip.compress(body)
                one.coming = OK + b"Content-Encoding: gzip\r\n" + length % len(zipped) + zipped
            case "empty":
                asked.body = b""
                one.coming = OK + length % 0
            case "no content":
                asked.body = b""
                one.coming = b"HTTP/1.1 204 No Content\r\n\r\n"
            case "more":
                one.coming, one.together = OK + length % len(body) + body + b"more", 5
            case "more chunked":
                one.coming, one.together = CHUNKED + chunked(body, size) + b"0\r\n\r\nmore", 5
            case "short":
                one.coming = OK + length % (len(body) + size) + body
            case "no last chunk":
                one.coming = CHUNKED + chunked(body, size)
            case "bad chunk":
                one.coming = CHUNKED + chunked(body, size) + b"zz\r\n"
            case "bad chunk, long":
                one.coming = b"HTTP/1.1 103 Early Hints\r\n\r\n" + CHUNKED + chunked(body, size) + b"zz\r\n"
            case "garbage":
                one.coming = b"SSH-2.0-OpenSSH_9\r\n\r\n"
            case "half a head":
                one.coming = OK + b"Content-Len"
            case "nothing":
                with self.loop.within():
                    one.eof()

    @precondition(lambda self: self._open(owing=True))
    @rule(pick=st.integers(0, 9), n=st.sampled_from([1, 3, 20, 60, 100, 10_000]))
    def comes(self, pick: int, n: int) -> None:
        saying = self._open(owing=True)
        if saying:
            with self.loop.within():
                saying[pick % len(saying)].say(n)

    @precondition(lambda self: self._open())
    @rule(pick=st.integers(0, 9), how=st.sampled_from(["eof", "reset"]))
    def breaks(self, pick: int, how: str) -> None:
        open_ones = self._open()
        if open_ones:
            one = open_ones[pick % len(open_ones)]
            with self.loop.within():
                if how == "reset":
                    if one.owes is not None and one.coming:
                        self.asked[one.owes].may_end_anywhere = False
                    one.lose(ConnectionResetError())
                else:
                    one.eof()

    # What holds.

    @invariant()
    def each_has_its_own(self) -> None:
        for one in self.asked:
            assert one.body.startswith(one.got), one
            if one.said == "ended":
                assert one.whole, one
                assert one.got == one.body or one.may_end_anywhere, one

    @invariant()
    def what_nobody_takes_is_bounded(self) -> None:
        for wire in self.loop.wires:
            content = wire.protocol._content  # type: ignore[attr-defined]  # a link
            assert content is None or content._size <= HIGH_BYTES or wire.paused or wire.closing

    @invariant()
    def nothing_fails_in_the_dark(self) -> None:
        assert not self.failures, self.failures

    @precondition(lambda self: self.asked)
    @rule()
    def settles(self) -> None:
        self._settle()
        for wire in self.loop.wires:
            # Who isn't there any more holds nobody.
            if wire.paused and not wire.closing:
                assert wire.owes is not None
                reader = self.asked[wire.owes].task
                assert reader is not None
                assert not reader.done()

    def _settle(self) -> None:
        for _ in range(30):
            self.loop.turn()

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            contents.HIGH_BYTES = self._high
            for one in self.asked:
                if one.task is not None and not one.task.done():
                    one.task.cancel()
            self._settle()
            self.loop.close()

    def _end(self) -> None:
        for one in self.asked:
            one.gate.set()
        self.takes(taking=True)
        self._settle()
        for _ in range(40):
            # All that is owed comes, or the connection ends.
            for wire in self._open():
                with self.loop.within():
                    if wire.coming:
                        wire.say(10_000)
                    elif wire.owes is not None:
                        wire.eof()
            self._settle()
        for one in self.asked:
            assert one.task is not None
            assert one.task.done(), one
        self.each_has_its_own()
        self.loop.now += KEEPALIVE_S + 1
        self._settle()
        assert all(wire.over for wire in self.loop.wires), [wire.protocol for wire in self.loop.wires]
        assert not self.wire._idle
        assert not self.wire._links
        self.nothing_fails_in_the_dark()


Connections.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestConnections = Connections.TestCase


class Script(Connections):
    """The same, a step after the other as a test says."""

    def asks(self, *plan: str) -> tuple[Asked, Connection]:
        """Ask; return the request and the connection that it went out on."""
        self.ask(plan=list(plan))
        self._settle()
        asked = self.asked[-1]
        taken = [one for one in self.loop.wires if one.owes == asked.number or one.get_write_buffer_size()]
        return asked, taken[-1]

    def says(self, one: Connection, kind: str, *, but: int = 0) -> None:
        """Let the engine answer, but for so many bytes."""
        self._script(one, kind, 8)
        with self.loop.within():
            one.say(len(one.coming) - but)
        self._settle()


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    yield script
    script.teardown()


def test_an_answer_that_stops_in_its_head_is_no_connection_that_closed_before_it(script: Script) -> None:
    for kind, said in (("nothing", "ServerDisconnectedError"), ("half a head", "ClientConnectionError")):
        asked, one = script.asks()
        script.says(one, kind)
        assert asked.said == f"broke: {said}"


@pytest.mark.parametrize("kind", ["sized", "chunked", "hints", "closing"])
@pytest.mark.parametrize("how", ["answer", "wire"])
def test_who_reads_what_is_closed_is_told_so_at_once(script: Script, kind: str, how: str) -> None:
    asked, one = script.asks("any")
    script.says(one, kind, but=20)
    assert asked.answer is not None
    with script.loop.within():
        (asked.answer if how == "answer" else script.wire).close()
    script._settle()
    assert asked.said == "broke: ClientConnectionError"


def test_who_waits_for_a_head_when_all_is_closed_is_not_told_to_ask_again(script: Script) -> None:
    asked, _ = script.asks()
    with script.loop.within():
        script.wire.close()
    script._settle()
    assert asked.said == "broke: ClientConnectionError"
    script.ask(plan=[])
    script._settle()
    assert script.asked[-1].said == "broke: ClientConnectionError"


def test_a_body_to_the_close_does_not_end_with_a_connection_that_broke(script: Script) -> None:
    asked, one = script.asks()
    script.says(one, "closing", but=9)
    asked.may_end_anywhere = False
    with script.loop.within():
        one.lose(ConnectionResetError())
    script._settle()
    assert asked.said == "broke: ClientPayloadError"
    assert asked.got


def test_an_engine_that_closes_and_reads_no_more_ends_the_request(script: Script) -> None:
    script.takes(taking=False)
    asked, one = script.asks()
    with script.loop.within():
        one.eof()
    script._settle()
    assert (asked.said, one.over) == ("broke: ServerDisconnectedError", True)


def test_an_answer_to_half_a_request_is_an_answer_and_the_rest_stays_here(script: Script) -> None:
    script.takes(taking=False)
    asked, one = script.asks()
    one.owes = asked.number
    script.says(one, "sized")
    assert (asked.said, asked.got, one.over) == ("ended", asked.body, True)


@pytest.mark.parametrize("anew", [False, True])
def test_one_that_is_asked_anew_takes_none_that_was_kept(script: Script, anew: bool) -> None:
    _, one = script.asks()
    script.says(one, "sized")
    task = script.loop.create_task(script.wire.ask(b"POST /0 HTTP/1.1\r\n\r\n", b"{}", anew=anew))
    script._settle()
    assert len(script.loop.wires) == 1 + anew
    task.cancel()
    script._settle()


def test_one_that_closes_as_it_opens_is_forgotten(script: Script) -> None:
    script.ask(plan=[])
    while not script.loop.wires:
        script.loop.turn()
    with script.loop.within():
        script.loop.wires[0].lose(None)
    script._settle()
    assert script.asked[0].said == "broke: ServerDisconnectedError"
    assert not script.wire._links
