"""Ids handed back to an engine, and what it may answer."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from capture.errors import EngineError
from capture.rescore import rescore

IDS = np.array([7, 8, 9], np.int32)
FINE = [None, {"8": {"logprob": -0.5, "rank": 1}}, {"3": {"logprob": -0.1}, "9": {"logprob": -2.5, "rank": 2}}]


def engine(answer, status=200):
    asked = []

    async def ask(path, body):
        asked.append((path, json.loads(body)))
        return status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    return ask, asked


async def test_each_id_gets_the_score_of_its_own():
    ask, asked = engine({"choices": [{"prompt_logprobs": FINE}]})
    found = await rescore(ask, IDS, model="m")
    assert found.dtype == np.float32
    assert math.isnan(found[0])
    assert found[1:].tolist() == [-0.5, -2.5]
    ((path, body),) = asked
    assert path == "/v1/completions"
    assert (body["prompt"], body["prompt_logprobs"], body["max_tokens"]) == ([7, 8, 9], 0, 1)


async def test_they_may_stand_beside_the_choices():
    ask, _ = engine({"choices": [{}], "prompt_logprobs": FINE})
    assert (await rescore(ask, IDS, model="m"))[2] == -2.5


async def test_a_refusal_is_told_in_the_engines_words():
    ask, _ = engine(b'{"error": "maximum context length is 2"}', status=400)
    with pytest.raises(EngineError, match="maximum context length is 2") as refused:
        await rescore(ask, IDS, model="m")
    assert refused.value.code == "rescoring_refused"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>", "can't be read"),
        ({"choices": []}, "no logprobs for 3 ids"),
        ({"choices": [{"prompt_logprobs": None}]}, "no logprobs for 3 ids"),
        ({"choices": [{"prompt_logprobs": FINE[:2]}]}, "2 logprobs for 3 ids"),
        ({"choices": [{"prompt_logprobs": [None, {"5": {"logprob": -1.0}}, FINE[2]]}]}, "speaks of 5, not of 8"),
    ],
)
async def test_an_answer_about_something_else_is_never_taken(answer, says):
    ask, _ = engine(answer)
    with pytest.raises(EngineError, match=says) as refused:
        await rescore(ask, IDS, model="m")
    assert refused.value.code == "rescoring_unreadable"
