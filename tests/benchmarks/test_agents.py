import asyncio
from collections import Counter
from typing import Any

from benchmarks import pace, systems, wire
from benchmarks.agents import Agents, held_against
from benchmarks.corpus import Corpus
from benchmarks.traffic import Traffic

CORPUS = Corpus(1_000_000 // 2)


async def test_every_call_is_made_in_order_and_seen_whole(monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.traffic.N_TOKENS", CORPUS.n_tokens * 2)
    bytes_of = wire.Wire(CORPUS)
    engine = pace.Pace(bytes_of, first_s=0.0, token_s=0.0, passes_ids=True)
    server, url = await pace.serve(bytes_of, engine)
    drawn = Traffic(5, scale=500.0)
    agents = Agents(systems.direct(url), CORPUS, engine, [0])
    began = [drawn.begun() for _ in range(2)]
    began = [one for one in began if all(turn.start < CORPUS.n_tokens - 10_000 for turn in (*one.warm, *one.turns))]
    assert began
    async with asyncio.timeout(60):
        await agents.run(began, drawn, 0.3)
    server.close()
    assert all(each.whole for each in agents.seen)
    assert not agents.failed
    # Of a conversation that was under way, what its prompts go on from was said before the clock started.
    warm = [each for each in agents.seen if not each.counted][: sum(len(one.warm) for one in began)]
    assert {each.turn.conversation for each in warm} == {turn.conversation for one in began for turn in one.warm}
    assert sum(sum(calls.values()) for calls in agents.asked.values()) == len(agents.seen)


def test_a_call_that_is_not_in_the_record_is_missing() -> None:
    class Kept(systems.Treering):
        def __init__(self) -> None:
            self.ids_by_secret = {"k1": "r1", "k2": "r2"}

        def recorded(self, rollout: str) -> Any:
            status = "complete" if rollout == "r1" else "aborted"
            yield {"status": status, "n_prompt": 600, "n_sampled": 8}
            yield {"status": "complete", "n_prompt": 900, "n_sampled": 8}

    asked = {"k1": Counter({(600, 8): 1, (900, 8): 1}), "k2": Counter({(600, 8): 1, (900, 8): 2})}
    assert held_against(Kept(), asked) == (3, 2)
