"""Exports measured small: what is measured is right, and memory does not grow with the rollouts."""

import gc
import json
import tracemalloc

import pytest

from benchmarks import store_export
from benchmarks.store_export import CALLS, Shape, fill, rows, serving, table
from capture import bulk
from capture.formats import FORMATS
from capture.offline import _Stored
from capture.store import open_store

FEW, MANY = (Shape(rollouts=rollouts, added=60, sampled=20) for rollouts in (20, 120))

ROOM = 256 * 1024
"""Bytes by which a hundred rollouts more may raise the peak: what one of them takes while it is shaped differs. Kept
messages alone, which once were not counted in full, came to ten times that."""


async def peak(folder, shape: Shape, *, keep: bool = False) -> int:
    """The most that Python has allocated while all rollouts of a store went out."""
    url = f"sqlite:///{folder}/{shape.rollouts}.db"
    await fill(url, shape)
    store = open_store(url, durability="none")
    await store.open()
    kept, counted = [], 0
    try:
        gc.collect()
        tracemalloc.start()
        async for line in bulk.lines(_Stored(store), bulk.read({"format": "native"})):
            counted += 1
            if keep:
                kept.append(line)
        assert counted == shape.rollouts + 1
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await store.close()


async def test_memory_does_not_grow_with_the_rollouts(tmp_path):
    await peak(tmp_path, Shape(rollouts=5, added=60, sampled=20))
    few, many = await peak(tmp_path, FEW), await peak(tmp_path, MANY)
    assert many - few < ROOM, f"{few:,} bytes for {FEW.rollouts} rollouts, {many:,} for {MANY.rollouts}"


async def test_a_reader_that_keeps_the_lines_would_be_noticed(tmp_path):
    few, many = await peak(tmp_path, FEW, keep=True), await peak(tmp_path, MANY, keep=True)
    assert many - few > 2 * ROOM


async def test_what_is_put_in_is_what_the_rows_have(tmp_path):
    url = f"sqlite:///{tmp_path}/t.db"
    await fill(url, Shape(rollouts=2, added=7, sampled=3))
    store = open_store(url, durability="none")
    await store.open()
    try:
        *rollouts, end = [
            json.loads(line) async for line in bulk.lines(_Stored(store), bulk.read({"format": "native"}))
        ]
    finally:
        await store.close()
    assert end == {"end": True, "rollouts": 2, "refused": 0, "next": None}
    for rollout in rollouts:
        (row,) = rollout["sequences"]
        assert (len(row["input_ids"]), row["n_trained_tokens"]) == (CALLS * 10, CALLS * 3)
        assert rollout["reward"] is not None


def test_every_format_is_measured_on_a_real_appliance(tmp_path, monkeypatch):
    small = Shape(rollouts=2, added=20, sampled=10)
    monkeypatch.setattr(store_export, "QUICK_THROUGHPUT", small)
    monkeypatch.setattr(store_export, "QUICK_MEMORY", (small,))
    made = rows(quick=True, kill=False)
    assert [row["format"] for row in made] == [*FORMATS, "native"]
    assert all(row["tokens"] == 2 * CALLS * 30 and row["tokens_per_s"] > 0 for row in made)
    assert all(row["peak_mib"] >= row["before_mib"] > 1 for row in made)
    assert len(table(made).splitlines()) == len(made) + 2


def test_an_answer_that_refuses_a_rollout_is_no_measurement(tmp_path):
    shape = Shape(rollouts=1, added=20, sampled=10)
    with serving(tmp_path, shape) as appliance, pytest.raises(RuntimeError, match="ended with"):
        appliance.measure("native", Shape(rollouts=3, added=20, sampled=10))
