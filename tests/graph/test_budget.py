"""What is left of a rollout's limits."""

import numpy as np
import pytest

from graph.budget import budget_left, new_tokens
from graph.records import Call, Rollout

SINCE = "2026-01-01T00:00:00.000Z"


def call(n: int, prompt: list[int] | None = None, sampled: list[int] | None = None, **more) -> Call:
    ids = {
        name: None if given is None else np.array(given, np.int32)
        for name, given in (("prompt_ids", prompt), ("sampled_ids", sampled))
    }
    told = {"status": "complete", "arrived": 2 * n, "ended": 2 * n + 1, **ids, **more}
    return Call(n=n, **told)


def left(limits: dict, *calls: Call, now: str | None = None, **more) -> dict:
    return budget_left(Rollout(id="r", limits=limits, **more), calls, now=now)


def test_without_a_limit_there_is_no_budget():
    assert left({}, call(0)) == {}
    assert left({"max_output_tokens": 5}, call(0)) == {}


@pytest.mark.parametrize(
    ("status", "used"), [("complete", 1), ("aborted", 1), ("running", 1), ("error", 0), ("stopped", 0)]
)
def test_calls_that_sampled_are_counted(status, used):
    assert left({"max_calls": 3}, call(0, status=status)) == {"max_calls": 3 - used}
    assert left({"max_calls": 1}, call(0), call(1)) == {"max_calls": 0}
    assert left({"max_calls": 2}, call(0), call(1, choice=1)) == {"max_calls": 1}


@pytest.mark.parametrize(
    ("calls", "tokens"),
    [
        ([], 0),
        ([call(0, [1, 2], [3])], 3),
        ([call(0, [1, 2], [3]), call(1, [1, 2, 3, 4], [5])], 3 + 2),
        # A sample of the same prompt brings its own tokens alone, even equal ones.
        ([call(0, [1, 2], [3]), call(1, [1, 2], [3])], 3 + 1),
        # In order of their ends, whatever order they are handed over in.
        ([call(1, [1, 2, 3, 4], [5]), call(0, [1, 2], [3])], 3 + 2),
        ([call(0, [1, 2], [3], ended=None, status="running")], 0),
        ([call(0, usage_sampled=4, usage_prompt=100)], 4),
        ([call(0, [1], None, usage_sampled=4)], 4),
        ([call(0, None, [1, 2])], 2),
    ],
)
def test_tokens_that_calls_share_count_once(calls, tokens):
    assert new_tokens(calls) == tokens
    assert left({"max_total_tokens": 10}, *calls) == {"max_total_tokens": 10 - tokens}


def test_a_prompts_budget_is_what_mains_last_one_leaves():
    rollout = Rollout(id="r", limits={"max_prompt_tokens": 10})
    calls = [call(0, [1] * 3, [2]), call(1, [1] * 9, [2]), call(2, status="error")]
    assert budget_left(rollout, calls) == {"max_prompt_tokens": 1}
    assert budget_left(rollout, calls, main=[0]) == {"max_prompt_tokens": 7}
    assert budget_left(rollout, []) == {"max_prompt_tokens": 10}
    assert budget_left(rollout, [call(0, usage_prompt=4)]) == {"max_prompt_tokens": 6}


def test_a_deadline_counts_from_the_first_call_to_the_close():
    limits = {"deadline_s": 60}
    assert left(limits) == {"deadline_s": 60}
    assert left(limits, first_call_at=SINCE, now="2026-01-01T00:00:20.500Z") == {"deadline_s": 39.5}
    assert left(limits, first_call_at=SINCE, now="2026-01-01T00:09:00.000Z") == {"deadline_s": 0}
    closed = {"first_call_at": SINCE, "closed_at": "2026-01-01T00:00:50.000Z"}
    assert left(limits, **closed, now="2026-02-01T00:00:00.000Z") == {"deadline_s": 10}
    # Without the time of day, the record alone.
    assert left(limits, first_call_at=SINCE, last_call_at="2026-01-01T00:00:05.000Z") == {"deadline_s": 55}
    # A clock that was set back.
    assert left(limits, first_call_at=SINCE, now="2025-01-01T00:00:00.000Z") == {"deadline_s": 60}
