"""A reply on record and the stream that says the same: what a client assembles of it is the record, field by field."""

import json
from typing import Any

import pytest

from capture import sse
from capture.dialects import replays
from capture.dialects.base import Target, Translator
from capture.dialects.chat import Chat
from capture.dialects.completions import Completions
from capture.dialects.gemini import Gemini
from capture.dialects.messages import Messages
from capture.dialects.responses import Responses
from tests.engine import whole
from tests.playbook import data_of

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}},
]
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": '{"path": "é"}'}},
]


def reply(**message: Any) -> dict[str, Any]:
    """A whole chat completion."""
    form = whole([5, 6, 7], text="Hello é")
    form["choices"][0]["message"] |= message
    form["choices"][0]["finish_reason"] = "tool_calls" if message.get("tool_calls") else "stop"
    return form


REPLIES = {
    "text": reply(),
    "thinking": reply(reasoning="I think."),
    "calls": reply(content=None, tool_calls=CALLS),
    "all": reply(reasoning="I think.", tool_calls=CALLS),
    "nothing": reply(content=None),
}


def stream(name: str, request: Any, form: bytes) -> list[Any]:
    kind, raw = replays.stream(name, request, form)
    assert kind.startswith("text/event-stream")
    return data_of(raw)


@pytest.mark.parametrize("said", REPLIES)
@pytest.mark.parametrize("usage", [False, True])
def test_chat(said: str, usage: bool) -> None:
    asked = {"messages": [], "stream": True, "stream_options": {"include_usage": usage}}
    form = REPLIES[said]
    *chunks, done = stream("chat", Chat().read(json.dumps(asked).encode()), json.dumps(form).encode())
    assert done == "[DONE]"
    assert {chunk["id"] for chunk in chunks} == {form["id"]}
    assert [chunk["usage"] for chunk in chunks if "usage" in chunk] == ([form["usage"]] if usage else [])
    message: dict[str, Any] = {}
    ends = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                message[name] = message[name] + value if isinstance(message.get(name), str) else value
            ends.append(choice["finish_reason"])
    assert [end for end in ends if end] == [form["choices"][0]["finish_reason"]]
    assert ends[-1] is not None
    expected = form["choices"][0]["message"]
    for call in message.get("tool_calls") or []:
        assert call.pop("index") == CALLS.index(call)
    wanted = {name: value for name, value in expected.items() if value is not None}
    assert {name: value for name, value in message.items() if value} == wanted


def test_what_a_chat_client_asked_to_see_is_there_again() -> None:
    form = whole([5, 6, 7])
    asked = Chat().read(b'{"messages": [], "stream": true, "return_token_ids": true, "logprobs": true}')
    *chunks, _ = stream("chat", asked, json.dumps(form).encode())
    assert chunks[0]["prompt_token_ids"] == form["prompt_token_ids"]
    (drawn,) = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0].get("token_ids")]
    assert (drawn["token_ids"], drawn["logprobs"]) == ([5, 6, 7], form["choices"][0]["logprobs"])


def test_each_choice_of_a_chat_is_there() -> None:
    form = whole([5])
    form["choices"].append({**form["choices"][0], "index": 1, "finish_reason": "length"})
    *chunks, _ = stream("chat", Chat().read(b'{"messages": [], "n": 2, "stream": true}'), json.dumps(form).encode())
    ends = {
        choice["index"]: choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    }
    assert ends == {0: "stop", 1: "length"}


def test_completions() -> None:
    form = {
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip
    asked = Completions().read(b'{"prompt": "x", "stream": true, "stream_options": {"include_usage": true}}')
    head = {name: value for name, value in form.items() if name not in ("choices", "usage")}
    assert stream("completions", asked, json.dumps(form).encode()) == [
        {**head, "choices": form["choices"]},
        {**head, "choices": [], "usage": form["usage"]},
        "[DONE]",
    ]


def live(translator: Translator, form: dict[str, Any]) -> list[Any]:
    """What the translator makes of a reply that comes live, a delta for each thing said."""
    head = {name: form[name] for name in ("id", "object", "created", "model")}
    (choice,) = form["choices"]
    said = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{name: said[name]} for name in ("reasoning", "content") if said.get(name)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(said.get("tool_calls") or [])]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    chunks.append({**head, "choices": [], "usage": form["usage"]})
    out = b"".join(translator.event(json.dumps(chunk).encode()) for chunk in chunks) + translator.end()
    return data_of(out)


MESSAGES = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "stream": True}
RESPONSES = {
    "model": "m", "input": "x", "stream": True,
    "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
}  # fmt: skip


@pytest.mark.parametrize("said", REPLIES)
def test_messages_are_the_events_of_a_live_reply(said: str) -> None:
    asked = Messages().read(json.dumps(MESSAGES).encode())
    translator = Messages().translator(asked)
    assert translator is not None
    expected = live(translator, REPLIES[said])
    recorded = translator.reply()
    assert recorded is not None
    got = stream("messages", asked, recorded)
    for events in (expected, got):
        for event in events:
            if event.get("delta", {}).get("type") == "input_json_delta":
                # Spaces in arguments are the model's, and no part of the record.
                event["delta"]["partial_json"] = json.loads(event["delta"]["partial_json"])
    assert got == expected


@pytest.mark.parametrize("said", REPLIES)
def test_responses_are_the_events_of_a_live_reply(said: str) -> None:
    asked = Responses().read(json.dumps(RESPONSES).encode())
    translator = Responses().translator(asked)
    expected = live(translator, REPLIES[said])
    recorded = translator.reply()
    assert recorded is not None
    assert stream("responses", asked, recorded) == expected


def test_a_custom_tools_call_is_the_events_of_a_live_one() -> None:
    asked = Responses().read(json.dumps({**RESPONSES, "tools": [{"type": "custom", "name": "patch"}]}).encode())
    translator = Responses().translator(asked)
    name = json.loads(asked.fields["tools"])[0]["function"]["name"]
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": '{"input": "a\\nb"}'}}
    expected = live(translator, reply(content=None, tool_calls=[call]))
    recorded = translator.reply()
    assert recorded is not None
    assert stream("responses", asked, recorded) == expected


@pytest.mark.parametrize("said", REPLIES)
@pytest.mark.parametrize("framed", [True, False])
def test_gemini_is_one_chunk_with_all_of_it(said: str, framed: bool) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
    asked = Gemini().read(json.dumps(body).encode(), target=Target(model="m", streamed=True, sse=framed))
    translator = Gemini().translator(asked)
    assert translator is not None
    recorded = translator.whole(json.dumps(REPLIES[said]).encode())
    kind, raw = replays.stream("gemini", asked, recorded)
    assert kind == translator.stream_type
    got = [json.loads(event.data) for event in sse.Decoder().feed(raw)] if framed else json.loads(raw)
    assert got == [json.loads(recorded)]


def test_what_is_no_reply_is_said() -> None:
    with pytest.raises(ValueError, match="no object"):
        replays.stream("chat", Chat().read(b'{"messages": []}'), b"[]")
