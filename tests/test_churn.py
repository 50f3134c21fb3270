"""Calls of all kinds at once over real sockets, while agents leave, streams break off and the engine is started anew.

Drawn from a seed, and over in some seconds. What holds for each call, whatever happened beside it
1. What its agent got is its own: no mark of another call stands in it.
2. Whoever saw the end of a reply has it in the record, whole, id by id.
3. An engine that works for an agent that left is told to stop.
4. In the end nothing runs, no place is taken, and no connection is held.
"""

import asyncio
import contextlib
import random
import re
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from capture.content import Content
from tests import tongues
from tests.engine import Engine, Exchange, _answer_probe, chunk, event, usage_chunk, whole
from tests.house import House, house

AGENTS = 12
CALLS = 20
RESTARTS = 4
MARK = re.compile(rb"w(\d+)w")


def ids_of(n: int) -> list[int]:
    return [3 * n, 3 * n + 1, 3 * n + 2]


def stream_of(n: int) -> bytes:
    a, b, c = ids_of(n)
    return b"".join(
        [
            event(chunk(role=True)),
            event(chunk(a, text=f"w{n}w")),
            b": a comment\n\n",
            event(chunk(b, text=f" é{n}")),
            event(chunk(c, finish="stop")),
            event(usage_chunk(3)),
            event("[DONE]"),
        ]
    )


class Churned(Engine):
    """Answers each call by its number: cut anywhere, at once or in turns, to its end or not."""

    def __init__(self, luck: random.Random) -> None:
        super().__init__(auto=self._reply)
        self._luck = luck
        # Those that are never ended: the agent is to leave.
        self.left_open: list[Exchange] = []
        self.playing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        if self._runner is not None:
            # asyncio (3.11) leaves a socket open that it has accepted in the very turn in which its server closes.
            for site in self._runner.sites:
                assert isinstance(site, web.TCPSite)
                assert isinstance(site._server, asyncio.Server)
                for listening in site._server.sockets:
                    asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(5):
                await asyncio.sleep(0)
        await super().close()

    def _reply(self, exchange: Exchange) -> bool:
        if _answer_probe(exchange):
            return True
        text = str(exchange.body["messages"][-1]["content"])
        n = int(text.split()[1])
        if not exchange.body.get("stream"):
            exchange.answer(whole(ids_of(n), text=f"w{n}w", reply_id=f"chatcmpl-{n}"))
            return True
        task = asyncio.get_running_loop().create_task(self._stream(exchange, n, text.endswith("leaves")))
        self.playing.add(task)
        task.add_done_callback(self.playing.discard)
        return True

    async def _stream(self, exchange: Exchange, n: int, leaves: bool) -> None:
        luck, raw = self._luck, stream_of(n)
        if leaves:
            # It has its head and a token, and nothing that ends it.
            raw = raw[: raw.index(b": a comment")]
        cuts = sorted(luck.sample(range(1, len(raw)), luck.choice([0, 1, 4, 12])))
        breaks = not leaves and luck.random() < 0.15
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        for piece in pieces[: luck.randrange(len(pieces) + 1)] if breaks else pieces:
            exchange.send(piece)
            for _ in range(luck.randrange(3)):
                await asyncio.sleep(0)
        if leaves:
            self.left_open.append(exchange)
        elif breaks:
            exchange.cut()
        else:
            exchange.end()


def is_end(name: str, status: int, body: bytes, *, stream: bool, clean: bool) -> bool:
    """Say whether an agent could take a reply as finished."""
    if status != 200:
        return False
    mark = b'"finish_reason":"stop"' if name == "chat" else b"message_delta"
    return mark in body.replace(b'": ', b'":') if stream else clean


async def told_to_stop(engine: Churned) -> None:
    async with asyncio.timeout(10):
        for exchange in engine.left_open:
            await exchange.dropped.wait()


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_gets_its_own_and_what_was_seen_to_end_is_kept(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    engine = Churned(luck)
    await engine.start()
    port = int(engine.url.rsplit(":", 1)[1])
    ended: dict[int, list[int]] = {}
    came: list[str] = []
    moved, up = asyncio.Event(), asyncio.Event()
    up.set()

    async def ask(home: House, rollout: dict[str, str], n: int, name: str, way: str, *, stream: bool) -> None:
        asked = tongues.body(name, f"agent {n} {'leaves' if way.startswith('leaves') else ''}", stream=stream)
        headers = {"Authorization": f"Bearer {rollout['secret']}", "Idempotency-Key": f"call {n}"}
        body, status, clean = b"", 0, False
        with contextlib.suppress(aiohttp.ClientError):
            async with home.session.post(
                home.appliance.data_url + tongues.path(name, stream=stream), json=asked, headers=headers
            ) as answer:
                status = answer.status
                while way != "leaves at once" and (piece := await answer.content.readany()):
                    body += piece
                    if way in ("leaves", "comes again") and MARK.search(body):
                        break
                else:
                    clean = way == "stays"
        assert set(MARK.findall(body)) <= {str(n).encode()}, (n, body)
        if is_end(name, status, body, stream=stream, clean=clean):
            assert MARK.search(body), body
            ended[n] = ids_of(n)
        came.append(f"{status}{' clean' if clean else ''}" if way == "stays" else way)
        moved.set()
        if status == 502:
            await up.wait()

    async def call(home: House, rollout: dict[str, str], n: int) -> None:
        name, stream = luck.choice(["chat", "messages"]), luck.random() < 0.7
        way = luck.choice(["stays"] * 5 + ["leaves", "leaves at once", "comes again"]) if stream else "stays"
        if way == "comes again":
            # While the first may still be under way, or has just been left, or is in the record.
            async with asyncio.TaskGroup() as both:
                both.create_task(ask(home, rollout, n, name, way, stream=stream))
                for _ in range(luck.randrange(12)):
                    await asyncio.sleep(0)
                both.create_task(ask(home, rollout, n, name, "stays", stream=stream))
        else:
            await ask(home, rollout, n, name, way, stream=stream)

    async def agent(home: House, rollout: dict[str, str], first: int) -> None:
        for n in range(first, first + CALLS):
            await call(home, rollout, n)

    async def more(n: int) -> None:
        """Wait until so many more have come to something."""
        n += len(came)
        while len(came) < n:
            moved.clear()
            await moved.wait()

    async def restart() -> None:
        for _ in range(RESTARTS):
            await more(AGENTS * CALLS // (RESTARTS + 2))
            up.clear()
            await engine.close()
            # Some are told that nothing listens.
            await more(2)
            await engine.start(port)
            up.set()

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(engine.close)
        home = await stack.enter_async_context(house(engine, tmp_path))
        rollouts = [await home.rollout() for _ in range(AGENTS)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            restarting = group.create_task(restart())
            agents = [group.create_task(agent(home, one, 1000 * i)) for i, one in enumerate(rollouts, 1)]
            await asyncio.wait(agents)
            restarting.cancel()
        await told_to_stop(engine)
        async with asyncio.timeout(10):
            await home.appliance.rollouts.drained()
        await home.appliance.store.flush()
        kept: dict[int, list[int]] = {}
        for rollout in rollouts:
            for one in await home.appliance.store.calls(rollout["id"]):
                assert one.status != "running"
                if one.status == "complete":
                    assert one.sampled_ids is not None
                    kept[one.sampled_ids.tolist()[0] // 3] = one.sampled_ids.tolist()
        assert ended.items() <= kept.items()
        # Each of the ways was gone.
        assert {"200 clean", "200", "502 clean", "leaves", "leaves at once", "comes again"} <= set(came), sorted(
            set(came)
        )
        assert len(ended) > AGENTS * CALLS // 3
        upstream = home.appliance.engine
        assert upstream.in_flight == 0
        wire = upstream._wire
        assert wire is not None
        assert set(wire._idle) == wire._links
        assert not any(link._held or isinstance(link._content, Content) for link in wire._links)
