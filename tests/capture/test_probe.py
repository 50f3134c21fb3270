"""The probe: what settles an engine's tier and the mode of its logprobs."""

from collections.abc import Callable
from typing import Any

import pytest

from capture.dialects.chat import Chat
from capture.engines.vllm import Vllm
from capture.errors import EngineError
from capture.probe import Verdict, probe
from capture.upstream import Engine
from tests.engine import STREAM, Exchange, chunk, event, running, usage_chunk, whole


async def probed(answer: Callable[[Exchange], None], mode: Any = None) -> Verdict:
    def auto(exchange: Exchange) -> bool:
        answer(exchange)
        return True

    async with running(auto=auto) as server:
        engine = Engine(Vllm(), server.url)
        await engine.open()
        try:
            await engine.identify()
            return await probe(engine, Chat(), logprobs_mode=mode)
        finally:
            await engine.close()


def good(exchange: Exchange, *, logprob: float = 0.0, plain: Any = None, stream: Any = None) -> None:
    if allowed := exchange.body.get("allowed_token_ids"):
        form = whole(allowed, finish="length")
        form["choices"][0]["logprobs"]["content"][0]["logprob"] = logprob
        exchange.answer(form)
    elif exchange.body.get("stream"):
        exchange.send(*(STREAM if stream is None else stream)).end()
    else:
        exchange.answer(whole([5, 6, 7]) if plain is None else plain)


async def test_ids_and_logprobs_in_both_modes_make_tier_train() -> None:
    verdict = await probed(good)
    assert (verdict.tier, verdict.logprobs_mode) == ("train", "processed")


async def test_a_raw_logprob_is_told_from_a_processed_one() -> None:
    assert (await probed(lambda exchange: good(exchange, logprob=-12.0))).logprobs_mode == "raw"


async def test_the_operators_word_on_the_mode_is_not_overruled() -> None:
    assert (await probed(lambda exchange: good(exchange, logprob=-12.0), mode="processed")).logprobs_mode == "processed"


async def test_an_engine_that_ignores_the_constraint_leaves_the_mode_unknown() -> None:
    def stubborn(exchange: Exchange) -> None:
        if exchange.body.get("allowed_token_ids"):
            exchange.answer(whole([9]))
        else:
            good(exchange)

    assert (await probed(stubborn)).logprobs_mode == "unknown"


def without(**fields: Any) -> dict[str, Any]:
    form = whole([5, 6, 7])
    first = form["choices"][0]
    for name, value in fields.items():
        (form if name in form else first)[name] = value
    return form


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"plain": without(prompt_token_ids=None)}, "plain reply, the prompt's token ids were missing"),
        ({"plain": without(token_ids=None)}, "plain reply, the sampled token ids were missing"),
        ({"plain": without(logprobs=None)}, "plain reply, logprobs were missing"),
        ({"plain": without(usage={"completion_tokens": 9})}, "usage counted 9"),
        ({"plain": without(choices=[])}, "plain"),
        (
            {"stream": [event(chunk(role=True)), event(chunk(5, finish="stop", logprobs=False)), event("[DONE]")]},
            "streamed reply, logprobs were missing",
        ),
        (
            {
                "stream": [
                    event(chunk(role=True)),
                    event(chunk(5, finish="stop")),
                    event(usage_chunk(2)),
                    event("[DONE]"),
                ]
            },
            "streamed reply, usage counted 2",
        ),
        ({"stream": [event(chunk(role=True)), event(chunk(5))]}, "streamed"),
    ],
)
async def test_what_training_needs_and_does_not_come_is_named(options: dict[str, Any], says: str) -> None:
    verdict = await probed(lambda exchange: good(exchange, **options))
    assert verdict.tier == "eval"
    assert says in verdict.reason


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_engine_that_refuses_the_probe_is_eval_with_the_status(status: int) -> None:
    verdict = await probed(lambda exchange: exchange.answer({"error": {"message": "no such flag"}}, status=status))
    assert verdict.tier == "eval"
    assert "no such flag" in verdict.reason


async def test_an_engine_that_wants_a_key_says_so() -> None:
    with pytest.raises(EngineError) as caught:
        await probed(lambda exchange: exchange.answer({"error": "Unauthorized"}, status=401))
    assert "--engine-key-file" in caught.value.hint
