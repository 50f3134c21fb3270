import json
from typing import Any

import pytest

from benchmarks import overhead, pages

PAGE = "a\n<!-- x: made by `y` -->\nold\n<!-- end of x -->\nb\n"


def test_what_stands_between_the_marks_is_replaced() -> None:
    new = pages.replaced(PAGE, "x", "new\n")
    assert new == "a\n<!-- x: made by `y` -->\nnew\n<!-- end of x -->\nb\n"
    assert pages.between(new, "x") == "new\n"
    assert pages.replaced(new, "x", "old\n") == PAGE
    with pytest.raises(ValueError, match="substring not found"):
        pages.replaced(PAGE, "z", "")


def test_the_docs_tell_of_the_run_that_lies_beside_them() -> None:
    told = json.loads(overhead.DOCUMENT.read_text())
    assert pages.between(overhead.PAGE.read_text(), "overhead") == pages.overhead(told)
    assert {row.get("upstream", "engine") for row in told["rows"]} <= {"engine", "static", "open"}


def row(**changes: Any) -> dict[str, Any]:
    return {
        "system": "treering", "prompt_tokens": 16_000, "streamed": False, "connections": 4, "case": "growing",
        "rps": 100.0, "added_ms_p50": 1.0, "added_ms_p99": 1.0, "first_token_ms_p50": None,
        "first_token_added_ms_p50": None, "cpu_ms_per_call": 1.0, "peak_mib": 1.0, "ratio_to_bare": 0.5,
        "ratio_spread": 0.1, "noisy": False, "calls": 4, "upstream": "open",
    } | changes  # fmt: skip


def test_peers_have_a_column_each_and_one_beside_treering() -> None:
    rows = [
        row(system="bare", ratio_to_bare=None),
        row(),
        row(system="openenv", rps=8.0, treering_ratio=12.5, treering_spread=0.1, treering_cpu_ratio=11.0),
        row(system="verifiers", rps=10.0, treering_ratio=10.0, treering_spread=0.4, treering_cpu_ratio=9.0),
    ]
    told = {"at": "2026-01-01", "host": {"cores": 2, "load": 0.5}, "pinned": True, "rows": rows}
    head, _, line = pages.overhead(told).splitlines()[-3:]
    assert head == (
        "| prompt | reply | case | conns | bare | treering | openenv | verifiers | treering by openenv"
        " | treering by verifiers |"
    )
    assert line == (
        "| 16,000 | plain | growing | 4 | 100.0 | 100.0 | 8.0 | 10.0 | 12.5 x, CPU 11.0 x | (10.0 x), CPU 9.0 x |"
    )


def test_each_part_says_which_python_it_was_measured_with() -> None:
    parts = {"open": {"python": "Python 3.14.0, quick", "pairs": 3}, "engine": {}}
    rows = [row(), *(row(upstream="engine", system=system) for system in ("bare", "treering"))]
    told = {"at": "2026-01-01", "host": {"cores": 2, "load": 0.5}, "parts": parts, "rows": rows}
    said = [line for line in pages.overhead(told).splitlines() if line.startswith("2026")]
    assert ["load 0.5, Python 3.14.0, quick." in line for line in said] == [False, True]


def test_every_line_has_a_cell_for_each_column() -> None:
    for table in pages.overhead(json.loads(overhead.DOCUMENT.read_text())).split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1


def test_parts_that_were_not_measured_again_stay() -> None:
    before = {
        "parts": {"static": {"at": "2026-01-01", "load": 9.0, "pairs": 3}, "open": {}},
        "rows": [row(upstream="static"), row()],
    }
    told = {
        "at": "2026-02-02", "host": {"cores": 2, "load": 0.5}, "verdict": "", "parts": {"open": {"at": "2026-02-02"}},
        "rows": [row(rps=7.0)],
    }  # fmt: skip
    whole = overhead.merged(before, told)
    assert [(each["upstream"], each["rps"]) for each in whole["rows"]] == [("open", 7.0), ("static", 100.0)]
    assert whole["parts"] == {"static": before["parts"]["static"], "open": {"at": "2026-02-02"}}
    # Rows of a run that did not say of which part they were are of none.
    assert overhead.merged({"rows": [row()]}, told)["rows"] == told["rows"]
