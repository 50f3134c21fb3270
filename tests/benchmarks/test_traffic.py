from itertools import pairwise
from statistics import median

import pytest

from benchmarks.corpus import N_TOKENS
from benchmarks.report import percentile
from benchmarks.traffic import Traffic, messages

TRAFFIC = Traffic(7)
ROLLOUTS = [TRAFFIC.fresh() for _ in range(1_500)]
TURNS = [turn for one in ROLLOUTS for turn in one.turns]


def test_the_shape_is_the_published_one() -> None:
    calls = [len(one.turns) for one in ROLLOUTS]
    assert median(calls) == pytest.approx(31, rel=0.15)
    assert percentile(calls, 0.9) == pytest.approx(196, rel=0.2)
    # As they are met: of each rollout one call, or a few long rollouts would say it all.
    met = [Traffic(seed).begun().turns[0] for seed in range(3_000)]
    assert median(turn.n_prompt for turn in met) == pytest.approx(99_000, rel=0.1)
    assert percentile([turn.n_prompt for turn in met], 0.99) == pytest.approx(616_000, rel=0.15)
    assert median(turn.n_reply for turn in met) == pytest.approx(458, rel=0.1)
    assert sum(turn.gap_s for turn in TURNS) / len(TURNS) == pytest.approx(4.0, rel=0.1)


def test_a_conversation_goes_on_from_its_own_replies() -> None:
    for one in ROLLOUTS[:200]:
        conversations: dict[int, list] = {}
        for turn in one.turns:
            conversations.setdefault(turn.conversation, []).append(turn)
        for turns in conversations.values():
            assert len({turn.start for turn in turns}) == 1
            for earlier, later in pairwise(turns):
                assert later.n_prompt > earlier.n_prompt + earlier.n_reply
                assert later.history == (*earlier.history, (earlier.n_prompt, earlier.n_reply))


def test_messages_cover_the_prompt_and_hold_every_reply() -> None:
    for turn in TURNS[:500]:
        spans = messages(turn)
        assert spans[0][1] == turn.start
        assert spans[-1][2] == turn.start + turn.n_prompt
        assert all(before[2] == after[1] for before, after in pairwise(spans))
        replies = [(start - turn.start, end - start) for role, start, end in spans if role == "assistant"]
        assert replies == list(turn.history)
        assert all(start < end for _, start, end in spans)


def test_a_rollout_in_the_middle_of_its_life_goes_on_from_what_was_said() -> None:
    begun = [TRAFFIC.begun() for _ in range(300)]
    assert any(one.warm for one in begun)
    for one in begun:
        going_on = {turn.conversation for turn in one.turns}
        assert {turn.conversation for turn in one.warm} <= going_on
        for turn in one.warm:
            after = next(each for each in one.turns if each.conversation == turn.conversation)
            assert after.history[-1] == (turn.n_prompt, turn.n_reply)


def test_everything_lies_in_the_corpus() -> None:
    assert max(turn.start + turn.n_prompt + turn.n_reply for turn in TURNS) <= N_TOKENS


def test_one_seed_is_one_traffic_and_a_scale_divides_it() -> None:
    first, second = (Traffic(3).fresh() for _ in range(2))
    assert first == second
    small = Traffic(3, scale=10.0).fresh()
    assert len(small.turns) == len(first.turns)
    assert small.turns[-1].gap_s == pytest.approx(first.turns[-1].gap_s / 10)
    assert small.turns[0].n_prompt == pytest.approx(first.turns[0].n_prompt / 10, rel=0.01)
