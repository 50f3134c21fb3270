import json
from array import array
from typing import Any

import pytest

from benchmarks import replay
from benchmarks.agents import Seen
from benchmarks.replay import level_of, rule_of, table_line, verdict
from benchmarks.traffic import Turn

TURN = Turn(0, 0, 90_000, 400, 4.0, ())


def seen(**changes: Any) -> Seen:
    fields: dict[str, Any] = {
        "turn": TURN, "behind_ms": 3.0, "late_ms": 1.0, "first_added_ms": 5.0,
        "gaps_ms": array("d", [0.0, 0.0, 21.0, 24.0, 0.0, 0.0, 0.0]), "whole": True, "counted": True, "in_time": True,
    }  # fmt: skip
    return Seen(**fields | changes)


def level(*calls: Seen, **changes: Any) -> replay.Level:
    fields: dict[str, Any] = {
        "scale": 1.0, "seconds": 10.0, "cpu_ms": 2_000.0, "load_cpu_ms": 1_000.0, "peak_mib": 320.0,
        "engine_late_ms": [1.0], "recorded": len(calls), "dropped": 0,
    }  # fmt: skip
    return level_of("treering", 32, calls, **fields | changes)


def test_what_was_due_in_time_is_told_and_all_is_checked() -> None:
    told = level(seen(), seen(first_added_ms=7.0), seen(counted=False, whole=False, first_added_ms=900.0))
    assert (told.calls, told.made, told.altered) == (2, 3, 1)
    assert told.first_added_ms_p99 == 7.0
    # Of a gap what is beyond the engine's 20 ms; neither the role's nor the last three, which come at once.
    assert (told.gap_added_ms_p50, told.gap_added_ms_p99) == (4.0, 4.0)
    assert (told.cores, told.load_cores, told.cpu_ms_per_call) == (0.2, 0.1, 1000.0)
    assert not told.overloaded


@pytest.mark.parametrize("late", [{"engine_late_ms": [80.0]}, {}])
def test_lateness_of_the_machine_is_no_ones_fault_but_its_own(late: dict[str, Any]) -> None:
    told = level(seen(late_ms=1.0 if late else 80.0), **late)
    assert told.overloaded
    assert "(5.00)" in table_line(told)
    assert "the machine was overloaded with treering at 32" in verdict([told])
    assert rule_of([told]) == "the machine was overloaded at every level: no rule"


def test_the_rule_is_of_the_highest_level_that_went_well() -> None:
    said = rule_of([level(seen()), level(seen(late_ms=80.0), cpu_ms=9_000.0)])
    # 32 rollouts at a fifth of a core; seven tenths of a core are used.
    assert said.startswith("32 rollouts take 0.20 of a core, so one core, 70% of it used, has room for 112")
    small = rule_of([level(seen(), scale=10.0)])
    assert "of a 10th of the published lengths and pauses" in small


def test_without_a_call_there_is_nothing_to_tell() -> None:
    with pytest.raises(ValueError, match="no call was due"):
        level(seen(counted=False))


def test_the_docs_tell_of_the_run_that_lies_beside_them() -> None:
    told = json.loads(replay.DOCUMENT.read_text())
    assert replay.pages.between(replay.PAGE.read_text(), "replay") == replay.section(told)


async def test_a_short_one_runs_whole() -> None:
    told = await replay.measure([2], scale=400.0, seconds=1.0)
    assert [row["system"] for row in told["rows"]] == ["bare", "treering"]
    assert all(row["dropped"] == row["altered"] == 0 for row in told["rows"])
    assert told["rows"][1]["recorded"] == told["rows"][1]["made"] > 0
