"""The measurement of graphs: rows, ratios, goals, and the docs' section. OpenEnv is not asked for here."""

import json

import pytest

from benchmarks import graph
from benchmarks.graph import LOGPROBS, PLAIN, TREERING
from benchmarks.workloads import BESIDE, SHAPES, SIZES, Workload, chain

SMALL = Workload("small", lambda: chain(8), 4.5)


def row(implementation, workload, *, weight=4.0, us=20.0, calls=200):
    return {
        "implementation": implementation, "workload": workload, "calls": calls, "distinct_tokens": 100_000,
        "bytes_per_distinct_token": weight, "append_us_p50": us, "append_us_last": us,
    }  # fmt: skip


@pytest.mark.parametrize("name", [TREERING, LOGPROBS, PLAIN])
def test_every_store_is_weighed_and_timed(name):
    measured = graph.measure(SMALL, graph.STORES[name])
    assert (measured["calls"], measured["distinct_tokens"]) == (8, 4_000)
    assert measured["bytes_per_distinct_token"] >= 4
    assert measured["append_us_p50"] > 0


def test_a_prompt_a_call_takes_more_than_each_token_once():
    own, plain = (graph.measure(SMALL, graph.STORES[name]) for name in (TREERING, PLAIN))
    assert plain["bytes_per_distinct_token"] > 2 * own["bytes_per_distinct_token"]


def test_goals_of_memory_fail_a_run_and_those_of_time_are_named():
    chained = SHAPES[0].name
    assert graph.shortfalls([row(TREERING, chained, weight=4.5), row(PLAIN, chained, weight=400.0)]) == []
    (told,) = graph.shortfalls([row(TREERING, chained, weight=4.6)])
    assert "4.6 bytes a token, over 4.5" in told
    assert graph.slow([row(TREERING, chained, us=50.0), row(PLAIN, chained, us=5000.0)]) == []
    (told,) = graph.slow([row(TREERING, chained, us=50.1)])
    assert "50.1 us an append, over 50" in told


@pytest.mark.parametrize(
    ("weight", "us", "calls", "missed"),
    [(4000.0, 2000.0, 400, 0), (3900.0, 2000.0, 400, 1), (4000.0, 190.0, 400, 1), (3900.0, 190.0, 200, 0)],
)
def test_goals_beside_another_implementation(weight, us, calls, missed):
    name = BESIDE[1].name
    rows = [
        row(LOGPROBS, name, weight=10.0, us=10.0, calls=calls),
        row("openenv 1", name, weight=weight, us=us, calls=calls),
    ]
    assert len(graph.shortfalls(rows)) == missed


def test_the_docs_section_is_replaced_and_the_rest_stays():
    rows = [row(TREERING, SHAPES[0].name), row(TREERING, SIZES[0].name)]
    rows += [row(LOGPROBS, BESIDE[0].name), row("openenv 1", BESIDE[0].name, weight=4_000.0, us=2_000.0)]
    told = {"at": "2026-01-01T00:00:00.000Z", "host": {"cores": 2, "load": 0.5}, "rows": rows}
    page = "# Performance\n\nWords.\n\n## The last run\n\nrest\n"
    once = graph.with_section(page, told)
    assert once.index(graph.BEGIN) < once.index("## The last run")
    assert graph.with_section(once, told) == once
    assert once.replace(graph.section(told) + "\n", "") == page
    assert "1,000 times less memory; an append, 100 times less time" in once


def test_what_drawn_rollouts_were_taken_for_stands_in_the_section():
    roles = [{"true": "main", "said": "main", "n": 1200}, {"true": "auxiliary title", "said": "main", "n": 3}]
    told = {"at": "2026-01-01T00:00:00.000Z", "host": {"cores": 2, "load": 0.5}, "rows": []}
    judged = {"stories": 1200, "right": 1197, "calls": 9000, "roles": roles}
    shown = graph.section({**told, "stories": judged})
    assert "of 1,200 drawn rollouts with 9,000 calls, 1,197 are right" in shown
    assert "(99.75%)" in shown
    assert "| true | main |\n|---|---:|\n| auxiliary title | 3 |\n| main | 1,200 |\n" in shown


def test_a_part_is_published_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(graph, "PUBLISHED", tmp_path / "graph.json")
    graph.PAGE.write_text("# Performance\n\n## The last run\n")
    graph.publish({"at": "2026-01-01T00:00:00.000Z", "host": {"cores": 2, "load": 0.5}, "rows": []})
    graph.publish({"stories": {"stories": 1, "right": 1, "calls": 2, "roles": []}})
    assert json.loads(graph.PUBLISHED.read_text()).keys() == {"at", "host", "rows", "stories"}
    assert "of 1 drawn rollouts" in graph.PAGE.read_text()


def test_the_published_run_has_every_row():
    told = json.loads((graph.ROOT / "docs" / "graph.json").read_text())
    assert (told["benchmark"], told["version"]) == ("graph", 1)
    names = {each.name for each in (*SHAPES, *SIZES)}
    assert names <= {each["workload"] for each in told["rows"] if each["implementation"] == TREERING}
    assert {each.name for each in BESIDE} <= {
        each["workload"] for each in told["rows"] if each["implementation"] == f"openenv {graph.OPENENV}"
    }
    assert graph.shortfalls(told["rows"]) == []
    assert graph.section(told) in graph.PAGE.read_text()
    if "stories" in told:
        assert told["stories"]["right"] >= 0.99 * told["stories"]["stories"] >= 9_900
