"""Pinning at an engine that renders with one of the small templates, and takes ids as vLLM does, or doesn't."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from capture.errors import EngineError
from capture.pinning.fallback import Fallback
from capture.pinning.parents import Parents
from capture.pinning.pinner import UNKNOWN, Pinner, Recorded
from capture.pinning.wire import shape
from graph.messages import from_chat
from graph.records import Call
from tests.capture.pinning.templates import TEMPLATES, encode

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "go on"}


class Engine:
    """A vLLM in name only. `habits`: `render` (scale-out is enabled), `ignores` (ids, streamed or at all), `skews`
    (renders otherwise than its chat route), `mute` (no /tokenize), `broken` (answers that can't be read).
    """

    def __init__(self, *habits, template="chatml"):
        self.template = TEMPLATES[template]
        self.habits = habits
        self.asked = []

    async def ask(self, path, body):
        asked = json.loads(body)
        self.asked.append((path, asked))
        if path == "/v1/chat/completions":
            return 200, self._chat(asked)
        if path == "/tokenize":
            if "mute" in self.habits:
                return 404, b"{}"
            if "broken" in self.habits:
                return 200, b"<html>"
            return self._rendered(asked, "tokens")
        if "render" not in self.habits:
            return 403, b'{"error": "Scale-out endpoints are disabled."}'
        return self._rendered(asked, "token_ids")

    def _rendered(self, asked, name):
        ids = self.template.render(asked["messages"], closed=not asked["add_generation_prompt"])
        if ids is None:
            return 400, b'{"error": "the template refuses"}'
        return 200, json.dumps({name: ids.tolist() + [7] * ("skews" in self.habits)}).encode()

    def _chat(self, asked):
        given = (asked.get("kv_transfer_params") or {}).get("prompt_token_ids")
        ignores = "ignores" in self.habits or ("ignores streamed" in self.habits and asked.get("stream"))
        ids = given if given and not ignores else self.template.render(asked["messages"]).tolist()
        if asked.get("stream"):
            first = {"choices": [{"delta": {"role": "assistant"}}], "prompt_token_ids": ids}
            return b"data: " + json.dumps(first).encode() + b"\n\ndata: [DONE]\n\n"
        return json.dumps({"choices": [], "prompt_token_ids": ids}).encode()


async def looked(*habits, **options):
    engine = Engine(*habits, **options)
    pinner = Pinner(engine.ask, model="m")
    await pinner.look()
    engine.asked.clear()
    return engine, pinner


def fields(*messages, **more):
    return {
        name: json.dumps(value).encode() for name, value in {"model": "m", "messages": list(messages), **more}.items()
    }


class Memory:
    """What was recorded: one call that answered `USER` with `REPLY`, or others."""

    def __init__(self, engine, /, **changes):
        self.parents = Parents()
        self.calls = {}
        self.add(engine, 0, [USER], REPLY, **changes)

    def add(self, engine, n, history, reply, /, **changes):
        self.parents.add(
            Call(n=n, status="complete", arrived=n, messages=tuple(map(from_chat, history)), reply=from_chat(reply))
        )
        prompt, sampled = engine.template.render(history), encode(f"<think>sampled{n}<im_end>")
        self.calls[n] = Recorded(
            **{
                "ids": np.concatenate([prompt, sampled]), "n_sampled": len(sampled), "finish_reason": "stop",
                "stop_reason": None, "shape": shape(fields()), "stops": False, "engine": "e", "weights": "v1",
                **changes,
            }
        )  # fmt: skip

    async def load(self, n):
        return self.calls.get(n)


async def pin(pinner, memory, *messages, engine="e", weights="v1", **more):
    return await pinner.pin(
        fields(*messages, **more), tuple(map(from_chat, messages)), memory.parents, memory.load,
        engine=engine, weights=weights,
    )  # fmt: skip


@pytest.mark.parametrize("habits", [(), ("render",)])
async def test_a_prompt_is_the_parents_ids_and_what_the_template_puts_behind(habits):
    engine, pinner = await looked(*habits)
    assert pinner.off is None
    memory = Memory(engine)
    found = await pin(pinner, memory, USER, REPLY, MORE)
    tail = encode("\n<im_start>user\ngo on<im_end>\n<im_start>assistant\n")
    assert found.ids.tolist() == memory.calls[0].ids.tolist() + tail.tolist()
    assert found.parent == 0
    # What was sampled is not what the reply renders to: all of it is kept.
    assert found.kept == memory.calls[0].n_sampled
    assert found.plain.tolist() == engine.template.render([USER, REPLY, MORE]).tolist()
    assert {path for path, _ in engine.asked} == {"/v1/chat/completions/render" if habits else "/tokenize"}


@pytest.mark.parametrize(
    ("habits", "off", "says"),
    [
        (("ignores",), "engine-ignores-ids", "does not take ids"),
        (("ignores streamed",), "engine-ignores-ids", "does not take ids"),
        (("skews",), "no-render", "otherwise than its chat route"),
        (("mute",), "no-render", "404"),
        (("broken",), "no-render", "can't be read"),
    ],
)
async def test_an_engine_that_can_not_be_pinned_at_is_found_out_at_the_start(habits, off, says):
    engine, pinner = await looked(*habits)
    assert (pinner.off, says in pinner.reason) == (off, True), pinner
    with pytest.raises(Fallback, match=off):
        await pin(pinner, Memory(engine), USER, REPLY, MORE)
    assert engine.asked == []


async def test_before_the_look_nothing_is_pinned():
    engine = Engine()
    with pytest.raises(Fallback, match="no-render"):
        await pin(Pinner(engine.ask, model="m"), Memory(engine), USER, REPLY, MORE)


@pytest.mark.parametrize(
    ("messages", "more", "reason"),
    [
        ((USER,), {}, "first-turn"),
        ((MORE, REPLY, MORE), {}, "no-parent"),
        ((USER, {**REPLY, "content": "other"}, MORE), {}, "no-parent"),
        ((USER, REPLY, MORE), {"tools": [{"type": "function", "function": {"name": "f"}}]}, "no-parent"),
        ((USER, REPLY, MORE), {"chat_template_kwargs": {"enable_thinking": False}}, "no-parent"),
        ((USER, REPLY, MORE), {"model": "other"}, "no-parent"),
        ((USER, REPLY), {}, "nothing-new"),
        ((USER, REPLY, MORE), {"continue_final_message": True}, "odd-flags"),
        ((USER, REPLY, MORE), {"kv_transfer_params": {"do_remote_decode": True}}, "kv-params-taken"),
        ((USER, REPLY, MORE), {"input_ids": [1, 2]}, "kv-params-taken"),
        (
            (USER, REPLY, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            {},
            "non-text",
        ),
    ],
)
async def test_what_does_not_go_on_from_the_record_goes_the_plain_way(messages, more, reason):
    engine, pinner = await looked()
    with pytest.raises(Fallback) as why:
        await pin(pinner, Memory(engine), *messages, **more)
    assert why.value.reason == reason


@pytest.mark.parametrize("changes", [{"engine": "other"}, {"weights": "v0"}])
async def test_another_engine_or_other_weights_are_no_parents(changes):
    engine, pinner = await looked()
    with pytest.raises(Fallback, match="other-engine"):
        await pin(pinner, Memory(engine, **changes), USER, REPLY, MORE)


async def test_an_engines_own_word_of_its_weights_is_no_sign_of_a_change_while_none_was_told():
    engine, pinner = await looked()
    memory = Memory(engine, weights="default")
    assert (await pin(pinner, memory, USER, REPLY, MORE, weights=None)).parent == 0
    with pytest.raises(Fallback, match="other-engine"):
        await pin(pinner, memory, USER, REPLY, MORE, weights="v1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stops": True, "stop_reason": "\n"}, "stop-string"),
        ({"stops": True, "stop_reason": 10}, "stop-string"),
        ({"stops": True, "stop_reason": UNKNOWN}, "stop-string"),
        ({"finish_reason": "abort"}, "finish-abort"),
        ({"n_sampled": 0}, "empty-sample"),
    ],
)
async def test_how_the_parent_ended_decides(changes, reason):
    engine, pinner = await looked()
    with pytest.raises(Fallback) as why:
        await pin(pinner, Memory(engine, **changes), USER, REPLY, MORE)
    assert why.value.reason == reason


async def test_a_stop_that_was_not_met_is_no_hindrance():
    engine, pinner = await looked()
    assert await pin(pinner, Memory(engine, stops=True, stop_reason=None), USER, REPLY, MORE)
    assert await pin(pinner, Memory(engine, stop_reason=128_009), USER, REPLY, MORE)


async def test_of_equal_replies_the_latest_is_taken_or_whose_tool_calls_are_named():
    engine, pinner = await looked()
    memory = Memory(engine)
    memory.add(engine, 3, [USER], REPLY)
    assert (await pin(pinner, memory, USER, REPLY, MORE)).parent == 3

    def called(id_):
        function = {"name": "look", "arguments": "{}"}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": id_, "type": "function", "function": function}],
        }

    for n, id_ in ((4, "a"), (5, "b")):
        memory.add(engine, n, [USER], called(id_), tool_ids=(id_,))
    result = {"role": "tool", "tool_call_id": "a", "content": "x"}
    assert (await pin(pinner, memory, USER, called("a"), result)).parent == 4
    assert (await pin(pinner, memory, USER, called("rewritten"), result)).parent == 5


async def test_a_parent_that_is_gone_leaves_the_older_one():
    engine, pinner = await looked()
    memory = Memory(engine)
    memory.add(engine, 1, [USER, REPLY, MORE], {"role": "assistant", "content": "b"})
    del memory.calls[1]
    found = await pin(pinner, memory, USER, REPLY, MORE, {"role": "assistant", "content": "b"}, MORE)
    assert found.parent == 0


async def test_renderings_are_waited_for_within_their_time():
    engine, pinner = await looked()
    pinner._limit_s = 0.05

    async def silent(path, body):
        await asyncio.Event().wait()

    pinner._ask = silent
    with pytest.raises(Fallback, match="no-render"):
        await pin(pinner, Memory(engine), USER, REPLY, MORE)


async def test_an_engine_that_dies_while_it_renders_is_a_fallback():
    engine, pinner = await looked()

    async def dead(path, body):
        raise EngineError("engine_unreachable", "gone")

    pinner._ask = dead
    with pytest.raises(Fallback, match="no-render"):
        await pin(pinner, Memory(engine), USER, REPLY, MORE)


async def test_a_refusing_template_is_a_fallback():
    engine, pinner = await looked(template="strict")
    late = {"role": "tool", "tool_call_id": "x", "content": "y"}
    with pytest.raises(Fallback, match="template-refused"):
        await pin(pinner, Memory(engine), USER, REPLY, late)
