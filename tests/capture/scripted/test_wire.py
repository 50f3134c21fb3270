"""What is not in the recorded exchanges: see test_wire_recorded.py for those."""

from typing import Any

import pytest

from capture.scripted.model import ScriptedModel
from capture.scripted.rulesfile import parse_rules
from capture.scripted.wire import Writer

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "look"}}


def writer(reply: dict[str, Any], **request: Any) -> Writer:
    script = parse_rules({"noncanonical": 0.0, "rule": [{"reply": reply}]})
    model = ScriptedModel(script, name="m", max_model_len=1000, mode="processed", seed=0)
    data = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": False}}
    asked = model.parse({**data, **request})
    return model.write(asked, model.prompt(asked), model.reply(asked), created=1, given_id=None)


def chunks(reply: dict[str, Any], tokens_per_chunk: int = 1, **request: Any) -> list[Any]:
    made = writer(reply, stream=True, **request)
    return [step.chunk for step in made.steps(tokens_per_chunk)]


def finish(reply: dict[str, Any], **request: Any) -> tuple[str, str]:
    """Give the finish reasons of the whole reply and of its stream."""
    whole = writer(reply, **request).body()["choices"][0]["finish_reason"]
    return whole, chunks(reply, **request)[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize(
    ("reply", "request_", "reasons"),
    [
        ({"text": "Hi."}, {}, ("stop", "stop")),
        ({"text": "Hi."}, {"max_tokens": 1}, ("length", "length")),
        ({"raw": CALL}, {"tools": [TOOL]}, ("tool_calls", "tool_calls")),
        ({"raw": CALL}, {"tools": [TOOL], "tool_choice": "none"}, ("stop", "stop")),
        ({"raw": CALL}, {"tools": [TOOL], "tool_choice": "required"}, ("tool_calls", "tool_calls")),
        ({"raw": "no"}, {"tools": [TOOL], "tool_choice": "required"}, ("tool_calls", "stop")),
        (
            {"raw": CALL},
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
            ("stop",) * 2,
        ),
        ({"raw": CALL + " and more" * 20}, {"tools": [TOOL], "max_tokens": 25}, ("tool_calls", "length")),
        ({"raw": CALL, "finish": "stop"}, {"tools": [TOOL]}, ("stop", "stop")),
        ({"raw": "x", "finish": "abort"}, {}, ("abort", "abort")),
    ],
)
def test_the_finish_reason_is_vllms(reply, request_, reasons):
    assert finish(reply, **request_) == reasons


def test_an_abort_ends_in_a_chunk_without_tokens():
    last = chunks({"text": "the name", "finish": "abort"}, return_token_ids=True, logprobs=True)[-1]
    assert last["choices"] == [
        {
            "index": 0,
            "delta": {},
            "logprobs": {"content": []},
            "finish_reason": "abort",
            "stop_reason": None,
            "token_ids": [],
        }
    ]


def test_several_tokens_go_in_a_chunk():
    made = chunks({"text": "the name is here."}, 3, return_token_ids=True, logprobs=True)
    sizes = [len(chunk["choices"][0]["token_ids"]) for chunk in made]
    assert sizes == [3, 3, 1]
    assert [len(chunk["choices"][0]["logprobs"]["content"]) for chunk in made] == sizes


def test_the_chunks_of_a_stream_are_the_whole_reply():
    for tokens in range(1, 8):
        reply = {"raw": f"I look. {CALL}"}
        whole = writer(reply, tools=[TOOL], return_token_ids=True, logprobs=True).body()["choices"][0]
        made = [
            chunk["choices"][0] for chunk in chunks(reply, tokens, tools=[TOOL], return_token_ids=True, logprobs=True)
        ]
        assert [token for choice in made for token in choice["token_ids"]] == whole["token_ids"]
        entries = [entry for choice in made for entry in choice["logprobs"]["content"]]
        assert entries == whole["logprobs"]["content"]
        assert "".join(choice["delta"].get("content") or "" for choice in made) == whole["message"]["content"]


def test_hidden_reasoning_takes_ids_and_logprobs_with_it():
    asked: dict[str, Any] = {
        "include_reasoning": False,
        "return_token_ids": True,
        "logprobs": True,
        "chat_template_kwargs": {},
    }
    choice = writer({"thinking": "Hm.", "text": "Hi."}, **asked).body()["choices"][0]
    assert (choice["message"]["reasoning"], choice["logprobs"], choice["token_ids"]) == (None, None, None)
    for chunk in filter(None, chunks({"thinking": "Hm.", "text": "Hi."}, **asked)):
        part = chunk["choices"][0]
        assert (part["delta"].get("reasoning"), part["logprobs"], part["token_ids"]) == (None, None, None)


def test_without_parallel_calls_one_is_shown():
    asked = {"tools": [TOOL], "parallel_tool_calls": False}
    calls = writer({"raw": CALL + CALL}, **asked).body()["choices"][0]["message"]["tool_calls"]
    assert len(calls) == 1


def test_tool_call_ids_are_new_for_every_call_of_every_reply():
    script = parse_rules({"rule": [{"reply": {"raw": CALL + CALL}}]})
    model = ScriptedModel(script, name="m", max_model_len=1000, mode="processed", seed=0)
    asked = model.parse({"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "n": 2, "seed": 1})
    ids = [
        call["id"]
        for _ in range(3)
        for choice in model.write(asked, model.prompt(asked), model.reply(asked), created=1, given_id="same").body()[
            "choices"
        ]
        for call in choice["message"].get("tool_calls", [])
    ]
    assert len(set(ids)) == len(ids) == 12


def test_echo_comes_first_in_a_stream():
    made = writer({"text": "more"}, messages=[{"role": "assistant", "content": "Hi"}], echo=True, stream=True)
    assert [chunk["choices"][0]["delta"] for chunk in made.opening()] == [
        {"role": "assistant", "content": ""},
        {"content": "Hi"},
    ]


def test_a_stream_goes_on_as_content_where_the_prompt_has_closed_the_thinking():
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Hi the"}]
    left_open: dict[str, Any] = {
        "add_generation_prompt": False,
        "continue_final_message": True,
        "chat_template_kwargs": {},
    }
    assert chunks({"raw": "re"}, messages=messages, **left_open)[0]["choices"][0]["delta"] == {"content": "re"}
    whole = writer({"raw": "re"}, messages=messages, **left_open).body()["choices"][0]["message"]
    assert (whole["reasoning"], whole["content"]) == ("re", None)


def test_alternatives_stand_behind_the_sampled_token():
    body = writer({"text": "the name"}, logprobs=True, top_logprobs=5).body()
    for entry in body["choices"][0]["logprobs"]["content"]:
        top = entry["top_logprobs"]
        assert (len(top), top[0]["token"], top[0]["logprob"]) == (5, entry["token"], entry["logprob"])
        assert len({each["token"] for each in top}) == 5


def test_prompt_logprobs_list_every_token_but_the_first():
    body = writer({"text": "x"}, prompt_logprobs=2, return_token_ids=True).body()
    listed, ids = body["prompt_logprobs"], body["prompt_token_ids"]
    assert listed[0] is None
    assert [next(iter(entries)) for entries in listed[1:]] == [str(token) for token in ids[1:]]
    assert {len(entries) for entries in listed[1:]} == {3}


def test_a_replys_logprobs_are_those_of_the_same_ids_in_a_prompt():
    # What a check by prefill relies on.
    body = writer({"text": "the name is"}, return_token_ids=True, logprobs=True).body()
    ids = body["choices"][0]["token_ids"][:-1]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "the name is"}]
    left_open = {"add_generation_prompt": False, "continue_final_message": True}
    again = writer({"text": "!"}, messages=messages, prompt_logprobs=0, return_token_ids=True, **left_open).body()
    assert again["prompt_token_ids"] == body["prompt_token_ids"] + ids
    listed = [
        entries[str(token)]["logprob"]
        for token, entries in zip(ids, again["prompt_logprobs"][-len(ids) :], strict=True)
    ]
    assert listed == [entry["logprob"] for entry in body["choices"][0]["logprobs"]["content"][:-1]]
