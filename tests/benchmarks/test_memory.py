import json

from benchmarks import memory, pages
from benchmarks.memory import Row, turn_of, verdict
from benchmarks.traffic import messages


def row(state: str, rss: float, goal: float | None) -> Row:
    return Row(
        state=state, open_rollouts=1_000, in_use=100, rss_mib=rss, kib_per_rollout=None, store_mib=1.0, calls=1,
        goal_mib=goal,
    )  # fmt: skip


def test_a_rollout_grows_evenly_and_keeps_what_was_said() -> None:
    first, second, last = (turn_of(3, n) for n in (0, 1, 19))
    assert (first.n_prompt, second.n_prompt, last.n_prompt) == (800, 1_600, 16_000)
    assert messages(second)[:2] == messages(first)
    # The reply to the first, as the engine sampled it behind the first prompt.
    assert messages(second)[2] == ("assistant", first.start + 800, first.start + 1_000)
    assert turn_of(4, 0).start != first.start


def test_a_goal_holds_or_does_not() -> None:
    said = verdict([row("empty", 65, None), row("all in memory", 299.0, 300.0), row("idle", 151.0, 150.0)])
    assert said == "all in memory: 299 MiB of at most 300, holds; idle: 151 MiB of at most 150, does not hold"
    assert verdict([row("idle", 1.0, None)]) == "smaller than what the goals are about"


def test_the_docs_tell_of_the_run_that_lies_beside_them() -> None:
    told = json.loads(memory.DOCUMENT.read_text())
    assert pages.between(memory.PAGE.read_text(), "memory") == memory.section(told)


async def test_a_small_one_runs_whole(monkeypatch) -> None:
    monkeypatch.setattr(memory, "LOOK_S", 0.1)
    told = await memory.measure(rollouts=3, calls=2, tokens=1_600, sleep_after_s=0.1)
    states = ["empty", "all in memory", "idle", "woken", "closed", "closed for a minute", memory.AGAIN]
    assert [each["state"] for each in told["rows"]] == states
    assert told["rows"][1]["calls"] == 6
    assert told["rows"][0]["rss_mib"] > 20
