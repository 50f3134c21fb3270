"""What a measured page is said to be: a table, a verdict, a place in the docs; and the store it is measured on."""

import json

import pytest

from benchmarks import page
from benchmarks.page_store import LONG, LONG_CALLS, LONG_TOKENS, fill
from tests.house import house


def row(view, useful):
    return {
        "view": view, "rollouts": 10_001, "calls": None, "tokens": None, "loads": 9, "useful_ms_p50": useful,
        "useful_ms_min": useful - 10, "useful_ms_max": useful + 10, "first_useful_ms": useful * 2,
        "browser_cpu_ms_p50": 300.0, "appliance_cpu_ms_p50": 40.0, "requests_p50": 12, "kib_p50": 80.4,
        "elements_p50": 900, "load": 2.0,
    }  # fmt: skip


def test_a_row_is_a_line():
    head, rule, line = page.table([row("list", 412.4)]).splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line.startswith("| list | 10,001 |  | 412 | 402 | 422 | 825 | 300 | 40 |")


def test_the_verdict_names_what_is_late():
    assert page.verdict([row("list", 412.0), row("rollout", 700.0)]) == (
        "Every view is useful in under 1,000 ms; the slowest, rollout, in 700 ms."
    )
    assert page.verdict([row("list", 1_000.0), row("rollout", 700.0)]) == (
        "Not useful in under 1,000 ms: list (1,000 ms)."
    )


def test_the_docs_get_the_last_run_in_place_of_the_one_before():
    told = {"at": "2026-11-30T08:00:00Z", "host": {"cores": 2, "load": 1.5}, "rows": [row("list", 412.0)]}
    told["verdict"] = page.verdict(told["rows"])
    docs = "# The page\n\n<!-- bin/bench page -->\n\nold\n\n<!-- end -->\n\nmore\n"
    made = page.with_section(docs, told)
    assert "old" not in made
    assert made.endswith("<!-- end -->\n\nmore\n")
    assert "2026-11-30, 2 cores, load 1.5, 9 loads. Every view" in made
    assert page.with_section(made, told) == made
    with pytest.raises(ValueError, match="substring not found"):
        page.with_section("# The page\n", told)


def test_the_docs_show_the_run_that_was_published():
    told = json.loads(page.PUBLISHED.read_text())
    text = page.PAGE.read_text()
    assert page.with_section(text, told) == text
    assert [each["view"] for each in told["rows"]] == list(page.VIEWS)
    assert told["verdict"] == page.verdict(told["rows"])


async def test_the_store_is_as_it_says(tmp_path):
    await fill(f"sqlite:///{tmp_path}/treering.db", crowd=40, long=True)
    async with house("scripted", tmp_path) as home:
        graph = await home.control("GET", f"/rollouts/{LONG}/graph")
        forks = sum(len(fork["children"]) - 1 for fork in graph["forks"])
        assert len(graph["calls"]) == LONG_CALLS + forks
        assert forks >= 2
        assert graph["rollout"]["n_distinct_tokens"] >= LONG_TOKENS
        assert graph["drift"]["transitions"] > graph["drift"]["exact"] > 0
        assert [each["role"] for each in graph["conversations"]] == ["main", "subagent", "subagent"]
        codes = set()
        for number in range(40):
            told = await home.control("GET", f"/rollouts/run-{number:05}/findings")
            codes.update(each["code"] for each in told["findings"])
        assert {"no_calls", "drift", "limit_stop", "aborted_calls"} <= codes
