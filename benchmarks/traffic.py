"""Agents' traffic as published traces of coding agents have it, drawn from a seed. Pure.

What is published, and what a run of this has within a few percent (`tests/benchmarks/test_traffic.py`):

- prompts of 99,000 tokens in the median and 616,000 at p99;
- replies of 458 tokens in the median;
- 31 calls a rollout in the median, 196 at p90;
- 4 s between a reply and the next call, in the mean;
- subagents.

What is not, and is assumed here: a logarithmic normal law for calls, prompts and replies; prompts that grow evenly over
a conversation, from half of its middle one to one and a half times it, by 1,000 tokens a call at the least, after which
the next begins (a compaction); a fifth of the calls made by subagents, whose prompts are a quarter as long, and for
which the main agent waits; a longest reply of 2,000 tokens.

The traffic is open: a call is due when the agent would make it if every reply took the engine's own time, whatever the
proxy in between does. Who is late stays late until an agent's pause makes up for it.

At the beginning each place of so many at once has a rollout in the middle of its life, since a run is shorter than a
rollout: calls of that which were made before are not made again, but for the last (`warm`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from benchmarks.corpus import N_TOKENS

CALLS_P50, CALLS_P90 = 31, 196
PROMPT_P50, PROMPT_P99 = 99_000, 616_000
REPLY_P50 = 458
GAP_S = 4.0
SUBAGENT_SHARE = 0.2
SUBAGENT_CALLS = 5
SUBAGENT_SIZE = 0.25

# ln(196 / 31) over the 90th percentile of the normal law.
_CALLS_SIGMA = 1.439
# As for prompts, less what their growth over a rollout spreads them.
_PROMPT_SIGMA = 0.67
_PROMPT_SHIFT = 1.32
_REPLY_SIGMA = 0.9
_MOST_CALLS = 1_000
_MOST_PROMPT = 800_000
_MOST_REPLY = 2_000
_LEAST_PROMPT = 400
_LEAST_REPLY = 4
_LEAST_TOOL = 20
_GROWTH = 1_000
"""Tokens a call, at the least: a reply, and what its tool printed."""

# Behind the longest prompt there is its reply, and what prompts grow beyond it where replies are longer than planned.
_ROOM = 100_000

FIRST_TOKEN_S = 0.5
TOKEN_S = 0.02
"""Of the engine: 50 tokens a second for each stream, whatever else it does."""


class Turn(msgspec.Struct, frozen=True):
    """One call: its conversation, that one's start in the corpus, the prompt's length, the reply's."""

    conversation: int
    start: int
    n_prompt: int
    n_reply: int
    # Seconds from the end of the reply before it.
    gap_s: float
    # The turns before it in its conversation: of each where its prompt ended, and its reply.
    history: tuple[tuple[int, int], ...]


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout's calls, in order."""

    # Whose prompts the first calls go on from, one a conversation: made before the clock starts.
    warm: list[Turn]
    turns: list[Turn]


class Traffic:
    """Draws rollouts; `scale` divides lengths and times."""

    def __init__(self, seed: int, *, scale: float = 1.0) -> None:
        self._random = random.Random(seed)
        self._scale = scale

    def begun(self) -> Rollout:
        """Return a rollout that is somewhere in its life: the longer ones are met more often."""
        calls = max((self._calls() for _ in range(2)), key=lambda n: self._random.random() ** (1 / n))
        one = self._rollout(calls, self._random.randrange(calls))
        # Somewhere between two calls, or agents would all call at once.
        first = one.turns[0]
        waits = self._random.random() * (first.gap_s + nominal_s(first))
        return msgspec.structs.replace(one, turns=[msgspec.structs.replace(first, gap_s=waits), *one.turns[1:]])

    def fresh(self) -> Rollout:
        """Return a rollout from its beginning."""
        return self._rollout(self._calls(), 0)

    def _calls(self) -> int:
        return max(1, min(_MOST_CALLS, round(self._random.lognormvariate(0.0, _CALLS_SIGMA) * CALLS_P50)))

    def _rollout(self, calls: int, done: int) -> Rollout:
        made = list(self._turns(calls))
        last = {turn.conversation: turn for turn in made[:done]}
        going_on = {turn.conversation for turn in made[done:]}
        return Rollout(warm=[turn for n, turn in last.items() if n in going_on], turns=made[done:])

    def _turns(self, calls: int) -> Iterator[Turn]:
        level = self._random.lognormvariate(0.0, _PROMPT_SIGMA) * PROMPT_P50 * _PROMPT_SHIFT
        # Calls until its prompts have grown by as much as they were long: then it is begun anew, as agents compact.
        life = max(1, min(calls, int(level / _GROWTH)))
        main, turns = _Conversation(0, self._start()), 0
        conversations, made = 1, 0
        while made < calls:
            if turns == life:
                main, turns = _Conversation(conversations, self._start()), 0
                conversations += 1
            yield self._turn(main, level * (0.5 + turns / life))
            turns += 1
            made += 1
            # So that a fifth of the calls are theirs.
            if self._random.random() < SUBAGENT_SHARE / (1 - SUBAGENT_SHARE) / SUBAGENT_CALLS:
                own = _Conversation(conversations, self._start())
                length = self._random.randint(1, 2 * SUBAGENT_CALLS - 1)
                for turn in range(min(length, calls - made)):
                    yield self._turn(own, level * SUBAGENT_SIZE * (0.5 + turn / length))
                    made += 1
                conversations += 1

    def _start(self) -> int:
        return self._random.randrange(N_TOKENS - _MOST_PROMPT - _ROOM)

    def _turn(self, conversation: _Conversation, prompt: float) -> Turn:
        reply = self._random.lognormvariate(0.0, _REPLY_SIGMA) * REPLY_P50
        n_reply = max(_LEAST_REPLY, round(min(reply, _MOST_REPLY) / self._scale))
        n_prompt = max(_LEAST_PROMPT, round(min(prompt, _MOST_PROMPT) / self._scale))
        if conversation.history:
            # What the tool printed is a few words at least.
            n_prompt = max(n_prompt, sum(conversation.history[-1]) + _LEAST_TOOL)
        gap_s = self._random.expovariate(1 / GAP_S) / self._scale
        turn = Turn(conversation.n, conversation.start, n_prompt, n_reply, gap_s, tuple(conversation.history))
        conversation.history.append((n_prompt, n_reply))
        return turn


class _Conversation:
    """One that is being drawn."""

    def __init__(self, n: int, start: int) -> None:
        self.n = n
        self.start = start
        self.history: list[tuple[int, int]] = []


def messages(turn: Turn) -> list[tuple[str, int, int]]:
    """Return the messages of a call's prompt: role, start and end of each in the corpus.

    The reply of every turn before stands in it as it was sampled, and what a tool printed behind it.
    """
    first = turn.history[0][0] if turn.history else turn.n_prompt
    at = turn.start
    cut = at + first // 2
    spans = [("system", at, cut), ("user", cut, at + first)]
    ends = [prompt for prompt, _ in turn.history[1:]] + ([turn.n_prompt] if turn.history else [])
    for (prompt, reply), end in zip(turn.history, ends, strict=True):
        spans.append(("assistant", at + prompt, at + prompt + reply))
        spans.append(("user", at + prompt + reply, at + end))
    return spans


def nominal_s(turn: Turn) -> float:
    """Return what the engine takes for a call."""
    return FIRST_TOKEN_S + TOKEN_S * turn.n_reply
