"""Which calls a round makes. Pure.

`growing` is an agent at work: each prompt is the one before, its reply, and what a tool printed (500 tokens more). Its
prompts lie evenly around the size that the row names. A conversation is a rollout of its own, and its first call,
which has nothing to lean on, is made before the clock starts. In `unrelated` no prompt has anything in common with
another, which is the worst that can come: everything is new to whoever keeps it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from benchmarks.corpus import N_TOKENS, TURN_TOKENS

Case = Literal["growing", "unrelated"]
CASES: tuple[Case, ...] = ("growing", "unrelated")

STRIDE = 977
"""From one conversation's start to the next in the corpus; not a multiple of a turn, so no two share a message."""

_MOST_TURNS = 21


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a row measures."""

    prompt_tokens: int
    streamed: bool
    case: Case
    connections: int
    # Measured calls of each connection in a round.
    calls: int


class Ask(msgspec.Struct, frozen=True):
    """One call: its conversation's number in the round, and its prompt's place in the corpus."""

    conversation: int
    start: int
    n_prompt: int


class LanePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one connection."""

    warm: list[Ask]
    measured: list[Ask]


def turns_of(prompt_tokens: int, calls: int) -> int:
    """Return how many measured calls a conversation has: odd, so that its prompts lie evenly around the size."""
    # The first, unmeasured prompt is a turn shorter than the shortest measured one, and has a turn itself at least.
    room = 2 * ((prompt_tokens - 2 * TURN_TOKENS) // TURN_TOKENS) + 1
    most = max(1, min(_MOST_TURNS, room, calls))
    return most - 1 + most % 2


def starts_of(first: int, prompt_tokens: int) -> int:
    """Return where conversation number `first`, counted over a whole run, begins in the corpus."""
    # Room for the longest prompt, its reply and half the turns of its conversation.
    return first * STRIDE % (N_TOKENS - prompt_tokens - TURN_TOKENS * _MOST_TURNS)


def lanes(shape: Shape, counter: int) -> tuple[list[LanePlan], int]:
    """Return each connection's calls, and how many starts they use; `counter` starts were used earlier in the run."""
    plans: list[LanePlan] = []
    conversations = used = 0
    for _ in range(shape.connections):
        warm: list[Ask] = []
        measured: list[Ask] = []
        if shape.case == "unrelated":
            # One rollout, and a start for each of its calls.
            starts = [starts_of(counter + used + i, shape.prompt_tokens) for i in range(shape.calls + 1)]
            asks = [Ask(conversations, start, shape.prompt_tokens) for start in starts]
            warm, measured = asks[:1], asks[1:]
            conversations += 1
            used += len(asks)
        else:
            turns = turns_of(shape.prompt_tokens, shape.calls)
            shortest = shape.prompt_tokens - TURN_TOKENS * (turns // 2)
            for _ in range(-(-shape.calls // turns)):
                start = starts_of(counter + used, shape.prompt_tokens)
                warm.append(Ask(conversations, start, shortest - TURN_TOKENS))
                measured += [Ask(conversations, start, shortest + TURN_TOKENS * turn) for turn in range(turns)]
                conversations += 1
                used += 1
        plans.append(LanePlan(warm=warm, measured=measured))
    return plans, used
