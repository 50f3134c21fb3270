"""What is made of measured rounds through a tunnel: rows, a table, a section of the docs."""

import msgspec
import pytest

from benchmarks import tunnel
from benchmarks.load import Round, Sample
from benchmarks.report import Turn
from benchmarks.tunnel import Row, replaced, rows, shapes, with_section

NAMES = ("treering", "treering, ssh")


def turn(seconds: float, *, first: float | None = 2.0) -> Turn:
    samples = [Sample(10.0 * seconds, first, 100) for _ in range(4)]
    return Turn(round=Round(seconds=seconds, samples=samples), cpu_ms=1.0, peak_mib=1.0)


def test_a_ratio_is_taken_within_a_pair_and_its_median_told():
    shape = shapes(quick=True)[0]
    near, far = rows(shape, [turn(1.0), turn(2.0), turn(1.0)], [turn(2.0), turn(4.0), turn(2.0)], NAMES)
    assert (near.system, near.ratio_to_direct, near.rps) == ("treering", None, 4.0)
    assert (far.system, far.ratio_to_direct, far.ratio_spread, far.noisy) == ("treering, ssh", 0.5, 0.0, False)
    assert (far.tokens_per_s, far.first_token_ms_p50, far.calls) == (400.0, 2.0, 12)


def test_ratios_that_differ_too_much_say_nothing():
    shape = shapes(quick=True)[0]
    _, far = rows(shape, [turn(1.0)] * 3, [turn(1.0), turn(2.0), turn(9.0)], NAMES)
    assert far.noisy
    assert "| (0.50) |" in tunnel.line(far)


def test_a_whole_reply_has_no_first_token():
    shape = shapes(quick=True)[-1]
    near, _ = rows(shape, [turn(1.0, first=None)], [turn(1.0, first=None)], NAMES)
    assert (near.streamed, near.first_token_ms_p50) == (False, None)


def test_64_streams_go_through_one_tunnel():
    assert 64 in [shape.connections for shape in shapes(quick=False) if shape.streamed]


def test_the_docs_have_the_last_run_and_what_ran_it():
    shape = shapes(quick=True)[0]
    made = rows(shape, [turn(1.0)] * 3, [turn(2.0)] * 3, NAMES)
    told = {
        "command": "bin/bench overhead --tunnel ssh", "at": "2026-01-02T03:04:05.000Z",
        "host": {"cores": 2, "load": 0.5}, "replaced_s": {"p50": 1.2, "most": 2.0, "losses": 3},
        "rows": [msgspec.to_builtins(row) for row in made],
    }  # fmt: skip
    page = with_section("# T\n\n## Measured\n\nold\n", told)
    assert "old" not in page
    assert "`bin/bench overhead --tunnel ssh`, 2026-01-02, 2 cores, load 0.5" in page
    assert page.count("\n| 2,000 | streamed |") == 2
    assert msgspec.convert(told["rows"][0], Row) == made[0]
    with pytest.raises(ValueError, match="substring"):
        with_section("# T\n", told)


def test_the_time_to_replace_one_ends_when_another_was_proved():
    states = iter([
        {"healthy": True, "opened": 1}, {"healthy": True, "opened": 1}, {"healthy": False, "opened": 1},
        {"healthy": True, "opened": 2},
    ])  # fmt: skip

    class Treering:
        def ask(self, method, path):
            return {"tunnels": [next(states)]}

    killed = []
    assert replaced(Treering(), lambda: killed.append(1)) < 5
    assert killed == [1]
    assert next(states, None) is None
