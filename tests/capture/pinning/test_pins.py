"""Pinned prompts end to end: a whole appliance on the scripted engine, which renders and takes ids as vLLM does."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest

from capture.errors import TreeringError
from capture.tasks import spawn
from tests import engine as fake
from tests.house import house
from tests.sglang_standin import Say, SglangStandIn

USER = {"role": "user", "content": "Hello"}


@pytest.fixture
async def home(tmp_path):
    async with house("scripted", tmp_path) as one:
        yield one


async def say(home, rollout, *messages, stream=False, **more):
    """Send a chat request; return the assistant's message as an agent would keep it."""
    async with home.chat(rollout, messages=list(messages), stream=stream, **more) as answer:
        assert answer.status == 200, await answer.text()
        text = await answer.text()
    await home.idle(rollout)
    if not stream:
        return json.loads(text)["choices"][0]["message"]
    calls = (await home.graph(rollout))["calls"]
    return (await home.call(rollout, calls[-1]["n"]))["reply"]["choices"][0]["message"]


async def fallbacks(home, rollout):
    found = (await home.graph(rollout))["findings"]
    return {each["data"]["reason"]: each["calls"] for each in found if each["code"] == "pin_fallback"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pinned_prompt_begins_with_all_that_was_sampled(home, stream):
    rollout = await home.rollout(tokens="pinned")
    said = [USER]
    for more in ("And?", "Then?", "So?"):
        reply = await say(home, rollout, *said, stream=stream)
        # What an agent does to a reply: reasoning goes, white space goes.
        said += [{"role": "assistant", "content": (reply["content"] or "").strip()}, {"role": "user", "content": more}]
    await say(home, rollout, *said, stream=stream)
    calls = [await home.call(rollout, n) for n in range(4)]
    for before, after in itertools.pairwise(calls):
        whole = before["prompt_ids"] + before["sampled_ids"]
        assert after["prompt_ids"][: len(whole)] == whole
        assert after["link"] == "exact"
        assert after["pinned"]["kept"] >= 0
    assert calls[0]["pinned"] is None
    assert await fallbacks(home, rollout) == {}
    graph = await home.graph(rollout)
    assert graph["drift"]["exact"] == graph["drift"]["transitions"] == 3
    assert graph["drift"]["samples_per_rollout"] == 1


async def test_without_pinning_nothing_is_asked_or_said(home):
    rollout = await home.rollout()
    reply = await say(home, rollout, USER)
    await say(home, rollout, USER, {"role": "assistant", "content": reply["content"]}, USER)
    assert [call["pinned"] for call in (await home.graph(rollout))["calls"]] == [None, None]
    assert await fallbacks(home, rollout) == {}


async def test_an_edited_history_goes_the_plain_way_and_says_so(home):
    rollout = await home.rollout(tokens="pinned")
    await say(home, rollout, USER)
    await say(home, rollout, USER, {"role": "assistant", "content": "I never said this"}, USER)
    assert await fallbacks(home, rollout) == {"no-parent": [1]}


async def test_a_restart_forgets_nothing(tmp_path):
    async with house("scripted", tmp_path) as home:
        rollout = await home.rollout(tokens="pinned")
        reply = await say(home, rollout, USER)
    async with house("scripted", tmp_path) as home:
        rollout["base_url"] = home.appliance.data_url + "/v1"
        await say(home, rollout, USER, {"role": "assistant", "content": reply["content"]}, USER)
        first, second = [await home.call(rollout, n) for n in (0, 1)]
        if second["pinned"] is None:
            # The scripted engine has another address now, and so is another engine.
            assert await fallbacks(home, rollout) == {"other-engine": [1]}
        else:
            whole = first["prompt_ids"] + first["sampled_ids"]
            assert second["prompt_ids"][: len(whole)] == whole


async def test_the_server_may_pin_for_all(tmp_path):
    async with house("scripted", tmp_path, tokens="pinned") as home:
        rollout = await home.rollout()
        reply = await say(home, rollout, USER)
        await say(home, rollout, USER, {"role": "assistant", "content": reply["content"]}, USER)
        assert (await home.call(rollout, 1))["pinned"] is not None


# -- SGLang -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def sglang():
    standin = SglangStandIn()
    await standin.start()
    yield standin
    await standin.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_sglang_takes_ids_and_keeps_what_it_sampled(sglang, tmp_path, stream):
    async with house(f"sglang={sglang.url}", tmp_path) as home:
        rollout = await home.rollout(tokens="pinned")
        said = [USER]
        for more in ("And?", "Then?", "So?"):
            # Thinking, which this template shows nowhere.
            sglang.says.append([Say(reasoning="so", text="Hi.")])
            reply = await say(home, rollout, *said, stream=stream)
            said += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": more}]
        assert await fallbacks(home, rollout) == {}
        calls = [await home.call(rollout, n) for n in range(3)]
        for before, after in itertools.pairwise(calls):
            whole = before["prompt_ids"] + before["sampled_ids"]
            assert after["prompt_ids"][: len(whole)] == whole
            assert (after["link"], after["pinned"]["kept"] > 0) == ("exact", True)
        assert await fallbacks(home, rollout) == {}
        assert (await home.graph(rollout))["drift"]["samples_per_rollout"] == 1


async def test_an_sglang_that_takes_no_ids_is_found_out(sglang, tmp_path):
    sglang.ignores = True
    with pytest.raises(TreeringError, match="does not take ids"):
        async with house(f"sglang={sglang.url}", tmp_path, tokens="pinned"):
            pass


# -- an engine that does otherwise than it did at the start ----------------------------------------------------------


IDS = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
END = 9


def rendered(messages, *, closed=False):
    """A template: role, characters, end."""
    ids = []
    for message in messages:
        ids += [IDS[message["role"]], *(100 + ord(char) for char in message.get("content") or ""), END]
    return ids if closed else [*ids, IDS["assistant"]]


class Vllm(fake.Engine):
    """A vLLM under a test's hand that renders and takes ids; `context` is how many."""

    def __init__(self):
        super().__init__(auto=self._look)
        self.context = 10_000
        self.looked = 0

    def _look(self, exchange):
        # Every call but those of a rollout: the probe's, and the look at what can be pinned.
        if fake._answer_probe(exchange):
            return True
        body = exchange.body
        if body.get("max_tokens") != 1:
            return False
        self.looked += 1
        self.answer(exchange)
        return True

    def prompt(self, body):
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        return given or rendered(body["messages"])

    def answer(self, exchange, *, prompt=None, ids=(150, END)):
        prompt = self.prompt(exchange.body) if prompt is None else prompt
        if exchange.body.get("stream"):
            first = fake.chunk(role=True, prompt=prompt)
            exchange.send(fake.event(first), fake.event(fake.chunk(*ids, text="2", finish="stop")))
            exchange.send(fake.event(fake.usage_chunk(len(ids), len(prompt))), fake.event("[DONE]")).end()
        elif len(prompt) > self.context:
            error = {"message": f"maximum context length is {self.context} tokens", "type": "BadRequestError"}
            exchange.answer({"error": error}, status=400)
        else:
            exchange.answer(fake.whole(list(ids), text="2", prompt=prompt))

    async def _tokenize(self, request):
        body = await request.json()
        ids = rendered(body["messages"], closed=not body.get("add_generation_prompt", True))
        return fake.web.json_response({"count": len(ids), "max_model_len": 4096, "tokens": ids})


@contextlib.asynccontextmanager
async def handmade(tmp_path):
    engine = Vllm()
    await engine.start()
    try:
        async with house(engine, tmp_path) as home:
            yield engine, home
    finally:
        await engine.close()


async def answered(engine, home, rollout, *messages, stream=False, **how):
    """Have a call answered; return what the engine was asked with."""
    asked = spawn(say(home, rollout, *messages, stream=stream), name="agent")
    exchange = await engine.next()
    engine.answer(exchange, **how)
    if not how and not stream and len(engine.prompt(exchange.body)) > engine.context:
        # Refused for its length: it comes once more.
        exchange = await engine.next()
        engine.answer(exchange)
    await asked
    return exchange.body


TWO = (USER, {"role": "assistant", "content": "2"}, {"role": "user", "content": "And?"})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_that_differs_is_recorded_as_what_it_is_and_the_engine_doubted(tmp_path, stream):
    async with handmade(tmp_path) as (engine, home):
        rollout = await home.rollout(tokens="pinned")
        await answered(engine, home, rollout, USER, ids=(150, 7, END))
        looked = engine.looked
        body = await answered(engine, home, rollout, *TWO, stream=stream, prompt=rendered(TWO))
        assert body["kv_transfer_params"]["prompt_token_ids"][-1] == IDS["assistant"]
        call = await home.call(rollout, 1)
        assert (call["pinned"], call["prompt_ids"]) == (None, rendered(TWO))
        assert await fallbacks(home, rollout) == {"echo-differs": [1]}
        assert engine.looked == looked
        # Before the next pin the engine is looked at once more.
        await answered(engine, home, rollout, *TWO)
        assert engine.looked > looked


async def test_what_is_too_long_with_all_that_it_keeps_is_sent_as_it_is(tmp_path):
    async with handmade(tmp_path) as (engine, home):
        rollout = await home.rollout(tokens="pinned")
        await answered(engine, home, rollout, USER, ids=(*[7] * 50, END))
        engine.context = len(rendered(TWO)) + 10
        body = await answered(engine, home, rollout, *TWO)
        assert "kv_transfer_params" not in body
        call = await home.call(rollout, 1)
        assert (call["status"], call["pinned"], call["prompt_ids"]) == ("complete", None, rendered(TWO))
        assert await fallbacks(home, rollout) == {"overflow": [1]}


async def test_a_call_that_would_not_fit_either_way_is_the_engines_to_refuse(tmp_path):
    async with handmade(tmp_path) as (engine, home):
        rollout = await home.rollout(tokens="pinned")
        await answered(engine, home, rollout, USER)
        engine.context = 3
        asked = spawn(_status(home, rollout, *TWO), name="agent")
        for _ in range(2):
            engine.answer(await engine.next())
        status, text = await asked
        assert (status, "maximum context length is 3" in text) == (400, True)


async def _status(home, rollout, *messages):
    async with home.chat(rollout, messages=list(messages), stream=False) as answer:
        return answer.status, await answer.text()
