"""How a model that can't is made to do what a scenario is about."""

from __future__ import annotations

import re

import pytest

from benchmarks.drift.engine import _own_words, forced
from capture.errors import EngineError
from capture.trial.scenarios import SCENARIOS


def first(name, n=0):
    """The request of a scenario's n-th turn, when a stand-in speaks."""
    script = SCENARIOS[name].script()
    asked = next(script)
    for _ in range(n):
        asked = script.send(asked.says)
    return forced(asked)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "tool loop",
            '<tool_call>\n{"name":"get_weather","arguments":{"city":"Oslo","unit":"C"}}\n</tool_call>',
        ),
        (
            "history pruned",
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>',
        ),
        (
            "parallel tools",
            "\n".join(
                '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "unit": "C"}}\n</tool_call>'
                for _ in range(2)
            ),
        ),
        ("thinking kept", "<think>\nnow they greet\n</think>\n\nand this was said"),
    ],
)
def test_a_grammar_has_it_say_what_the_scenario_is_about(name, says):
    pattern = first(name)["structured_outputs"]["regex"]
    assert re.fullmatch(pattern, says), pattern


def test_thinking_is_off_but_where_it_is_the_matter():
    assert first("plain chat")["chat_template_kwargs"] == {"enable_thinking": False}
    assert first("thinking stripped")["chat_template_kwargs"] == {"enable_thinking": True}


def test_text_that_is_tokenised_otherwise_is_said_letter_by_letter():
    # "a" to "z" in Qwen3's vocabulary.
    assert first("text re-tokenised")["allowed_token_ids"] == list(range(64, 64 + 26))


def test_ends_are_forced_or_kept_away():
    assert first("empty turn", 1)["logit_bias"]["151645"] == 100
    assert "151645" not in first("empty turn", 0)["logit_bias"]
    assert first("cut by length")["logit_bias"]["151645"] == -100
    # The model's other end is no template's.
    assert first("plain chat")["logit_bias"] == {"151643": -100}


def test_what_an_engine_refuses_is_told_in_its_own_words():
    error = EngineError("engine_refused", 'vllm=x answered 400: {"error": {"message": "tiny is no such model"}}')
    assert _own_words(error) == "refused: tiny is no such model"
    assert _own_words(EngineError("engine_refused", "vllm=x answered 502: <html>")) == "vllm=x answered 502: <html>"
