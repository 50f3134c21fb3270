"""One open rollout in memory: numbers, counters, limits, and what it leans on."""

import numpy as np
import pytest

from capture.live import Live
from capture.store.base import Entry, Registration
from graph.records import Call, Rollout, Stop


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def entry(**rollout) -> Entry:
    return Entry(
        rollout=Rollout(id="r", **rollout),
        registration=Registration(allow=("priority",), strict_model=True),
        secret=b"s",
        tools_secret=b"t",
    )


def call(n: int, status: str = "complete", **more) -> Call:
    given = {
        "n": n,
        "status": status,
        "arrived": 2 * n,
        "ended": 2 * n + 1,
        "started_at": f"2026-01-01T00:00:0{n}.000Z",
    }
    return Call(**{**given, **more})


async def test_numbers_and_ticks_go_on_where_the_stored_calls_end() -> None:
    live = Live(entry(), [call(0), call(1, ended=9)])
    assert [live.tick(), live.tick()] == [10, 11]
    assert [live.arrive(1), live.arrive(3), live.arrive(1)] == [2, 3, 6]
    assert live.last_call_at == "2026-01-01T00:00:01.000Z"


async def test_a_request_for_no_choice_still_takes_a_number() -> None:
    live = Live(entry(), [])
    assert [live.arrive(0), live.arrive(1)] == [0, 1]


async def test_places_are_reserved_used_and_given_back() -> None:
    live = Live(entry(limits={"max_calls": 2}), [])
    assert [live.reserve(), live.reserve(), live.reserve()] == [None, None, "max_calls"]
    live.settle(sampled=False)
    assert live.reserve() is None
    live.settle(sampled=True)
    live.settle(sampled=True)
    assert live.reserve() == "max_calls"


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        ([call(0), call(1, "aborted")], 1),
        ([call(0, "error"), call(1, "stopped")], 3),
        ([call(0), call(1, choice=1), call(2, choice=2)], 2),
    ],
)
async def test_only_sampled_requests_count_after_a_restart(stored: list[Call], left: int) -> None:
    live = Live(entry(limits={"max_calls": 3}), stored)
    assert [live.reserve() for _ in range(left + 1)] == [None] * left + ["max_calls"]


async def test_without_a_limit_there_is_always_a_place() -> None:
    live = Live(entry(), [])
    assert not any(live.reserve() for _ in range(1000))


async def test_a_prompt_leans_on_a_committed_call_alone() -> None:
    live = Live(entry(), [])
    assert live.delta(ids(1, 2, 3)) is None
    live.keep(0, ids(1, 2), ids(3))
    delta = live.delta(ids(1, 2, 3, 4))
    assert delta is not None
    assert (delta.holder, delta.shared) == (0, 3)
    assert live.delta(ids(9)) is None
    assert live.delta(None) is None


async def test_half_a_bundle_is_no_support() -> None:
    live = Live(entry(), [])
    live.keep(0, ids(1, 2), None)
    live.keep(1, None, ids(1, 2))
    assert live.delta(ids(1, 2)) is None


async def test_stored_calls_support_the_next() -> None:
    live = Live(entry(), [call(0, prompt_ids=ids(1, 2), sampled_ids=ids(3))])
    delta = live.delta(ids(1, 2, 3, 4))
    assert delta is not None
    assert (delta.holder, delta.shared) == (0, 3)


async def test_what_runs_is_known_and_a_change_wakes_who_waits() -> None:
    live = Live(entry(), [])
    changed = live.changed
    live.begin(0, lambda: None)
    assert changed.is_set()
    assert list(live.running) == [0]
    changed = live.changed
    live.end(0)
    assert changed.is_set()
    assert live.running == {}
    live.end(0)


async def test_rules_and_stops_come_from_the_entry() -> None:
    stopped = Stop(limit="max_calls", at_call=3, stops=2)
    live = Live(entry(limits={"max_output_tokens": 64.0}, pins={"top_p": 1.0}, model="m", stopped=stopped), [])
    rules = live.rules
    assert (rules.max_output_tokens, rules.pins, rules.model) == (64, {"top_p": 1.0}, "m")
    assert (rules.strict_model, rules.allow) == (True, frozenset({"priority"}))
    assert live.stops == 2
    assert "r" in repr(live)


async def test_a_rollout_at_rest_gives_up_spare_room_once() -> None:
    live = Live(entry(), [])
    for n in range(40):
        live.keep(n, ids(*range(100 * n)), ids(*range(100 * n, 100 * n + 50)))
    before = live.trie.nbytes
    live.begin(99, lambda: None)
    live.rest(-1.0)
    assert live.trie.nbytes == before
    live.end(99)
    live.rest(60.0)
    assert live.trie.nbytes == before
    live.rest(-1.0)
    packed = live.trie.nbytes
    assert packed < before
    delta = live.delta(ids(*range(3950)))
    assert delta is not None
    assert delta.shared == 3950
