import json

from benchmarks import flat, overhead, pages
from benchmarks.flat import BLOCK, PROMPT, Block, ask_of, points, verdict


def block(call: int, ours: float, bare: float = 1.0) -> Block:
    return Block(call=call, prompt_tokens=PROMPT, cpu_ms=(ours, bare), total_ms=(ours, bare))


def test_the_cost_around_a_call_is_the_median_of_the_blocks_before_it() -> None:
    blocks = [block(call, 4.0) for call in range(BLOCK, 1_001, BLOCK)]
    # One that the machine disturbed says nothing.
    blocks[-2] = block(990, 90.0)
    made = points("unrelated", [block(0, 6.0), block(1, 8.0)], [block(10, 4.0), block(10, 80.0)], blocks)
    assert [point.call for point in made] == [1, 10, 100, 400, 1_000]
    assert [point.treering_cpu_ms for point in made] == [7.0, 4.0, 4.0, 4.0, 4.0]
    assert [point.by_tenth for point in made] == [1.75, 1.0, 1.0, 1.0, 1.0]
    assert verdict(made) == "the 1,000th call beside the 10th, CPU time: unrelated 1.00 x: flat"


def test_what_grows_is_not_flat() -> None:
    made = points("subagents", [], [], [block(call, 1.0 + call / 100) for call in range(BLOCK, 1_001, BLOCK)])
    assert verdict(made).endswith(": not flat")


def test_a_short_run_says_that_it_was_short() -> None:
    made = points("unrelated", [block(0, 1.0)], [], [block(10, 1.0), block(20, 1.0)])
    assert [point.call for point in made] == [1, 10]
    assert verdict(made) == "not measured to the 1,000th call"


def test_prompts_have_the_size_that_is_told() -> None:
    assert len({ask_of("unrelated", n).start for n in range(300)}) == 300
    conversation = [ask_of("subagents", n) for n in range(BLOCK)]
    assert len({ask.start for ask in conversation}) == 1
    assert abs(sum(ask.n_prompt for ask in conversation) / BLOCK - PROMPT) <= 250
    assert ask_of("subagents", BLOCK).start != conversation[0].start
    assert [ask_of("one conversation", n).n_prompt for n in (0, 999)] == [1_000, 500_500]
    for case in flat.CASES:
        assert len({ask_of(case, 0, rollout=rollout).start for rollout in range(23)}) == 23


def test_the_docs_tell_of_the_run_that_lies_beside_them() -> None:
    told = json.loads(flat.DOCUMENT.read_text())
    assert pages.between(overhead.PAGE.read_text(), "calls") == pages.calls(told)


async def test_a_short_one_runs_whole() -> None:
    told = await flat.measure(calls=BLOCK, cases=("subagents",))
    assert [(row["case"], row["call"]) for row in told["rows"]] == [("subagents", 1), ("subagents", 10)]
    assert all(row["treering_cpu_ms"] > 0 for row in told["rows"])
