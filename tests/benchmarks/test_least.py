"""The least recorder: what it stands for is said only if it records."""

import asyncio
import sqlite3
import zlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks import systems, wire
from benchmarks.corpus import REPLY_TOKENS, Corpus
from benchmarks.plan import Shape
from benchmarks.rounds import Bench
from benchmarks.upstream import Flow, serve

CORPUS = Corpus(30_000)


@pytest.mark.parametrize("paced", [True, False])
async def test_it_records_what_the_engine_said(paced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.plan.N_TOKENS", CORPUS.n_tokens)
    flow = Flow()
    server, url = await serve(wire.Wire(CORPUS), flow)
    least = await asyncio.to_thread(systems.start_least, url, tmp_path)
    try:
        bench = Bench([least], CORPUS, flow, paced=paced)
        await bench.check()
        for streamed in (False, True):
            # A stream's first event, which has the prompt's ids, comes in pieces.
            shape = Shape(
                prompt_tokens=16_000 if streamed else 2_000, streamed=streamed, case="growing", connections=2, calls=3
            )
            await bench.turns(shape, 1)
    finally:
        least.stop()
        server.close()
    db = sqlite3.connect(tmp_path / "least.db")
    calls = db.execute("SELECT key, n, body, ids, logprobs FROM calls ORDER BY key, n").fetchall()
    (messages,) = db.execute("SELECT count(DISTINCT call) FROM messages").fetchone()
    db.close()
    # Two checks of one call, and two shapes of two connections with a first call and three more.
    assert len(calls) == messages == 2 + 2 * 2 * 4
    prompts: dict[str, np.ndarray] = {}
    for key, n, body, ids, logprobs in calls:
        found = np.frombuffer(ids, dtype=np.int32)
        prompt = np.concatenate([prompts.get(key, found[:0]), found[:-REPLY_TOKENS]])
        prompts[key] = prompt
        (start,) = np.flatnonzero(CORPUS.ids == prompt[0])[:1]
        whole = CORPUS.ids[start : start + len(prompt) + REPLY_TOKENS]
        assert (n > 1) == (len(found) < len(whole))
        assert np.array_equal(np.concatenate([prompt, found[-REPLY_TOKENS:]]), whole)
        scores = CORPUS.logprobs[start + len(prompt) : start + len(prompt) + REPLY_TOKENS]
        assert np.frombuffer(logprobs, dtype=np.float32).tolist() == np.array(scores, dtype=np.float32).tolist()
        assert b'"token_ids":[' not in zlib.decompress(body)
        assert b'"prompt_token_ids":[' not in zlib.decompress(body)
