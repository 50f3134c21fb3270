from typing import Any

import msgspec
import pytest

from benchmarks import sizing
from benchmarks.sizing import MIB, Costs, Load, call_ms, costs_of, plan

COSTS = Costs(
    call_ms={2_000: 2.0, 16_000: 3.0, 100_000: 9.0}, event_ms=0.01, base_mib=64.0, bytes_per_token=8.0,
    bytes_at_rest=4_096.0, bytes_per_call=4_096.0, new_tokens=800, postgres_ms=0.7,
)  # fmt: skip
LOAD = Load(
    rollouts=100, prompt_tokens=58_000, reply_tokens=500, new_tokens=1_600, gap_s=4.0, first_token_s=1.0, token_s=0.01
)


@pytest.mark.parametrize(
    ("tokens", "ms"),
    [(2_000, 2.0), (9_000, 2.5), (16_000, 3.0), (58_000, 6.0), (100_000, 9.0), (184_000, 15.0), (10, 2.0)],
)
def test_a_call_costs_what_lies_between_the_measured_ones(tokens: int, ms: float) -> None:
    assert call_ms(COSTS, tokens) == pytest.approx(ms)


def test_the_formulas() -> None:
    need = plan(LOAD, COSTS)
    # A call every 4 + 1 + 500 x 0.01 seconds.
    assert need.calls_per_s == pytest.approx(10.0)
    assert need.events_per_s == pytest.approx(5_000.0)
    assert need.cpu_ms_per_call == pytest.approx(6.0 + 5.0)
    assert need.cores == pytest.approx(10.0 * 0.011 / 0.7)
    assert need.memory_gib == pytest.approx((64 * MIB + 100 * 8 * 58_500) / 2**30)
    assert need.disk_gib_per_day == pytest.approx(10 * 86_400 * 2 * 4_096 / 2**30)
    assert need.postgres_cores == pytest.approx(10 * 0.0007 / 0.7)


def test_those_at_rest_cost_memory_alone() -> None:
    need, more = plan(LOAD, COSTS), plan(LOAD, COSTS, at_rest=1_000)
    assert more.memory_gib - need.memory_gib == pytest.approx(1_000 * 4_096 / 2**30)
    assert msgspec.structs.replace(more, memory_gib=need.memory_gib) == need


def test_twice_the_rollouts_need_twice_as_much() -> None:
    one, two = (plan(msgspec.structs.replace(LOAD, rollouts=n), COSTS) for n in (100, 200))
    assert (two.cores, two.disk_gib_per_day) == (pytest.approx(2 * one.cores), pytest.approx(2 * one.disk_gib_per_day))


def documents() -> dict[str, dict[str, Any]]:
    def row(tokens: int, *, streamed: bool, ms: float, **changes: Any) -> dict[str, Any]:
        return {
            "system": "treering", "prompt_tokens": tokens, "streamed": streamed, "connections": 8, "case": "growing",
            "rps": 1.0, "added_ms_p50": 1.0, "added_ms_p99": 1.0, "first_token_ms_p50": None,
            "first_token_added_ms_p50": None, "cpu_ms_per_call": ms, "peak_mib": 1.0, "ratio_to_bare": 1.0,
            "ratio_spread": None, "noisy": False, "calls": 1,
        } | changes  # fmt: skip

    def state(name: str, rss: float, in_use: int) -> dict[str, Any]:
        return {"state": name, "rss_mib": rss, "open_rollouts": 10, "in_use": in_use, "store_mib": 2.0, "calls": 512}

    return {
        "overhead": {
            "rows": [
                row(2_000, streamed=False, ms=2.0),
                row(2_000, streamed=True, ms=2.0 + 0.01 * 203),
                row(2_000, streamed=False, ms=99.0, system="bare"),
                row(2_000, streamed=False, ms=99.0, case="unrelated"),
                row(2_000, streamed=False, ms=99.0, upstream="static"),
            ]
        },
        "memory": {
            "tokens": 1_800, "calls": 2,
            "rows": [state("empty", 60.0, 0), state("all in memory", 70.0, 10), state("idle", 65.5, 1)],
        },
        "workers": {"rows": [{"store": "postgresql", "postgres_cpu_ms_per_call": 0.5}]},
    }  # fmt: skip


def test_costs_are_read_off_the_runs() -> None:
    costs = costs_of(documents())
    assert costs.call_ms == {2_000: 2.0}
    assert costs.event_ms == pytest.approx(0.01)
    # Ten rollouts of 1,800 tokens and a reply of 200 held 10 MiB.
    assert costs.bytes_per_token == pytest.approx(MIB / 2_000)
    # One in use holds 1 MiB of the 5.5; nine at rest, the other 4.5.
    assert costs.bytes_at_rest == pytest.approx(MIB / 2)
    assert (costs.bytes_per_call, costs.new_tokens, costs.postgres_ms) == (4_096.0, 900, 0.5)
    without = documents() | {"workers": {"rows": []}}
    assert costs_of(without).postgres_ms is None
    with pytest.raises(ValueError, match="do not say what a call costs"):
        costs_of(without | {"overhead": {"rows": []}})


def test_the_section_has_a_line_for_each_size() -> None:
    lines = [line for line in sizing.section(documents()).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(sizing.SIZES)
    assert len({line.count("|") for line in lines}) == 1
