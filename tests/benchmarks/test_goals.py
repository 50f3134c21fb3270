from typing import Any

import pytest

from benchmarks.goals import Goal, goals, section
from benchmarks.memory import AGAIN


def row(**changes: Any) -> dict[str, Any]:
    return {
        "system": "treering", "prompt_tokens": 16_000, "streamed": False, "connections": 8, "case": "growing",
        "rps": 1.0, "added_ms_p50": 1.0, "added_ms_p99": 1.0,
        "first_token_ms_p50": None, "first_token_added_ms_p50": None,
        "cpu_ms_per_call": 1.0, "peak_mib": 1.0, "ratio_to_bare": 0.9, "ratio_spread": 0.01, "noisy": False, "calls": 1,
        "cpu_ratio_to_bare": 0.85,
    } | changes  # fmt: skip


def judged(*rows: dict[str, Any]) -> list[Goal]:
    return [goal for goal in goals({"overhead": {"rows": list(rows)}}) if goal.verdict != "not measured"]


@pytest.mark.parametrize(
    ("changes", "wanted", "verdict"),
    [
        ({}, "≥ 0.8 of bare", "holds"),
        ({"ratio_to_bare": 0.79}, "≥ 0.8 of bare", "does not hold"),
        ({"ratio_to_bare": 0.79, "ratio_spread": 0.3}, "≥ 0.8 of bare", "too noisy"),
        ({"ratio_to_bare": 0.62, "ratio_spread": 0.3}, "≥ 0.8 of bare", "too noisy"),
        # However noisy, it is nowhere near.
        ({"ratio_to_bare": 0.61, "ratio_spread": 0.3}, "≥ 0.8 of bare", "does not hold"),
        ({"ratio_to_bare": 0.1, "ratio_spread": 0.9}, "≥ 0.8 of bare", "does not hold"),
        ({"ratio_to_bare": 1.2, "ratio_spread": 0.3}, "≥ 0.8 of bare", "holds"),
        ({"prompt_tokens": 100_000, "ratio_to_bare": 0.7}, "≥ 0.7 of bare", "holds"),
        ({"prompt_tokens": 100_000, "case": "unrelated", "ratio_to_bare": 0.4}, "≥ 0.4 of bare", "holds"),
        ({"prompt_tokens": 2_000, "case": "unrelated", "ratio_to_bare": 0.5}, "≥ 0.6 of bare", "does not hold"),
    ],
)
def test_a_ratio_is_judged_by_requests_unless_they_are_noise(changes: dict, wanted: str, verdict: str) -> None:
    (goal,) = judged(row(**changes))
    assert (goal.wanted, goal.verdict, goal.by_cpu) == (wanted, verdict, "0.85")


def test_a_busy_machine_says_nothing_of_requests() -> None:
    told = {"rows": [row()], "host": {"cores": 2}, "parts": {"engine": {"load": 2.9}}}
    assert [goal.verdict for goal in goals({"overhead": told}) if goal.measured] == ["holds"]
    told["parts"]["engine"]["load"] = 3.1
    assert [(goal.verdict, goal.by_cpu) for goal in goals({"overhead": told}) if goal.measured] == [
        ("too noisy", "0.85")
    ]
    # Nor does a single pair.
    (goal,) = judged(row(ratio_spread=None))
    assert goal.verdict == "too noisy"


def test_no_goal_is_set_for_the_rest() -> None:
    # A whole reply to a growing prompt of 2,000 tokens; a stream behind 100,000; nginx's replies in files.
    assert not judged(row(prompt_tokens=2_000), row(prompt_tokens=100_000, streamed=True), row(upstream="static"))


def test_peers_are_judged_by_their_own_pairs() -> None:
    made = judged(
        row(system="openenv", upstream="open", treering_ratio=12.0, treering_spread=0.1, treering_cpu_ratio=9.0),
        row(system="litellm", upstream="open", treering_ratio=49.0, treering_spread=0.1, treering_cpu_ratio=60.0),
    )
    assert [(goal.what, goal.measured, goal.by_cpu, goal.verdict) for goal in made] == [
        ("beside openenv", "12.0 x", "9.0 x", "holds"),
        ("beside litellm", "49.0 x", "60.0 x", "does not hold"),
    ]


def test_a_first_token_is_held_against_the_bare_one() -> None:
    stream = {"streamed": True, "ratio_to_bare": 0.8}
    made = judged(
        row(**stream, system="bare", first_token_ms_p50=2.0), row(**stream, first_token_ms_p50=2.9, connections=8)
    )
    assert [(goal.wanted, goal.measured, goal.verdict) for goal in made[1:]] == [("≤ 1 ms", "0.90 ms", "holds")]


def state(name: str, rss: float, goal: float | None) -> dict[str, Any]:
    return {"state": name, "rss_mib": rss, "goal_mib": goal}


def test_memory_and_calls() -> None:
    point = {"prompt_tokens": 16_000, "bare_cpu_ms": 1.0, "treering_ms_p50": 1.0, "bare_ms_p50": 1.0}
    points = [
        point | {"case": case, "call": call, "treering_cpu_ms": ms, "cpu_by_bare": by_bare, "by_tenth": ms / 2}
        for case, call, ms, by_bare in (
            ("unrelated", 1_000, 2.6, 2.0),
            ("one conversation", 10, 2.0, 2.0),
            ("one conversation", 1_000, 40.0, 2.2),
        )
    ]
    memory = [
        state("empty", 60, None),
        state("all in memory", 250, 300.0),
        state("idle", 160, 150.0),
        state("closed for a minute", 65, None),
    ]
    made = goals({"calls": {"rows": points}, "memory": {"rows": memory}})
    told = [(goal.case, goal.measured, goal.verdict) for goal in made if goal.verdict != "not measured"]
    assert told == [
        ("unrelated, 16,000 tokens each", "1.30 x", "does not hold"),
        # A prompt of half a million tokens costs everyone more.
        ("one conversation, to 16,000 tokens", "1.10 x, by bare's", "holds"),
        ("all in memory", "250 MiB", "holds"),
        ("900 of them idle for a minute", "160 MiB", "does not hold"),
        ("all closed for a minute, beyond a process that had none", "+5 MiB", "holds"),
    ]
    said = section(made)
    assert said.startswith("Of 9, 3 hold, 2 do not, 4 were not measured.")
    assert len({line.count("|") for line in said.splitlines() if line.startswith("|")}) == 1


def test_nothing_measured_is_said_to_be() -> None:
    made = goals({})
    assert {goal.verdict for goal in made} == {"not measured"}
    assert len(made) == 7


def test_what_the_least_recorder_misses_too_is_out_of_reach() -> None:
    own = row(ratio_to_bare=0.3)
    assert [goal.verdict for goal in judged(own, row(system="least", ratio_to_bare=0.79))] == ["out of reach"]
    assert [goal.verdict for goal in judged(own, row(system="least", ratio_to_bare=0.81))] == ["does not hold"]
    # Of the same case alone, and not where it is noise.
    assert [goal.verdict for goal in judged(own, row(system="least", ratio_to_bare=0.1, connections=1))] == [
        "does not hold"
    ]
    noise = row(system="least", ratio_to_bare=0.6, ratio_spread=0.5)
    assert [goal.verdict for goal in judged(own, noise)] == ["does not hold"]
    # Where Treering is the better one there is something to be found yet.
    assert [goal.verdict for goal in judged(own, row(system="least", ratio_to_bare=0.29))] == ["does not hold"]
    # One that holds is never called that.
    (goal,) = judged(row(ratio_to_bare=0.9), row(system="least", ratio_to_bare=0.5))
    assert (goal.verdict, goal.least, goal.least_by_cpu) == ("holds", "0.50", "0.85")


def test_the_least_recorder_beside_a_peer() -> None:
    peer = row(
        system="openenv", upstream="open", rps=10.0, cpu_ms_per_call=4.0, treering_ratio=3.0, treering_spread=0.1
    )
    least = row(system="least", upstream="open", rps=80.0, cpu_ms_per_call=0.5)
    (goal,) = judged(peer, least)
    assert (goal.verdict, goal.least, goal.least_by_cpu) == ("out of reach", "8.0 x", "8.0 x")


def test_what_the_bare_pass_through_misses_beside_a_peer_is_out_of_reach() -> None:
    peer = row(
        system="openenv", upstream="open", treering_ratio=1.1, treering_spread=0.1, ratio_to_bare=0.8, ratio_spread=0.1
    )
    (goal,) = judged(peer)
    assert (goal.verdict, goal.shown_by) == ("out of reach", "bare does 1.2 x")
    assert "out of reach: bare does 1.2 x" in section([goal])
    assert "0 the least recorder misses too, 1 the bare pass-through itself" in section([goal])
    # It is no bound where it is the slower one, where it reaches the goal, or where its pairs say nothing of that.
    (goal,) = judged(peer | {"ratio_to_bare": 0.12, "ratio_spread": 0.3})
    assert goal.verdict == "does not hold"
    for changes in ({"treering_ratio": 1.3}, {"ratio_to_bare": 0.09}, {"ratio_to_bare": None}):
        (goal,) = judged(peer | changes)
        assert (goal.verdict, goal.shown_by) == ("does not hold", "")


@pytest.mark.parametrize(("again", "verdict"), [(115.0, "holds"), (150.0, "does not hold")])
def test_closed_rollouts_hold_what_more_of_them_add(again: float, verdict: str) -> None:
    states = [state("empty", 60, None), state("idle", 100, 150.0), state("closed for a minute", 110, None)]
    made = goals({"memory": {"rows": [*states, state(AGAIN, again, None)]}})
    (goal,) = [goal for goal in made if goal.case.startswith("all closed")]
    assert (goal.verdict, goal.measured) == (verdict, f"+50 MiB; after another thousand {again - 110:+.0f} more")
