import json

import pytest

from benchmarks import report
from benchmarks.load import Round, Sample
from benchmarks.plan import Shape
from benchmarks.report import Turn

SHAPE = Shape(prompt_tokens=2_000, streamed=True, case="growing", connections=1, calls=2)


def turn(
    seconds: float, *totals: float, cpu_ms: float = 0.0, peak_mib: float = 1.0, first: float | None = None
) -> Turn:
    samples = [Sample(total, first, 0) for total in totals]
    return Turn(round=Round(seconds=seconds, samples=samples), cpu_ms=cpu_ms, peak_mib=peak_mib)


def made(**turns: list[Turn]) -> dict[str, report.Row]:
    return {row.system: row for row in report.rows(SHAPE, turns)}


def test_a_ratio_is_the_median_of_those_of_the_pairs() -> None:
    # The machine was ten times slower in the second pair, for both.
    rows = made(
        direct=[turn(1, 1, 1)] * 3,
        bare=[turn(1, 2, 2), turn(10, 20, 20), turn(1, 2, 2)],
        treering=[turn(2, 4, 4), turn(20, 40, 40), turn(2, 4, 4)],
    )
    assert rows["treering"].ratio_to_bare == 0.5
    assert rows["treering"].ratio_spread == 0.0
    assert not rows["treering"].noisy
    assert rows["bare"].ratio_to_bare is None
    assert rows["treering"].rps == 1.0


def test_what_is_added_is_beyond_no_proxy() -> None:
    rows = made(
        direct=[turn(1, 1, 1, first=0.5)] * 2,
        bare=[turn(1, 2, 3, first=1.0, cpu_ms=4)] * 2,
        treering=[turn(1, 5, 9, first=2.0, cpu_ms=3, peak_mib=5), turn(1, 5, 9, first=2.0, cpu_ms=5, peak_mib=7)],
    )
    row = rows["treering"]
    assert (row.added_ms_p50, row.added_ms_p99) == (8.0, 8.0)
    assert (row.first_token_ms_p50, row.first_token_added_ms_p50) == (2.0, 1.5)
    assert (row.cpu_ms_per_call, row.peak_mib, row.calls) == (2.0, 7, 4)
    assert rows["direct"].added_ms_p50 is None


def test_ratios_that_differ_too_much_are_noise() -> None:
    rows = made(
        direct=[turn(1, 1)] * 4,
        bare=[turn(1, 1)] * 4,
        treering=[turn(1, 1), turn(2, 1), turn(3, 1), turn(4, 1)],
    )
    assert rows["treering"].noisy
    assert report.verdict(list(rows.values())).startswith("too noisy: in 1 of 1")
    assert "(0.42)" in report.table_line(rows["treering"])


def test_a_verdict_names_the_least_and_the_most() -> None:
    rows = made(direct=[turn(1, 1)] * 2, bare=[turn(1, 1)] * 2, treering=[turn(4, 1)] * 2)
    said = report.verdict(list(rows.values()))
    where = "(2,000 tokens, streamed, growing, 1 at a time)"
    assert said == (
        f"of the bare pass-through's requests per second treering does 0.25 at the least {where}"
        f" and 0.25 at the most {where} of 1 cases"
    )
    assert report.verdict([]).startswith("too noisy: in 0 of 0")


def test_cpu_time_is_told_by_the_same_pairs() -> None:
    rows = made(
        direct=[turn(1, 1)] * 3,
        bare=[turn(1, 1, cpu_ms=2)] * 3,
        treering=[turn(1, 1, cpu_ms=4), turn(9, 1, cpu_ms=5), turn(1, 1, cpu_ms=8)],
    )
    assert (rows["treering"].cpu_ratio_to_bare, rows["treering"].cpu_ratio_spread) == (0.4, 0.312)
    assert rows["bare"].cpu_ratio_to_bare is rows["direct"].cpu_ratio_to_bare is None


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_percentiles_are_values_that_were_seen(share: float, value: float) -> None:
    assert report.percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_a_single_pair_has_no_spread() -> None:
    assert report.spread_of([0.5]) is None
    assert report.spread_of([0.4, 0.5, 0.6]) == pytest.approx(0.2)


def test_the_document_has_the_keys_that_others_read() -> None:
    rows = list(made(direct=[turn(1, 1)] * 2, bare=[turn(1, 1)] * 2, treering=[turn(2, 1)] * 2).values())
    told = json.loads(json.dumps(report.document(rows, at="2026-01-01T00:00:00.000Z", cores=2, load=0.5)))
    assert (told["benchmark"], told["version"], told["host"]) == ("overhead", 1, {"cores": 2, "load": 0.5})
    assert {
        "system", "prompt_tokens", "streamed", "connections", "case", "rps", "added_ms_p50", "added_ms_p99",
        "first_token_ms_p50", "cpu_ms_per_call", "peak_mib", "ratio_to_bare",
    } <= told["rows"][0].keys()  # fmt: skip


def test_a_line_has_a_cell_for_each_column() -> None:
    (row, *_) = made(direct=[turn(1, 1)] * 2, bare=[turn(1, 1)] * 2).values()
    head, rule = report.heading().splitlines()
    assert head.count("|") == rule.count("|") == report.table_line(row).count("|")
