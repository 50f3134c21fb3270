import json

import pytest

from benchmarks import dialects
from benchmarks.load import Round, Sample
from benchmarks.plan import Shape
from benchmarks.report import Turn

SHAPE = Shape(prompt_tokens=2_000, streamed=True, case="growing", connections=1, calls=2)


def turn(seconds: float, *, first: float | None = 1.0, cpu_ms: float = 1.0) -> Turn:
    samples = [Sample(seconds * 1000, first, 0)]
    return Turn(round=Round(seconds=seconds, samples=samples), cpu_ms=cpu_ms, peak_mib=1.0)


def made(**turns: list[Turn]) -> dict[str, dialects.DialectRow]:
    named = {name if name == "direct" else f"treering/{name}": own for name, own in turns.items()}
    return {row.system.removeprefix("treering/"): row for row in dialects.rows(SHAPE, named)}


def test_a_cost_is_the_median_of_those_of_the_pairs() -> None:
    # The machine was ten times slower in the second pair, for all.
    rows = made(
        direct=[turn(1)] * 3,
        chat=[turn(1, first=2.0, cpu_ms=4), turn(10, first=20.0, cpu_ms=5), turn(1, first=2.0, cpu_ms=4)],
        messages=[turn(1.2, first=3.0, cpu_ms=5), turn(12, first=30.0, cpu_ms=6), turn(1.2, first=3.0, cpu_ms=5)],
    )
    assert list(rows) == ["chat", "messages"]
    row = rows["messages"]
    assert (row.cost, row.cost_spread, row.first_token_cost, row.cpu_cost) == (1.2, 0.0, 1.5, 1.25)
    assert not row.noisy
    assert (row.ratio_to_bare, rows["chat"].cost, rows["chat"].first_token_cost) == (None, None, None)


def test_costs_that_differ_too_much_are_noise() -> None:
    rows = made(
        direct=[turn(1)] * 4,
        chat=[turn(1)] * 4,
        gemini=[turn(1), turn(2), turn(3), turn(4)],
    )
    assert rows["gemini"].noisy
    assert "(2.50)" in dialects.table_line(rows["gemini"])
    # The first token's ratios are steady, and say something.
    assert dialects.verdict(list(rows.values())).startswith(
        "gemini: never over 1.5 x chat, most 1.00 x, the first token"
    )


def test_a_verdict_names_the_most() -> None:
    rows = made(direct=[turn(1)] * 2, chat=[turn(1)] * 2, responses=[turn(2)] * 2)
    assert dialects.verdict(list(rows.values())) == (
        "responses: in 1 of 3 figures over 1.5 x chat, most 2.00 x, a call"
        " (2,000 tokens, streamed, growing, 1 at a time)"
    )


def test_a_pair_is_the_sum_of_its_slices() -> None:
    first, second = dialects.paired([turn(1), turn(2), turn(3), turn(4)], 2)
    assert (first.round.seconds, second.round.seconds, first.cpu_ms) == (3, 7, 2.0)
    assert (first.round.rps, len(second.round.samples)) == (2 / 3, 2)


def test_what_is_measured() -> None:
    shapes = dialects.shapes()
    assert {(shape.prompt_tokens, shape.streamed) for shape in shapes} == {
        (size, streamed) for size in (2_000, 16_000) for streamed in (False, True)
    }


def test_the_document_has_the_keys_that_others_read() -> None:
    rows = list(made(direct=[turn(1)] * 2, chat=[turn(1)] * 2, messages=[turn(2)] * 2).values())
    told = json.loads(
        json.dumps(dialects.document(rows, at="2026-01-01T00:00:00.000Z", cores=2, load=0.5, command="c"))
    )
    assert (told["benchmark"], told["version"], told["host"]) == ("overhead", 1, {"cores": 2, "load": 0.5})
    assert {
        "system", "prompt_tokens", "streamed", "connections", "case", "rps", "added_ms_p50", "added_ms_p99",
        "first_token_ms_p50", "cpu_ms_per_call", "peak_mib", "ratio_to_bare",
    } <= told["rows"][0].keys()  # fmt: skip
    assert dialects.section(told).count("\n- ") == 1
    page = f"before\n{dialects.BEGIN}old{dialects.END}after\n"
    shown = dialects.with_section(page, told)
    assert shown.startswith("before\n")
    assert shown.endswith("after\n")
    assert "old" not in shown
    assert dialects.with_section(shown, told) == shown
    with pytest.raises(ValueError, match="substring"):
        dialects.with_section("no such section", told)


def test_a_line_has_a_cell_for_each_column() -> None:
    (row, *_) = made(direct=[turn(1)] * 2, chat=[turn(1)] * 2).values()
    head, rule = dialects.heading().splitlines()
    assert head.count("|") == rule.count("|") == dialects.table_line(row).count("|")


def test_the_docs_tell_of_the_run_that_lies_beside_them() -> None:
    told = json.loads(dialects.DOCUMENT.read_text())
    page = dialects.PAGE.read_text()
    assert dialects.with_section(page, told) == page
    assert len(told["rows"]) == len(dialects.shapes()) * 5
