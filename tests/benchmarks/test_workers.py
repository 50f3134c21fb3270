import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import overhead, pages, workers
from benchmarks.load import Round, Sample
from benchmarks.report import Turn
from benchmarks.workers import Place, rows, verdict
from tests import postgres

ROOT = Path(__file__).resolve().parent.parent.parent


def place(store: str, seconds: float, cpu_ms: float, *, replicas: int = 1, n: int = 1) -> Place:
    made = Place(store, [None] * replicas, workers=n, database=7 if store == "postgresql" else None)
    samples = [Sample(1.0, None, 1)] * 10
    made.turns = [
        Turn(round=Round(seconds=seconds * slow, samples=samples), cpu_ms=cpu_ms * slow, peak_mib=100.0)
        for slow in (1, 3, 1)
    ]
    made.database_cpu_ms = 15.0
    return made


def test_ratios_are_to_one_worker_within_a_pair() -> None:
    # All were three times slower in the second pair.
    one, two, replicas = rows(
        [place("sqlite", 2.0, 20.0), place("sqlite", 1.0, 22.0, n=2), place("postgresql", 1.25, 25.0, replicas=2)]
    )
    assert (one.ratio, one.cpu_ratio, one.postgres_cpu_ms_per_call) == (None, None, None)
    assert (two.workers, two.ratio, two.cpu_ratio, two.noisy) == (2, 2.0, 1.1, False)
    assert (replicas.replicas, replicas.ratio, replicas.cpu_ratio) == (2, 1.6, 1.25)
    assert replicas.postgres_cpu_ms_per_call == 0.5
    assert verdict([one, two, replicas]) == (
        "beside one worker on SQLite, 2 workers: 2.00 x the requests, 1.10 x the CPU time a call;"
        " 2 on PostgreSQL: 1.60 x the requests, 1.25 x the CPU time a call"
    )
    assert verdict([one]) == "one worker alone was measured"


def test_the_docs_tell_of_the_run_that_lies_beside_them() -> None:
    told = json.loads(workers.DOCUMENT.read_text())
    assert pages.between(overhead.PAGE.read_text(), "workers") == workers.section(told)


async def test_one_process_and_replicas_serve_the_same_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SHAPE", workers.Shape(
        prompt_tokens=2_000, streamed=False, case="growing", connections=2, calls=1
    ))  # fmt: skip
    told = await workers.measure(quick=True, workers=[1])
    wanted = [("sqlite", 1)] + ([] if postgres.missing() else [("postgresql", 1), ("postgresql", 2)])
    assert [(row["store"], row["replicas"]) for row in told["rows"]] == wanted
    assert all(row["calls"] == 4 for row in told["rows"])


def test_the_benchmarks_start_without_postgresqls_driver() -> None:
    """Which is an extra that `bin/bench` does not install."""
    code = "import sys; sys.modules['asyncpg'] = None; import benchmarks.overhead, benchmarks.performance"
    tried = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tried.returncode, tried.stderr) == (0, "")


def test_without_the_driver_one_process_and_several_are_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stub:
        def stop(self) -> None:
            """Do nothing."""

    monkeypatch.setattr(workers.systems, "start_treering", lambda *_: Stub())
    monkeypatch.setitem(sys.modules, "tests.postgres", None)
    monkeypatch.delattr(sys.modules["tests"], "postgres")
    with contextlib.ExitStack() as stack:
        places = workers._start("http://127.0.0.1:1", tmp_path, stack, [1, 2])
    assert [(place.store, place.workers) for place in places] == [("sqlite", 1), ("sqlite", 2)]
    assert "no PostgreSQL" in capsys.readouterr().err
