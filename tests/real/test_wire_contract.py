"""The scripted engine answers in the shape that a real vLLM answers in.

Each request of tests/real/wire_requests.py goes to a real vLLM and to the scripted engine, and the two answers must
have one shape (tests/real/wire_shape.py): status, content type, every key, its JSON type, null or absent, and the order
of events. What may differ is a row of ALLOWED, with its reason, and is asserted like the rest: a difference without a
row fails, and so does a row without its difference.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from capture.scripted import ScriptedEngine, parse_rules
from tests.real.engine_vllm import MAX_MODEL_LEN, MODEL_NAME
from tests.real.wire_requests import BASE, REQUESTS, EngineName, Token, WireRequest, body_for
from tests.real.wire_shape import Exchange, differences

# One answer of at most 60 tokens takes vLLM a second; its first one compiles kernels, and the machine may be busy.
ASK_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Requests that show these differences, each a line as `differences` writes it, and why that is well."""

    requests: tuple[str, ...]
    lines: tuple[str, ...]
    reason: str


NO_GRAMMAR_IN_THINKING = (
    "vLLM applies a grammar to the thinking only with a server flag, enable_in_reasoning, under which the forced calls "
    "of 20-tool-*-think would not be thought about any more. So its random model samples no end of thinking here; "
    "think-then-answer below has one."
)

ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        requests=("22-think-n",),
        lines=(
            'reply choices[].finish_reason: vllm "length"; scripted "stop"',
            "reply choices[].message.content: vllm null; scripted string",
            "reply choices[].message.reasoning: vllm null; scripted string",
            "reply choices[].stop_reason: vllm null; scripted integer",
        ),
        reason=NO_GRAMMAR_IN_THINKING,
    ),
    Allowed(
        requests=("22-think-s",),
        lines=(
            (
                "order of choice 0: vllm role empty empty+length [DONE]; "
                "scripted role empty reasoning empty content empty+stop [DONE]"
            ),
        ),
        reason=NO_GRAMMAR_IN_THINKING,
    ),
)


def thinks_then_answers(*, stream: bool) -> WireRequest:
    """Ask for a reply that thinks and then answers.

    vLLM applies a grammar only once thinking is over, so a bias ends the thinking, and then the grammar masks the
    biased token and writes the answer. The tiny model's best logits are about 4 and </think>'s about 1: with 2 to 2.5
    it wins after 35 tokens, with 3.5 at once, with 1 never within the limit. Behind the answer the grammar allows both
    of the model's end tokens, nearly equal to it: which one wins differs from processor to processor, and of the second
    one vLLM gives the id as `stop_reason`.
    """
    return WireRequest(
        name=f"think-then-answer-{'s' if stream else 'n'}",
        body={
            **BASE,
            "max_tokens": 60,
            "stream": stream,
            "logit_bias": {Token(151668, "</think>"): 2.25, Token(151643, "<|endoftext|>"): -100},
            "structured_outputs": {"regex": "\\n\\nalpha beta"},
        },
        script={"noncanonical": 0.0, "rule": [{"reply": {"raw": " many words</think>\n\nalpha beta"}}]},
    )


# 59-nokey is about a server with a key, and ours has none.
ASKED = [
    *(request for request in REQUESTS if request.api_key is None),
    thinks_then_answers(stream=False),
    thinks_then_answers(stream=True),
]


def allowed(name: str) -> set[str]:
    """Return the differences that a request must show."""
    return {line for row in ALLOWED if name in row.requests for line in row.lines}


async def ask(base_url: str, request: WireRequest, engine: EngineName) -> Exchange:
    """Send a request to an engine and read its answer to the end."""
    body: Any = body_for(request, engine)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **request.headers}
    async with (
        asyncio.timeout(ASK_LIMIT_S),
        aiohttp.ClientSession() as http,
        http.request(request.method, base_url + request.path, data=data, headers=headers) as reply,
    ):
        content_type = reply.headers.get("Content-Type", "")
        return Exchange(status=reply.status, content_type=content_type, body=await reply.read())


async def ask_scripted(request: WireRequest) -> Exchange:
    """Send a request to a scripted engine of its own, which is told what to say."""
    engine = ScriptedEngine(parse_rules(request.script), model=MODEL_NAME, max_model_len=MAX_MODEL_LEN)
    url = await engine.start()
    try:
        return await ask(url, request, "scripted")
    finally:
        await engine.close()


@pytest.mark.parametrize("wire_request", ASKED, ids=lambda request: request.name)
async def test_the_scripted_engine_answers_in_vllms_shape(vllm, wire_request):
    real = await ask(vllm.base_url, wire_request, "vllm")
    scripted = await ask_scripted(wire_request)
    assert set(differences(real, scripted)) == allowed(wire_request.name)


def test_every_row_is_about_requests_that_are_asked():
    names = {name for row in ALLOWED for name in row.requests}
    assert names <= {request.name for request in ASKED}
    assert all(row.reason for row in ALLOWED)
