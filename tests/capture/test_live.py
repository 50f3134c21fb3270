"""One open rollout in memory: numbers, counters, limits, and what it leans on."""

import zlib

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


async def test_a_prompts_check_sum_goes_on_from_that_of_the_call_it_leans_on() -> None:
    live = Live(entry(), [])
    prompts = [ids(1, 2), ids(1, 2, 3, 4), ids(1, 2, 3, 4, 5, 6), ids(1, 2, 3, 4, 7)]
    assert live.checked(prompts[0], live.delta(prompts[0])) is None
    assert live.checked(None, None) is None
    live.keep(0, prompts[0], ids(3))
    for n, prompt in enumerate(prompts[1:], start=1):
        if n == 3:
            # All is forgotten, and worked out anew.
            assert live.sleep(-1.0)
            live.wake([call(m, prompt_ids=p, sampled_ids=ids(3 + 2 * m)) for m, p in enumerate(prompts[:3])])
        delta = live.checked(prompt, live.delta(prompt))
        assert delta is not None
        assert delta.check == zlib.crc32(prompt.astype("<i4").tobytes())
        live.keep(n, prompt, ids(3 + 2 * n), check=delta.check)


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


def sampled(n: int, n_prompt: int) -> Call:
    """Return a complete call whose ids count up from 0, ten of them sampled."""
    prompt, reply = ids(*range(n_prompt)), ids(*range(n_prompt, n_prompt + 10))
    return call(n, id=f"c{n}", prompt_ids=prompt, sampled_ids=reply)


def told(live: Live) -> tuple:
    """Return what a later request may see of a rollout, whether it slept or not."""
    found = live.trie.locate(ids(*range(90)))
    return (
        [(n in live.trie, live.trie.path(n).tolist()) for n in range(3) if n in live.trie],
        (found.shared, found.holder),
        live.replies,
        live.spent(),
        live.top,
        live.tick() - live.tick(),
    )


async def test_a_rollout_sleeps_and_comes_back_as_it_was() -> None:
    made = [sampled(n, 30 * n) for n in (1, 2)] + [call(3, "error")]
    live, other = Live(entry(), made), Live(entry(), made)
    assert live.sleep(-1.0)
    assert (live.asleep, len(live.trie), live.replies) == (True, 0, {})
    assert not live.sleep(-1.0)
    live.wake(made)
    assert not live.asleep
    assert told(live) == told(other)


async def test_a_rollout_with_something_under_way_does_not_fall_asleep() -> None:
    live = Live(entry(), [])
    assert not live.sleep(60.0)
    with live.visited():
        assert live.is_visited
        assert not live.sleep(-1.0)
    live.begin(0, lambda: None)
    assert not live.sleep(-1.0)
    live.end(0)
    live.elsewhere[1] = 0.0
    assert not live.sleep(-1.0)
    live.elsewhere.clear()
    assert live.sleep(-1.0)
    live.wake([])
    # It has just been woken for a call that is still to come.
    assert not live.sleep(60.0)


async def test_what_other_processes_did_while_it_slept_is_learnt_on_waking() -> None:
    first = sampled(0, 10)
    live = Live(entry(), [first])
    live.sleep(-1.0)
    second = sampled(1, 30)
    live.wake([first, second, call(2, "running", ended=None)])
    both = Live(entry(), [first, second])
    assert live.spent() == both.spent()
    assert (live.replies, live.top, list(live.elsewhere)) == ({"c0": 0, "c1": 1}, 3, [2])


async def test_prompts_under_a_limit_come_back_too() -> None:
    made = [sampled(0, 10)]
    live = Live(entry(limits={"max_prompt_tokens": 100.0}), made)
    assert live.prompts is not None
    before = live.prompts.of("chat", ())
    live.sleep(-1.0)
    live.wake(made)
    assert live.prompts.of("chat", ()) == before
