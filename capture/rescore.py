"""Hands ids back to an engine and reads the logprob of each: vLLM's `/v1/completions` with `prompt_logprobs`.

vLLM 0.32: `prompt_logprobs: 0` asks for the logprob of each prompt token alone; the answer's choice has a list as long
as the prompt, null first, then `{id: {"logprob", "rank", "decoded_token"}}`. At least one token must be sampled. The
whole answer is as long as the prompt, some 100 bytes a token.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np

from capture.errors import EngineError
from graph.records import FloatArray, IntArray

Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a JSON body to a path of the engine; returns status and body."""


class _Score(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Score] | None] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    # Where vLLM puts them when the request has one prompt and it is a chat's.
    prompt_logprobs: list[dict[str, _Score] | None] | None = None


async def rescore(ask: Ask, ids: IntArray, *, model: str) -> FloatArray:
    """Return the engine's logprob of each id under those before it: float32, NaN for the first.

    Raises `EngineError`: `rescoring_refused` with the engine's own words, `rescoring_unreadable` for an answer that is
    none, is of another length, or is about other ids.
    """
    body = msgspec.json.encode(
        {
            "model": model,
            "prompt": ids.tolist(),
            "prompt_logprobs": 0,
            "max_tokens": 1,
            "temperature": 0.0,
            "add_special_tokens": False,
        }
    )
    status, answer = await ask("/v1/completions", body)
    if status != 200:
        raise EngineError(
            "rescoring_refused",
            f"The engine answered {status} to {len(ids)} ids: {answer[:300].decode('utf-8', 'replace')}",
            hint="It must take token ids as a prompt, with prompt_logprobs, within its context length.",
        )
    try:
        read = msgspec.json.decode(answer, type=_Answer)
    except msgspec.DecodeError as error:
        raise _unreadable(f"it can't be read: {error}") from error
    scores = read.choices[0].prompt_logprobs if read.choices else None
    scores = scores if scores is not None else read.prompt_logprobs
    if scores is None or len(scores) != len(ids):
        raise _unreadable(f"it has {'no' if scores is None else len(scores)} logprobs for {len(ids)} ids")
    found = np.full(len(ids), math.nan, np.float32)
    for place, (token, score) in enumerate(zip(ids.tolist(), scores, strict=True)):
        if score is None:
            continue
        own = score.get(str(token))
        if own is None:
            raise _unreadable(f"at {place} it speaks of {', '.join(score)}, not of {token}")
        found[place] = own.logprob
    return found


def _unreadable(why: str) -> EngineError:
    return EngineError("rescoring_unreadable", f"The engine's answer does not score what was asked: {why}.")
