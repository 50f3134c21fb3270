import asyncio

from benchmarks import store_commit, store_kill
from capture.store.check import check


def test_a_round_stores_what_it_counts(tmp_path):
    told = asyncio.run(store_commit._drive(f"sqlite:///{tmp_path}/t.db", "process", 4, 0.3, 0))
    report = check(tmp_path / "t.db")
    assert report.faults == ()
    assert report.calls == told["calls"] + len(told["commit_ms"]) + 3 * 4
    assert told["calls"] > 0


def turn(calls_per_s, *waits):
    return {"calls_per_s": calls_per_s, "calls": 10, "commit_ms": list(waits)}


def test_a_ratio_is_of_one_turn_and_the_median_of_all():
    # The machine was slow in the second turn, and so was the other.
    process, none = [turn(90, 1, 2), turn(47, 3), turn(80, 4)], [turn(100), turn(50), turn(100)]
    row = store_commit._row("sqlite", "process", 1, process, beside=none)
    assert (row["calls_per_s"], row["ratio_to_none"], row["calls"], row["commit_ms_p50"]) == (80, 0.9, 30, 3)
    assert store_commit._row("postgresql", "power", 2, process)["ratio_to_none"] is None
    assert "| sqlite | process | 1 | 80 | 3.0 ms | 4.0 ms | 0.90 |" in store_commit.table([row])


def test_kills_have_a_table_of_their_own():
    row = {
        "killed": "replica", "store": "postgresql", "kills": 8, "kills_while_starting": 1, "calls_seen_ended": 1234,
        "changes_seen": 5, "calls_lost": 0, "minutes": 0.4,
    }  # fmt: skip
    assert "| replica | postgresql | 8 | 1 | 1,234 | 5 | 0 | 0.4 |" in store_commit.table([row])
    assert sum(store_kill.KILLS.values()) == 500
