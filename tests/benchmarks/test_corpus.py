import json
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.corpus import ASKED_TOKENS, REPLY_TOKENS, TURN_TOKENS, Corpus, request_body, split_prompt

CORPUS = Corpus(4_000)


def test_ids_and_text_of_a_span_are_those_of_its_tokens() -> None:
    ids = json.loads(b"[" + CORPUS.ids_json(700, 900) + b"]")
    assert ids == CORPUS.ids[700:900].tolist()
    assert CORPUS.text(700, 900) == "".join(CORPUS.texts[700:900])


def test_two_processes_know_the_same_corpus() -> None:
    again = Corpus(4_000)
    assert np.array_equal(CORPUS.ids, again.ids)
    assert CORPUS.text(0, 4_000) == again.text(0, 4_000)
    assert CORPUS.logprobs == again.logprobs


@pytest.mark.parametrize("n_prompt", [500, 501, 2_000, 3_999])
def test_messages_cover_a_prompt_without_gap(n_prompt: int) -> None:
    spans = split_prompt(7, n_prompt)
    assert spans[0][1] == 7
    assert spans[-1][2] == 7 + n_prompt
    assert all(before[2] == after[1] for before, after in pairwise(spans))
    assert [role for role, *_ in spans[:3]] == ["system", "user", "assistant"][: len(spans)]
    assert spans[-1][0] == "user"


def test_a_longer_prompt_continues_with_the_reply_to_the_shorter_one() -> None:
    short, long = split_prompt(7, 1_200), split_prompt(7, 1_200 + TURN_TOKENS)
    assert long[: len(short)] == short
    assert long[len(short) :] == [
        ("assistant", 1_207, 1_207 + REPLY_TOKENS),
        ("user", 1_207 + REPLY_TOKENS, 1_207 + REPLY_TOKENS + ASKED_TOKENS),
    ]


def test_less_than_a_turn_is_no_prompt() -> None:
    with pytest.raises(ValueError, match="at least 500"):
        split_prompt(0, 499)


def test_a_request_is_as_long_as_a_real_one() -> None:
    corpus = Corpus(20_000)
    body = request_body(corpus, 100, 16_000, streamed=True)
    said = json.loads(body)
    assert said["stream"] is True
    assert "".join(message["content"] for message in said["messages"]) == corpus.text(100, 16_100)
    assert 4.2 < len(corpus.text(100, 16_100)) / 16_000 < 4.8
    assert 6.2 < len(corpus.ids_json(100, 16_100)) / 16_000 < 6.4
