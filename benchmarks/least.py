"""The least recorder: the bare pass-through, and what a record can't do without.

`python -m benchmarks.least UPSTREAM DB` starts it.
It says what a recording proxy in this interpreter can reach at the most: it has no routes, rollouts, rules, limits,
retries, queues, dialects, errors, logs, metrics or memory limits, knows one engine's way of writing and one request's
shape, and would be wrong about most others. What it does, each in the fastest way that was found:
- speaks to the engine, and to the agent in a stream, by Treering's own client and lane, at the wire's own price;
- sees that a request goes on from the last one with its key, decodes what is new of it, and takes a digest of each new
  message;
- asks for ids, parses those of the prompt that are new, and the sampled ones with their logprobs, as arrays;
- gives the agent the reply without them, and its end only when the call stands in a trie of its conversation's ids, and
  has been committed to a database on disk, by a thread, in groups.
"""

import asyncio
import queue
import sys
import threading
import zlib
from hashlib import blake2b
from urllib.parse import urlsplit

import apsw
import msgspec
import numpy as np
import uvloop
from aiohttp import web
from multidict import CIMultiDict

from capture.chunks import framed
from capture.content import Content
from capture.dialects.express import Lane
from capture.engines.id_text import maybe_parse
from capture.engines.stamp import Stamp
from capture.outlet import Outlet, maybe_outlet
from capture.wire import Wire
from graph.tokens import Trie

TABLES = """CREATE TABLE calls (id INTEGER PRIMARY KEY, key TEXT, n INTEGER, body BLOB, ids BLOB, logprobs BLOB);
CREATE TABLE messages (call INTEGER, digest BLOB, body BLOB)"""
# As in `bare.py`; and the length, which is another.
_OURS = {"host", "connection", "keep-alive", "transfer-encoding", "date", "server", "content-length"}
_ASKED = b',"return_token_ids":true,"logprobs":true}'


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str


class _Request(msgspec.Struct, gc=False):
    messages: msgspec.Raw
    stream: bool = False


class _Entry(msgspec.Struct, gc=False):
    logprob: float


class _Content(msgspec.Struct, gc=False):
    content: list[_Entry]


_request = msgspec.json.Decoder(_Request).decode
_messages = msgspec.json.Decoder(list[_Message]).decode
_content = msgspec.json.Decoder(_Content).decode
_floats = msgspec.json.Decoder(list[float]).decode
_ids = msgspec.json.Decoder(list[int]).decode

Row = tuple[str, int, bytes, bytes, bytes, list[tuple[bytes, bytes]]]


class Last:
    """The last call of a conversation: its messages and its prompt's ids as text, without their ends; and its graph."""

    def __init__(self) -> None:
        self.messages = b"["
        self.text = b""
        self.ids = np.zeros(0, dtype=np.int32)
        self.trie = Trie()
        self.calls = 0


class Call:
    """One call's record."""

    def __init__(self, key: str, last: Last, body: bytes) -> None:
        self._key, self._last = key, last
        asked = _request(body)
        self.streamed = asked.stream
        raw = bytes(asked.messages)[:-1]
        known = len(last.messages) + 1 if len(last.messages) > 1 and raw.startswith(last.messages) else 1
        last.messages = raw
        self._new = [message.content.encode() for message in _messages(b"[%b]" % raw[known:])]
        self._prompt = b""
        # What came one at a time, unread, and what did not.
        self.raw: tuple[list[bytes], list[bytes]] = ([], [])
        self._logprobs: list[float] = []
        self._sampled: list[int] = []

    def rest(self, data: bytes) -> bytes:
        """Take a whole reply, or an event that is no ordinary token's; return what the agent gets of it."""
        out, at = [], 0
        start = data.find(b'"logprobs":{')
        if start >= 0:
            # What came one at a time came before.
            self._settle()
            end = data.index(b',"finish_reason"', start)
            self._logprobs += [entry.logprob for entry in _content(data[start + 11 : end]).content]
            ids = data.index(b'"token_ids":[', end)
            stop = data.index(b"]", ids)
            self._sampled += _ids(data[ids + 12 : stop + 1])
            out += [data[:start], b'"logprobs":null', data[end:ids], b'"token_ids":null']
            at = stop + 1
        prompt = data.find(b'"prompt_token_ids":[', at)
        if prompt >= 0:
            stop = data.index(b"]", prompt)
            self._prompt = data[prompt + 20 : stop]
            out += [data[at:prompt], b'"prompt_token_ids":null']
            at = stop + 1
        return b"".join([*out, data[at:]]) if out else data

    def _settle(self) -> None:
        ids, logprobs = self.raw
        if ids:
            self._sampled += _ids(b"[%b]" % b",".join(ids))
            self._logprobs += _floats(b"[%b]" % b",".join(logprobs))
            ids.clear()
            logprobs.clear()

    def row(self, said: bytes) -> Row:
        """Return the record, and put the call in its graph."""
        last, new = self._last, self._prompt
        known = bool(last.text) and new.startswith(last.text)
        ids = maybe_parse(new[len(last.text) + 1 :] if known else new)
        assert ids is not None
        prompt = np.concatenate((last.ids, ids)) if known else ids
        last.text, last.ids = self._prompt, prompt
        self._settle()
        sampled = np.array(self._sampled, dtype=np.int32)
        last.trie.insert(last.calls, prompt, sampled)
        last.calls += 1
        return (
            self._key,
            last.calls,
            zlib.compress(said, 1),
            ids.tobytes() + sampled.tobytes(),
            np.array(self._logprobs, dtype=np.float32).tobytes(),
            [(blake2b(text, digest_size=16).digest(), text) for text in self._new],
        )


class Stream:
    """One call's events on their way."""

    def __init__(self, call: Call, outlet: Outlet) -> None:
        self._call = call
        self._send = outlet.send
        self._lane: Lane | None = None
        self._begun = b""
        self.said: list[bytes] = []
        self.held: list[bytes] = []

    def rush(self, chunk: bytes) -> bool:
        """Take an ordinary token's chunk."""
        told = None if self._lane is None else self._lane.chunk(chunk)
        if told is None:
            return False
        self.said.append(told[0])
        self._send(told[1])
        return True

    def take(self, data: bytes) -> bool:
        """Take anything else: of a prompt's ids a part, and sometimes several events."""
        *events, self._begun = (self._begun + data).split(b"\n\n")
        for event in events:
            told = self._call.rest(event + b"\n\n")
            if self.held or b'"finish_reason":"' in event:
                self.held.append(told)
                continue
            self.said.append(told)
            self._send(framed(told))
            if self._lane is None:
                # What all events begin with.
                begin = event[6 : event.index(b'"delta":') + 8]
                stamp = Stamp(begin, shown=begin, logprobs=False, ids=False)
                self._lane = stamp.maybe_lane(lambda _: [], self._call.raw)
        return True


class Store:
    """A thread that commits what is queued, in one transaction at a time."""

    def __init__(self, path: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Row, asyncio.Future[None]]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(path,), daemon=True).start()

    async def commit(self, row: Row) -> None:
        """Return when a record is committed."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((row, future))
        await future

    def _run(self, path: str) -> None:
        db = apsw.Connection(path)
        db.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = normal")
        db.execute(TABLES)
        while True:
            group = [self._queue.get()]
            while not self._queue.empty():
                group.append(self._queue.get())
            db.execute("BEGIN IMMEDIATE")
            for (*call, messages), _ in group:
                db.execute("INSERT INTO calls (key, n, body, ids, logprobs) VALUES (?, ?, ?, ?, ?)", call)
                number = db.last_insert_rowid()
                db.executemany("INSERT INTO messages VALUES (?, ?, ?)", [(number, *one) for one in messages])
            db.execute("COMMIT")
            self._loop.call_soon_threadsafe(_resolve, [future for _, future in group])


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def main(upstream: str, path: str) -> None:
    """Relay every request to `upstream` and record it at `path`; print the address first."""
    at = urlsplit(upstream)
    wire = Wire(at.hostname or "", at.port or 80, keepalive_s=3, connect_s=10, max_line=65_536)
    store = Store(path)
    conversations: dict[str, Last] = {}

    async def relay(asked: web.BaseRequest) -> web.StreamResponse:
        body, key = await asked.content.read(), asked.headers["Authorization"]
        call = Call(key, conversations.setdefault(key, Last()), body)
        body = body[:-1] + _ASKED
        fields = [f"{name}: {value}\r\n" for name, value in asked.headers.items() if name.lower() not in _OURS]
        head = [f"{asked.method} {asked.raw_path} HTTP/1.1\r\nHost: {at.netloc}\r\n", *fields]
        answer = await wire.ask("".join([*head, f"Content-Length: {len(body)}\r\n\r\n"]).encode(), body)
        content, kept = answer.content, [(k, v) for k, v in answer.headers.items() if k.lower() not in _OURS]
        assert isinstance(content, Content)
        if not call.streamed:
            reply = call.rest(await content.rest(1 << 30) or b"")
            await store.commit(call.row(reply))
            return web.Response(body=reply, status=answer.status, headers=CIMultiDict(kept))
        response = web.StreamResponse(status=answer.status, headers=CIMultiDict(kept))
        await response.prepare(asked)
        outlet = maybe_outlet(response)
        assert outlet is not None
        stream = Stream(call, outlet)
        await content.pour(stream.take, stream.rush)
        await store.commit(call.row(b"".join(stream.said + stream.held)))
        await response.write(b"".join(stream.held))
        await response.write_eof()
        return response

    server = web.Server(relay, access_log=None, auto_decompress=False, handler_cancellation=True)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2]))
