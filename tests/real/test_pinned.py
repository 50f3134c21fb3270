"""Pinned prompts on the real vLLM: prompts begin with what was sampled, id by id, in every way of serving.

The model is random, so hardly any reply's text has the ids that it was sampled as: without pinning, every turn drifts.
Prompts are short (a seeded one with a long prompt ends this engine).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.house import House, house
from tests.real.engine_vllm import Vllm

CALLS = {
    # A random model ends a call by either of its two end tokens, one of which is not the template's: that is a fallback
    # with a name (`end-token-mismatch`), and not what is looked at here.
    "logit_bias": {"151643": -100},
    "structured_outputs": {
        "regex": r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Rome|Oslo)"\}\}\n</tool_call>'
    },
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    ],
}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture
async def home(vllm: Vllm, tmp_path: Path):
    async with house(f"vllm={vllm.base_url}", tmp_path) as one:
        yield one


async def say(home: House, rollout: dict[str, Any], messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Send a chat request; return the call as it was recorded."""
    body = {"max_tokens": 12, **OFF, **more}
    async with home.chat(rollout, messages=messages, **body) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
    await home.idle(rollout)
    return await home.call(rollout, (await home.graph(rollout))["calls"][-1]["n"])


def reply_of(call: dict[str, Any]) -> dict[str, Any]:
    """The reply as an agent sends it back: no reasoning, arguments written anew, empty content for none."""
    message = call["reply"]["choices"][0]["message"]
    kept: dict[str, Any] = {"role": "assistant", "content": message["content"] or ""}
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {
                "id": tool["id"],
                "type": "function",
                "function": {
                    "name": tool["function"]["name"],
                    "arguments": json.dumps(json.loads(tool["function"]["arguments"]), indent=1),
                },
            }
            for tool in message["tool_calls"]
        ]
    return kept


async def turns(home: House, rollout: dict[str, Any], n: int, **more: Any) -> list[dict[str, Any]]:
    """Have a conversation of `n` calls, each going on from the last; tools answer where they are called."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Say something."}]
    calls = []
    for turn in range(n):
        calls.append(await say(home, rollout, messages, **more))
        reply = reply_of(calls[-1])
        messages.append(reply)
        tools = reply.get("tool_calls", [])
        messages += [{"role": "tool", "tool_call_id": tool["id"], "content": f"sunny {turn}"} for tool in tools]
        if not tools:
            messages.append({"role": "user", "content": f"And {turn}?"})
    return calls


def chained(calls: list[dict[str, Any]]) -> None:
    for before, after in itertools.pairwise(calls):
        whole = before["prompt_ids"] + before["sampled_ids"]
        assert after["prompt_ids"][: len(whole)] == whole
        assert after["pinned"] is not None
        assert (after["link"], after["drift"]) == ("exact", None)
        assert len(after["logprobs"]) == len(after["sampled_ids"])


async def fallbacks(home: House, rollout: dict[str, Any]) -> dict[str, list[int]]:
    found = (await home.graph(rollout))["findings"]
    return {each["data"]["reason"]: each["calls"] for each in found if each["code"] == "pin_fallback"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="cut by length"),
        pytest.param({"max_tokens": 64, **CALLS}, id="tool calls"),
        pytest.param({"chat_template_kwargs": {"enable_thinking": True}}, id="thinking dropped"),
    ],
)
async def test_a_conversation_chains_id_by_id(home: House, stream: bool, more: dict[str, Any]):
    pinned = await home.rollout(tokens="pinned")
    calls = await turns(home, pinned, 3, stream=stream, **more)
    assert await fallbacks(home, pinned) == {}
    chained(calls)
    assert await fallbacks(home, pinned) == {}
    graph = await home.graph(pinned)
    assert (graph["drift"]["exact"], graph["drift"]["tokens_max"]) == (2, 0)
    # What is drawn under a grammar is not trained unless it is asked for.
    assert graph["drift"]["samples_per_rollout"] == (0 if "tools" in more else 1)
    if "tools" in more:
        assert all(call["reply"]["choices"][0]["message"]["tool_calls"] for call in calls)


async def test_without_pinning_the_same_conversation_drifts(home: House):
    plain = await home.rollout()
    await turns(home, plain, 3)
    graph = await home.graph(plain)
    assert graph["drift"]["exact"] < graph["drift"]["transitions"]


async def test_what_stands_behind_the_pinned_part_is_the_engines_own_rendering(home: House, vllm: Vllm):
    rollout = await home.rollout(tokens="pinned")
    first, second = await turns(home, rollout, 2)
    asked = {name: second["sent"][name] for name in ("model", "messages", "chat_template_kwargs")}
    async with home.session.post(f"{vllm.base_url}/tokenize", json=asked) as answer:
        own = (await answer.json())["tokens"]
    tail = second["prompt_ids"][len(first["prompt_ids"]) + len(first["sampled_ids"]) :]
    assert tail
    assert own[-len(tail) :] == tail


@pytest.mark.parametrize("vllm", ["sharp"], indirect=True)
async def test_where_nothing_drifts_replies_are_equal_with_and_without(home: House):
    # This model says words, mostly in the ids that the tokeniser gives for them, and nothing cuts thinking out: of ten
    # conversations some go on id by id as the engine renders them. Those, and no others, are held to the pinned ones.
    kept = 0
    for seed in range(10):
        said: dict[str, list[dict[str, Any]]] = {}
        for tokens in ("engine", "pinned"):
            rollout = await home.rollout(tokens=tokens)
            messages = [{"role": "user", "content": "Is it so?"}]
            said[tokens] = []
            for turn in range(3):
                said[tokens].append(await say(home, rollout, messages, seed=seed, chat_template_kwargs={}))
                messages += [reply_of(said[tokens][-1]), {"role": "user", "content": f"Sure {turn}?"}]
        if any(call["link"] != "exact" for call in said["engine"][1:]):
            continue
        kept += 1
        assert all(call["pinned"] == {"kept": 0} for call in said["pinned"][1:])
        for plain, pinned in zip(said["engine"], said["pinned"], strict=True):
            for name in ("prompt_ids", "sampled_ids", "logprobs", "finish_reason"):
                assert plain[name] == pinned[name]
            assert reply_of(plain) == reply_of(pinned)
    assert kept >= 2


async def test_parallel_calls_chain_and_each_result_has_its_place(home: House):
    one = CALLS["structured_outputs"]["regex"]
    rollout = await home.rollout(tokens="pinned")
    both = {**CALLS, "structured_outputs": {"regex": rf"{one}\n{one}"}, "max_tokens": 96}
    calls = await turns(home, rollout, 3, **both)
    assert [len(reply_of(call)["tool_calls"]) for call in calls] == [2, 2, 2]
    chained(calls)
    assert await fallbacks(home, rollout) == {}


async def test_what_was_sampled_beyond_a_stop_string_is_not_known(home: House):
    rollout = await home.rollout(tokens="pinned")
    # Some letter comes before long, whatever a random model says.
    calls = await turns(home, rollout, 2, stop=list("eaoi"), max_tokens=64)
    assert calls[0]["reply"]["choices"][0]["stop_reason"] in list("eaoi")
    assert calls[1]["pinned"] is None
    assert await fallbacks(home, rollout) == {"stop-string": [1]}


async def test_a_branch_from_the_middle_is_pinned_to_where_it_parts(home: House):
    rollout = await home.rollout(tokens="pinned")
    calls = await turns(home, rollout, 3)
    messages = [
        {"role": "user", "content": "Say something."}, reply_of(calls[0]), {"role": "user", "content": "Another way."},
    ]  # fmt: skip
    branch = await say(home, rollout, messages)
    whole = calls[0]["prompt_ids"] + calls[0]["sampled_ids"]
    assert branch["prompt_ids"][: len(whole)] == whole
    assert branch["parent"] == 0


async def test_what_can_not_be_pinned_goes_the_plain_way_by_name(home: House):
    rollout = await home.rollout(tokens="pinned")
    calls = await turns(home, rollout, 2)
    user = {"role": "user", "content": "Say something."}
    edited = [user, {"role": "assistant", "content": "I never said so."}, {"role": "user", "content": "Go on."}]
    await say(home, rollout, edited)
    other = [user, reply_of(calls[0]), {"role": "user", "content": "Go on."}]
    await say(home, rollout, other, chat_template_kwargs={"enable_thinking": True})
    await say(home, rollout, other, add_generation_prompt=False)
    assert await fallbacks(home, rollout) == {"no-parent": [2, 3], "odd-flags": [4]}


@pytest.mark.parametrize("path", ["messages", "responses"])
async def test_other_dialects_are_pinned_too(home: House, path: str):
    rollout = await home.rollout(tokens="pinned")
    headers = {"Authorization": f"Bearer {rollout['secret']}"}
    said: list[dict[str, Any]] = [{"role": "user", "content": "Say something."}]
    for turn in range(3):
        body: dict[str, Any] = {"model": "m", "chat_template_kwargs": {"enable_thinking": False}}
        body |= {"messages": said, "max_tokens": 12} if path == "messages" else {"input": said, "max_output_tokens": 16}
        async with home.session.post(f"{rollout['base_url']}/{path}", json=body, headers=headers) as answer:
            form = await answer.json()
            assert answer.status == 200, form
        await home.idle(rollout)
        if path == "messages":
            said.append({"role": "assistant", "content": form["content"]})
        else:
            said += form["output"]
        said.append({"role": "user", "content": f"And {turn}?"})
    chained([await home.call(rollout, n) for n in range(3)])
    assert await fallbacks(home, rollout) == {}
