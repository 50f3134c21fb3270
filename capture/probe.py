"""The probe: tiny calls that settle an engine's tier and the mode of its logprobs.

They go the way that agents' calls go (the same adapter, reader and recorder), streamed and not, since old engines give
ids in one mode and drop them in the other. They belong to no rollout.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import aiohttp
import msgspec
import numpy as np

from capture.dialects.base import Dialect, with_fields
from capture.engines.base import A_FEW, Choice, Inquirer, Reader
from capture.errors import ClientError, EngineError
from capture.rawjson import join
from capture.recorder import Recorder
from capture.upstream import Engine
from graph.records import IntArray, LogprobsMode

PROBE_TIMEOUT_S = 60.0
"""For one tiny call: an engine that has just started compiles or warms up on its first."""

PATH = "/v1/chat/completions"

_ASK = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 1.0}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found."""

    tier: Literal["train", "eval"]
    reason: str
    logprobs_mode: LogprobsMode


async def probe(engine: Engine, dialect: Dialect, *, logprobs_mode: LogprobsMode | None = None) -> Verdict:
    """Probe an engine that has been identified; `logprobs_mode` is the operator's word, which is not overruled.

    Raises `EngineError` when the engine can't be reached; an engine that answers but gives less than what training
    needs is no error: its tier is `eval`, with the reason.
    """
    adapter = engine.adapter
    ends = set()
    for streamed in (False, True):
        asked = {**_ASK, "max_tokens": adapter.probe_tokens, "stream": streamed}
        reader, fault = await ask(engine, dialect, asked)
        fault = fault or adapter.no_ids or _lacks(reader)
        if fault is not None:
            how = "streamed" if streamed else "plain"
            mode = logprobs_mode or "unknown"
            return Verdict(tier="eval", reason=f"in a {how} reply, {fault}", logprobs_mode=mode)
        first, choice = reader.prompt_ids, _only(reader)
        ends.add(choice.finish_reason if choice is not None else None)
    assert first is not None
    mode = logprobs_mode or await _settle_mode(engine, dialect, first)
    reason = "token ids and logprobs came back, one to one, plain and streamed"
    if adapter.probe_tokens > A_FEW and ends == {"length"}:
        reason += f", though no reply came to its end within {adapter.probe_tokens} tokens"
    return Verdict(tier="train", reason=reason, logprobs_mode=mode)


async def _settle_mode(engine: Engine, dialect: Dialect, prompt: IntArray) -> LogprobsMode:
    """With one allowed token, a processed logprob is 0.0; a raw one is not (seen on vLLM 0.32, both modes)."""
    allowed = [int(prompt[0])]
    reader, fault = await ask(engine, dialect, {**_ASK, "max_tokens": 1, "allowed_token_ids": allowed})
    choice = _only(reader)
    if fault is not None or choice is None or choice.logprobs is None or choice.sampled_ids is None:
        return "unknown"
    if choice.sampled_ids.tolist() != allowed or choice.logprobs.size != 1 or not np.isfinite(choice.logprobs[0]):
        return "unknown"
    return "processed" if float(choice.logprobs[0]) == 0.0 else "raw"


async def ask(engine: Engine, dialect: Dialect, body: dict[str, object]) -> tuple[Reader, str | None]:
    """Send one call of no rollout; return its reader, and what went wrong as a clause. Raises `EngineError`."""
    model = engine.models[0] if engine.models else None
    request = dialect.read(msgspec.json.encode({**({"model": model} if model else {}), **body}))
    reader = engine.adapter.reader(request)
    recorder = Recorder(request, reader)
    sent = join(with_fields(request.fields, engine.adapter.inject(request)))
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            async with await engine.send("POST", PATH, body=sent) as answer:
                if answer.status in (401, 403):
                    raise EngineError(
                        "engine_refused",
                        f"The engine at {engine.url} refused Treering's probe with {answer.status}.",
                        hint="Give the engine's key with --engine-key-file.",
                    )
                recorder.answered(answer.status)
                if request.streamed and answer.status < 400:
                    async for data in answer.content.iter_any():
                        recorder.feed(data, 0.0)
                    recorder.eof()
                else:
                    recorder.whole(await answer.read(), 0.0)
    except (TimeoutError, aiohttp.ClientError, ClientError) as error:
        return reader, f"the engine failed ({str(error) or type(error).__name__})"
    if isinstance(reader, Inquirer):
        await engine.inquire(reader)
    if recorder.status != "complete":
        return reader, f"the call ended as {recorder.status} ({recorder.error})"
    return reader, None


def _only(reader: Reader) -> Choice | None:
    choices = reader.choices()
    return choices[0] if len(choices) == 1 else None


def _lacks(reader: Reader) -> str | None:
    """Return what a reply lacks for training, as a clause; None if it lacks nothing."""
    choice = _only(reader)
    if choice is None:
        return "there was no single choice"
    prompt, why = reader.prompt_ids, f" ({reader.undecoded[0]})" if reader.undecoded else ""
    if prompt is None or not prompt.size:
        return f"the prompt's token ids were missing{why}"
    if choice.sampled_ids is None or not choice.sampled_ids.size:
        return f"the sampled token ids were missing{why}"
    if choice.logprobs is None or np.isnan(choice.logprobs).any():
        return f"logprobs were missing{why}"
    counted = (reader.usage or {}).get("completion_tokens")
    if counted is not None and counted != choice.sampled_ids.size:
        return f"usage counted {counted} sampled tokens and {choice.sampled_ids.size} ids came"
    return None
