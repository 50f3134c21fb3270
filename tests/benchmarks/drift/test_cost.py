"""What pinning costs: the engine that answers at once, and the section that the figures make."""

from __future__ import annotations

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from benchmarks.drift import cost
from benchmarks.drift.static import END, SAMPLED, Static, rendered

USER = {"role": "user", "content": "word" * 3}


def test_a_token_is_four_bytes():
    ids = rendered([USER], closed=True)
    assert len(ids) == 5
    assert (ids[0], ids[-1], len(set(ids[1:-1]))) == (2, END, 1)
    assert rendered([USER], closed=False) == [*ids, 3]


@pytest.mark.parametrize("stream", [False, True])
async def test_it_takes_ids_and_counts_what_it_is_asked(stream):
    async with TestClient(TestServer(Static().app())) as client:
        body = {"messages": [USER], "kv_transfer_params": {"prompt_token_ids": [1, 2]}, "stream": stream}
        async with client.post("/v1/chat/completions", json=body) as answer:
            text = await answer.read()
        first = text.split(b"\n\n")[0].removeprefix(b"data: ")
        assert msgspec.json.decode(first)["prompt_token_ids"] == [1, 2]
        async with client.get("/counts") as answer:
            assert await answer.json() == {"/v1/chat/completions": 1}
        async with client.get("/counts") as answer:
            assert await answer.json() == {}


async def test_calls_are_measured_at_the_engine_plain_and_pinned():
    rows = {row.mode: row for row in await cost.at_once(200)}
    assert rows["direct"].added_ms_p50 is None
    assert rows["engine"].requests == {"/v1/chat/completions": 1}
    assert rows["pinned"].requests["/v1/chat/completions"] == 1
    # Two renderings with own words and a true one; two more when a closing is learnt.
    assert 3 <= rows["pinned"].requests["/tokenize"] < 4
    assert SAMPLED[-1] == END


def test_the_section_has_a_line_for_each_figure():
    told = {
        "at": "2026-11-30T04:00:00.000Z", "host": {"cores": 2, "load": 1.0},
        "rows": msgspec.to_builtins(
            [
                cost.Cost(prompt_tokens=16_000, mode="direct", total_ms_p50=1.0, added_ms_p50=None, requests={"/c": 1}),
                cost.Cost(prompt_tokens=16_000, mode="pinned", total_ms_p50=6.5, added_ms_p50=5.5,
                          requests={"/c": 1, "/t": 3.2}),
            ]
        ),
        "first_tokens": msgspec.to_builtins(
            [cost.First(turn=1, prompt_tokens=2000, plain_ms=100.0, pinned_ms=50.0, ratio=0.5)]
        ),
    }  # fmt: skip
    page = f"before\n{cost.BEGIN}old\n{cost.END}after\n"
    made = cost.with_section(page, told)
    assert "| 16,000 | pinned | 6.5 | 5.5 | 1 `/c`, 3.2 `/t` |" in made
    assert "| 1 | 2,000 | 100 | 50 | 0.50 |" in made
    assert "takes 0.50 of plain's time" in made
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert "old" not in made
