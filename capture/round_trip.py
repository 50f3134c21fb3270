"""Two turns with an engine: does what it rendered and sampled in the first stand, token by token, in the second?

It is what decides whether rollouts chain: an agent sends the reply back as a message, and the engine's template and
tokeniser make of it what they make of it. Asked as agents ask, and of no rollout; `treering drift` measures more.
"""

from __future__ import annotations

import numpy as np

from capture.checks import Check, ok, warn
from capture.dialects.base import Dialect
from capture.engines.base import Choice, Reader
from capture.probe import ask
from capture.upstream import Engine
from graph import drift
from graph.records import IntArray
from graph.surgery import to_chat

FIRST = "Name a colour, and say why you like it."
SECOND = "And another?"

REPLY_TOKENS = 48
"""Of the first reply: enough for words that a tokeniser may cut otherwise the second time."""

SMALL = 8
"""Tokens of drift that are a matter of how a template ends a turn (a line break, an end token) and of nothing else."""


async def round_trip(engine: Engine, dialect: Dialect) -> Check:
    """Have the two turns, and say how much was lost. Raises `EngineError` where the engine can't be reached."""
    asked = [{"role": "user", "content": FIRST}]
    first, fault = await ask(engine, dialect, {"messages": asked, "max_tokens": REPLY_TOKENS, "temperature": 0.0})
    choice = _only(first)
    if fault is not None or choice is None or choice.reply is None:
        return _unknown(fault or "the first turn brought no reply")
    reply = to_chat(choice.reply)
    # As most agents do: what it thought is not sent back.
    reply.pop("reasoning_content", None)
    more = [*asked, reply, {"role": "user", "content": SECOND}]
    second, fault = await ask(engine, dialect, {"messages": more, "max_tokens": 1, "temperature": 0.0})
    prompt, sampled, then = first.prompt_ids, choice.sampled_ids, second.prompt_ids
    if fault is not None or prompt is None or sampled is None or then is None:
        return _unknown(fault or "the engine gave no token ids")
    return told(prompt, sampled, then, reasoned=choice.reply.reasoning is not None)


def told(prompt: IntArray, sampled: IntArray, then: IntArray, *, reasoned: bool = False) -> Check:
    """Say what became of a turn's prompt and sampled ids in the next turn's prompt; `reasoned`: it had reasoning."""
    lost, at, where = drift.measure(np.concatenate([prompt, sampled]), len(prompt), then)
    if lost == 0:
        return ok("template", f"exact: a second turn begins with all {at} tokens of the first")
    said = f"{lost} of {len(prompt) + len(sampled)} tokens are others in the second turn, from {at} on ({where})"
    if lost <= SMALL and where == "sampled":
        return ok("template", f"{said}: how this template ends a turn; rows may cross it (drift=realign)")
    if reasoned:
        said += "; the reply had reasoning, which agents and templates leave out of earlier turns"
    return warn("template", said, "treering drift --engine … says why, and which setting ends it; or --tokens pinned")


def _unknown(why: str) -> Check:
    return warn("template", f"whether it drifts can't be told: {why}", "treering drift --engine … tries more")


def _only(reader: Reader) -> Choice | None:
    choices = reader.choices()
    return choices[0] if len(choices) == 1 else None
