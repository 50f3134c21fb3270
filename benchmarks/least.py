"""The least recorder: the bare pass-through, and what a record can't do without.

`python -m benchmarks.least UPSTREAM DB` starts it.
It says what a recording proxy in this interpreter can reach at the most: it has no routes, rollouts, rules, limits,
retries, queues, dialects, errors, logs, metrics or memory limits, knows one engine's way of writing and one request's
shape, and would be wrong about most others. What it does, each in the fastest way that was found:
- sees that a request goes on from the last one with its key, decodes what is new of it, and takes a digest of each new
  message;
- asks for ids, parses those of the prompt that are new, and the sampled ones with their logprobs, as arrays;
- gives the agent the reply without them, and its end only when the call has been committed to a database on disk, by a
  thread, in groups.
"""

import asyncio
import queue
import re
import sys
import threading
import zlib
from hashlib import blake2b

import aiohttp
import apsw
import msgspec
import numpy as np
import uvloop
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from capture.engines.id_text import maybe_parse

TABLES = """CREATE TABLE calls (id INTEGER PRIMARY KEY, key TEXT, n INTEGER, body BLOB, ids BLOB, logprobs BLOB);
CREATE TABLE messages (call INTEGER, digest BLOB, body BLOB)"""
# As in `bare.py`; and the length, which is another.
_OURS = {"host", "connection", "keep-alive", "transfer-encoding", "date", "server", "content-length"}
_AUTO = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_ASKED = b',"return_token_ids":true,"logprobs":true}'
_NULLS = b',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
_token = re.compile(
    rb'(data: .*?"delta":\{"content":"(?:[^"\\]++|\\.)*+"\}),"logprobs":\{"content":\[\{"token":"(?:[^"\\]++|\\.)*+",'
    rb'"logprob":([-0-9.e]+),"bytes":\[[0-9,]*\],"top_logprobs":\[\]\}\]\},"finish_reason":null,"token_ids":\[(\d+)\]'
    rb"\}\]\}\n\n"
).fullmatch


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
    """The last call of a conversation: its messages and its prompt's ids as text, without their ends."""

    messages = b"["
    ids = b""
    calls = 0


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
        self._numbers: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._sampled: list[int] = []
        self._scores: list[float] = []

    def token(self, event: bytes) -> bytes | None:
        """Take the event of one token; return what the agent gets of it."""
        found = _token(event)
        if found is None:
            return None
        before, logprob, number = found.groups()
        self._logprobs.append(logprob)
        self._numbers.append(number)
        return before + _NULLS

    def rest(self, data: bytes) -> bytes:
        """Take a whole reply, or any other events of a stream; return what the agent gets of it."""
        out, at = [], 0
        start = data.find(b'"logprobs":{')
        if start >= 0:
            end = data.index(b',"finish_reason"', start)
            self._scores = [entry.logprob for entry in _content(data[start + 11 : end]).content]
            ids = data.index(b'"token_ids":[', end)
            stop = data.index(b"]", ids)
            self._sampled = _ids(data[ids + 12 : stop + 1])
            out += [data[:start], b'"logprobs":null', data[end:ids], b'"token_ids":null']
            at = stop + 1
        prompt = data.find(b'"prompt_token_ids":[', at)
        if prompt >= 0:
            stop = data.index(b"]", prompt)
            self._prompt = data[prompt + 20 : stop]
            out += [data[at:prompt], b'"prompt_token_ids":null']
            at = stop + 1
        return b"".join([*out, data[at:]]) if out else data

    def row(self, said: bytes) -> Row:
        """Return the record."""
        last, new = self._last, self._prompt
        if last.ids and new.startswith(last.ids):
            new = new[len(last.ids) + 1 :]
        last.ids, last.calls = self._prompt, last.calls + 1
        ids = maybe_parse(new)
        assert ids is not None
        if self._numbers:
            self._sampled = _ids(b"[%b]" % b",".join(self._numbers)) + self._sampled
            self._scores = _floats(b"[%b]" % b",".join(self._logprobs)) + self._scores
        sampled = np.array(self._sampled, dtype=np.int32)
        return (
            self._key,
            last.calls,
            zlib.compress(said, 1),
            ids.tobytes() + sampled.tobytes(),
            np.array(self._scores, dtype=np.float32).tobytes(),
            [(blake2b(text, digest_size=16).digest(), text) for text in self._new],
        )


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


def _split(data: bytes) -> list[bytes]:
    """Return the events in it, and what has begun behind them."""
    *events, begun = data.split(b"\n\n")
    return [*(event + b"\n\n" for event in events), begun]


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def main(upstream: str, path: str) -> None:
    """Relay every request to `upstream` and record it at `path`; print the address first."""
    pool, limits = aiohttp.TCPConnector(limit=0, keepalive_timeout=3), aiohttp.ClientTimeout(None, sock_connect=10)
    jar, store = aiohttp.DummyCookieJar(), Store(path)
    conversations: dict[str, Last] = {}
    async with aiohttp.ClientSession(connector=pool, timeout=limits, cookie_jar=jar, auto_decompress=False) as engine:

        async def relay(asked: web.BaseRequest) -> web.StreamResponse:
            url, body = URL(upstream + asked.raw_path, encoded=True), await asked.content.read()
            key = asked.headers["Authorization"]
            call = Call(key, conversations.setdefault(key, Last()), body)
            head = CIMultiDict((k, v) for k, v in asked.headers.items() if k.lower() not in _OURS)
            body = body[:-1] + _ASKED
            async with engine.request(asked.method, url, data=body, headers=head, skip_auto_headers=_AUTO) as answer:
                kept = CIMultiDict((k, v) for k, v in answer.headers.items() if k.lower() not in _OURS)
                if not call.streamed:
                    reply = call.rest(await answer.read())
                    await store.commit(call.row(reply))
                    return web.Response(body=reply, status=answer.status, headers=kept)
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(asked)
                said: list[bytes] = []
                held: list[bytes] = []
                begun = b""
                async for data in answer.content.iter_any():
                    ends = data.find(b"\n\n") == len(data) - 2 and not begun
                    # Mostly one event; of a prompt's ids a part, and sometimes several.
                    *events, begun = (data, b"") if ends else _split(begun + data)
                    for event in events:
                        told = None if held else call.token(event)
                        if told is None:
                            told = call.rest(event)
                            if held or b'"finish_reason":"' in event:
                                held.append(told)
                                continue
                        said.append(told)
                        await response.write(told)
                await store.commit(call.row(b"".join(said + held)))
                await response.write(b"".join(held))
                await response.write_eof()
                return response

        server = web.Server(relay, access_log=None, auto_decompress=False, handler_cancellation=True)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=1024)
        print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
        await listener.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2]))
