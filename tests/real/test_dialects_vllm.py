"""A real vLLM behind every dialect, whole and streamed, as each dialect's official client understands it.

What is recorded equals, id by id and logprob by logprob, a direct call with the very body that the engine was sent. The
model is random: a grammar makes it call a tool, and all prompts are short (a seed with a long one ends this engine).
"""

from pathlib import Path
from typing import Any

import pytest

from tests.house import House, house
from tests.real.engine_vllm import Vllm
from tests.real.speakers import QUESTION, TOOL, Said, Speaker, speaking

# The client's own: it makes a class of aiohttp's session.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

DIALECTS = ["chat", "responses", "messages", "gemini"]
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
CALLS = {
    **PLAIN,
    "structured_outputs": {
        "regex": r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Rome|Oslo)"\}\}\n</tool_call>'
    },
}
"""Passed on to the engine as it stands, whatever the dialect."""

CUT = {"chat": "length", "responses": "incomplete", "messages": "max_tokens", "gemini": "MAX_TOKENS"}
CALLED = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use", "gemini": "STOP"}
"""How a reply ends that was cut by its limit, or called a tool, in each dialect's words."""


@pytest.fixture
async def home(vllm: Vllm, tmp_path: Path):
    async with house(f"vllm={vllm.base_url}", tmp_path) as one:
        yield one


async def equals_a_direct_call(home: House, vllm: Vllm, rollout: dict[str, Any], n: int, said: Said) -> None:
    """Send the engine the body of call `n` again, by itself: that is what was recorded, and what the agent counted."""
    call = await home.call(rollout, n)
    body = {name: value for name, value in call["sent"].items() if name not in ("stream", "stream_options")}
    path = "/v1/completions" if call["dialect"] == "completions" else "/v1/chat/completions"
    async with home.session.post(vllm.base_url + path, json=body) as answer:
        form = await answer.json()
        assert answer.status == 200, form
    (choice,) = form["choices"]
    if call["dialect"] == "completions":
        prompt, logprobs = choice["prompt_token_ids"], choice["logprobs"]["token_logprobs"]
    else:
        prompt, logprobs = form["prompt_token_ids"], [one["logprob"] for one in choice["logprobs"]["content"]]
    assert call["prompt_ids"] == prompt
    assert call["sampled_ids"] == choice["token_ids"]
    assert call["logprobs"] == logprobs
    assert (call["status"], call["delivered"], call["finish_reason"]) == ("complete", True, choice["finish_reason"])
    assert said.usage == (len(prompt), len(choice["token_ids"]))
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert said.text == (text or "")


async def both(speaker: Speaker, history: Any, **asked: Any) -> Said:
    """Ask whole and streamed: put together, a stream is the whole reply. Returns what was streamed."""
    whole = await speaker.ask(history, stream=False, **asked)
    streamed = await speaker.ask(history, stream=True, **asked)
    assert streamed.same() == whole.same()
    return streamed


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_plain_reply(vllm: Vllm, home: House, dialect: str) -> None:
    rollout = await home.rollout()
    async with speaking(dialect, rollout) as speaker:
        said = await both(speaker, speaker.history(), limit=24, extra={**PLAIN, "seed": 7})
    assert (bool(said.text), said.calls, said.finish) == (True, [], CUT[dialect])
    await home.idle(rollout)
    for n in (0, 1):
        await equals_a_direct_call(home, vllm, rollout, n, said)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_tool_loop(vllm: Vllm, home: House, dialect: str) -> None:
    rollout = await home.rollout()
    async with speaking(dialect, rollout) as speaker:
        called = await both(speaker, speaker.history(), limit=48, extra={**CALLS, "seed": 8}, **speaker.tools)
        ((name, arguments),) = called.calls
        assert (name, list(arguments), called.finish) == (TOOL, ["city"], CALLED[dialect])
        done = await both(speaker, speaker.history(called), limit=24, extra={**PLAIN, "seed": 9}, **speaker.tools)
        assert done.text
    await home.idle(rollout)
    for n, said in enumerate((called, called, done, done)):
        await equals_a_direct_call(home, vllm, rollout, n, said)
    graph = await home.graph(rollout)
    assert [call["parent"] for call in graph["calls"]] == [None, None, 1, 1]
    assert graph["rollout"]["n_conversations"] == 1


async def towards_an_end(home: House, vllm: Vllm) -> dict[str, float]:
    """A bias towards no arguments and the end: within the engine's own grammar a random model goes on with blanks."""
    bias = {}
    for piece in ("{", "}", "}}", "\n", "</tool_call>", "<|im_end|>"):
        body = {"model": vllm.model, "prompt": piece, "add_special_tokens": False}
        async with home.session.post(vllm.base_url + "/tokenize", json=body) as answer:
            (token,) = (await answer.json())["tokens"]
            bias[str(token)] = 100.0
    return bias


@pytest.mark.parametrize("how", ["named", "required"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_tool_that_must_be_called(vllm: Vllm, home: House, dialect: str, how: str) -> None:
    rollout = await home.rollout()
    extra = {**PLAIN, "seed": 10, "logit_bias": await towards_an_end(home, vllm)}
    async with speaking(dialect, rollout) as speaker:
        asked = {**speaker.tools, **getattr(speaker, how)}
        said = await both(speaker, speaker.history(), limit=64, extra=extra, **asked)
    # OpenAI's word where the client named the call itself.
    finish = "stop" if (dialect, how) == ("chat", "named") else CALLED[dialect]
    assert (said.text, said.calls, said.finish) == ("", [(TOOL, {})], finish)
    await home.idle(rollout)
    for n in (0, 1):
        await equals_a_direct_call(home, vllm, rollout, n, said)
        assert (await home.call(rollout, n))["constrained"] is True


@pytest.mark.parametrize("prompt", ["text", "ids"])
async def test_a_text_that_goes_on(vllm: Vllm, home: House, prompt: str) -> None:
    rollout = await home.rollout()
    given = QUESTION if prompt == "text" else [3838, 374, 279, 9104]
    async with speaking("completions", rollout) as speaker:
        said = await both(speaker, given, limit=16, extra={"seed": 11})
    await home.idle(rollout)
    for n in (0, 1):
        await equals_a_direct_call(home, vllm, rollout, n, said)
