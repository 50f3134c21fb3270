"""Logprob entries: those of the text alone, streamed or whole."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseTextDeltaEvent
from openai.types.responses.response_output_text import Logprob

from capture.dialects.responses_logprobs import entries_of, entries_of_text
from tests.capture.dialects.responses_wire import chunk, events, translator, whole

ASKED: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


def entry(token: str, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": [], **more}


def logprobs(*tokens: str) -> dict[str, Any]:
    return {"content": [entry(token) for token in tokens]}


def test_entries_have_openais_form() -> None:
    top = {"token": "b", "logprob": -1, "bytes": [98]}
    (found,) = entries_of({"content": [entry("a", top_logprobs=[top])]})
    assert Logprob.model_validate(found, strict=True).top_logprobs[0].token == "b"
    odd = [{"token": 3, "logprob": "x", "bytes": [999], "top_logprobs": None}, "none"]
    assert entries_of({"content": odd}) == [{"token": "", "logprob": None, "bytes": [], "top_logprobs": []}]
    assert entries_of(None) == entries_of({"content": None}) == []


@pytest.mark.parametrize(
    ("message", "tokens", "wanted"),
    [
        ({"content": "ab"}, ["a", "b", "<|end|>"], ["a", "b"]),
        ({"content": "ab", "reasoning": "ab"}, ["<think>", "ab", "</think>", "\n", "a", "b"], ["a", "b"]),
        ({"content": "é!"}, ["é", "!"], ["é", "!"]),
        # A token that only reaches into the text is one of its own.
        ({"content": "b c"}, ["ab", " ", "cd"], ["ab", " ", "cd"]),
        # What a parser changed isn't found.
        ({"content": "AB"}, ["a", "b"], []),
        ({"content": None}, ["a"], []),
    ],
)
def test_a_whole_texts_entries_are_found_by_their_bytes(
    message: dict[str, Any], tokens: list[str], wanted: list[str]
) -> None:
    assert [one["token"] for one in entries_of_text(logprobs(*tokens), message)] == wanted


def test_a_streams_entries_come_with_their_text() -> None:
    made = translator(stream=True, **ASKED)
    made.event(chunk({"reasoning": "x"}, logprobs=logprobs("x")))
    out = made.event(chunk({"content": "ab"}, logprobs=logprobs("a", "b")))
    delta = ResponseTextDeltaEvent.model_validate(events(out)[-1])
    assert [one.token for one in delta.logprobs] == ["a", "b"]
    made.event(chunk({}, "stop", logprobs=logprobs("<|end|>")))
    made.end()
    text = json.loads(made.reply() or b"")["output"][1]["content"][0]
    message = {"role": "assistant", "content": "ab", "reasoning": "x"}
    body = whole(message, logprobs=logprobs("x", "a", "b", "<|end|>"))
    assert json.loads(translator(**ASKED).whole(body))["output"][1]["content"][0] == text


def test_nobody_asked_and_nobody_gets_any() -> None:
    out = translator().whole(whole({"role": "assistant", "content": "a"}, logprobs=logprobs("a")))
    assert json.loads(out)["output"][0]["content"][0]["logprobs"] == []
