"""Requests whose answers show the whole of vLLM's wire, as data: for the engine itself and for its stand-in.

Each has the name of the recorded exchange in tests/fixtures/vllm_wire/ that it reproduces. The tiny random model under
vLLM samples what it samples; what the scripted engine is to sample in its place is said by `script`, a rules file's
data, so that both replies take one course: cut inside the thinking, a call, an end token.

Ids differ between the two vocabularies. A `Token` stands for one token in both and is resolved by `body_for`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from capture.scripted.tokeniser import Tokeniser

EngineName = Literal["vllm", "scripted"]

MODEL = "tiny"
MAX_MODEL_LEN = 16384


@dataclass(frozen=True)
class Token:
    """One token: its id in Qwen3's vocabulary, and its text, or its byte, in the scripted engine's."""

    vllm: int
    scripted: str | int


@dataclass(frozen=True)
class OnlyVllm:
    """A field that only vLLM is sent: it holds the random model to the course that the script takes."""

    value: Any


@dataclass(frozen=True, kw_only=True)
class WireRequest:
    """A request, and what the scripted engine is told to say to it."""

    name: str
    method: str = "POST"
    path: str = "/v1/chat/completions"
    # JSON with tokens in it, bytes as they are, or nothing.
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    script: dict[str, Any] = field(default_factory=dict)
    # The server's own key, where it has one.
    api_key: str | None = None
    # What vLLM must be started with, beyond the flags of engine_vllm.
    flags: tuple[str, ...] = ()


_TOKENISER = Tokeniser()


def body_for(request: WireRequest, engine: EngineName) -> Any:
    """Give a request's body with each `Token` replaced by its id in the engine's vocabulary."""

    def resolve(value: Any) -> Any:
        if isinstance(value, OnlyVllm):
            return resolve(value.value)
        if isinstance(value, Token):
            if engine == "vllm":
                return value.vllm
            if isinstance(value.scripted, int):
                return value.scripted
            (token,) = _TOKENISER.encode(value.scripted)
            return token
        if isinstance(value, dict):
            sent = {key: inner for key, inner in value.items() if engine == "vllm" or not isinstance(inner, OnlyVllm)}
            return {str(resolve(key)): resolve(inner) for key, inner in sent.items()}
        if isinstance(value, list):
            return [resolve(inner) for inner in value]
        return value

    return resolve(request.body)


def _says(**reply: Any) -> dict[str, Any]:
    # Canonical ids, so that which chunk shows what does not hang on a draw.
    return {"noncanonical": 0.0, "rule": [{"reply": reply}]}


ASK = [{"role": "user", "content": "Say hi in one word."}]
# What a model says that never stops thinking, and is cut.
RAMBLE = " and so the thought goes on from one word to the next word, without an end that anyone has seen so far" * 4
# Free to choose, the random model samples half characters and other chance things. It is given six words.
WORDS = OnlyVllm([279, 304, 389, 825, 3409, 15588])
BASE: dict[str, Any] = {
    "model": MODEL,
    "messages": ASK,
    "temperature": 0,
    "seed": 1,
    "max_tokens": 12,
    "return_token_ids": True,
    "logprobs": True,
}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "w",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
RAMBLING = {**BASE, "allowed_token_ids": WORDS}
CHOICE = {
    **BASE,
    **NO_THINKING,
    "structured_outputs": {"choice": ["alpha beta gamma"]},
    "logit_bias": OnlyVllm({151645: 50}),
}
UNDECIDED = [*ASK, {"role": "assistant", "content": "Hi the"}]

FULL_STOP = Token(13, ".")
END = Token(151645, "<|im_end|>")
# Bytes that are no character, alone or in any order.
STRAY_BYTES = [Token(id_, 0xA1 + n) for n, id_ in enumerate((94, 95, 96, 97, 98, 99, 160, 161))]


def _plain() -> list[WireRequest]:
    rambles = _says(raw=RAMBLE)
    return [
        WireRequest(name="01-chat-plain", body=RAMBLING, script=rambles),
        WireRequest(name="02-chat-stream", body={**RAMBLING, "stream": True}, script=rambles),
        WireRequest(
            name="03-chat-stream-usage",
            body={
                **RAMBLING,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            },
            script=rambles,
        ),
        WireRequest(name="04-chat-top0", body={**RAMBLING, "top_logprobs": 0}, script=rambles),
        WireRequest(name="04-chat-top1", body={**RAMBLING, "top_logprobs": 1}, script=rambles),
        *(
            WireRequest(
                name="05-n2" + ("-stream" if stream else ""),
                body={**RAMBLING, "temperature": 1, "max_tokens": 5, "n": 2, **({"stream": True} if stream else {})},
                script=rambles,
            )
            for stream in (True, False)
        ),
        WireRequest(name="08-max1-stream", body={**RAMBLING, "max_tokens": 1, "stream": True}, script=rambles),
        WireRequest(
            name="09-tokidstr",
            body={**RAMBLING, "max_tokens": 3, "return_tokens_as_token_ids": True, "top_logprobs": 1},
            script=rambles,
        ),
        WireRequest(name="11-promptlp", body={**RAMBLING, "max_tokens": 2, "prompt_logprobs": 0}, script=rambles),
        WireRequest(
            name="12-continue",
            body={
                **RAMBLING,
                "messages": UNDECIDED,
                "max_tokens": 2,
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
            script=rambles,
        ),
        WireRequest(
            name="12-echo", body={**RAMBLING, "messages": UNDECIDED, "max_tokens": 2, "echo": True}, script=rambles
        ),
        WireRequest(
            name="12-nogen", body={**RAMBLING, "max_tokens": 2, "add_generation_prompt": False}, script=rambles
        ),
        WireRequest(
            name="12-prompttext", body={**RAMBLING, "max_tokens": 2, "return_prompt_text": True}, script=rambles
        ),
        WireRequest(
            name="13-chat-batch",
            path="/v1/chat/completions/batch",
            body={
                "model": MODEL,
                "messages": [ASK, ASK],
                "max_tokens": 2,
                "return_token_ids": True,
                "allowed_token_ids": WORDS,
            },
            script=rambles,
        ),
    ]


def _ends() -> list[WireRequest]:
    two = {**BASE, "temperature": 1, "seed": 3, "max_tokens": 6, "allowed_token_ids": [FULL_STOP, END]}
    stop = {**CHOICE, "stop": ["eta ga"]}
    utf8 = {**BASE, **NO_THINKING, "temperature": 1, "seed": 2, "max_tokens": 6, "allowed_token_ids": STRAY_BYTES}
    return [
        # So large a bias settles what is drawn: a full stop first, then the end; or no end at all.
        WireRequest(name="06-eos-stream", body={**two, "stream": True, "min_tokens": 1, "logit_bias": {END: 100}}),
        WireRequest(name="06-eos", body={**two, "logit_bias": {FULL_STOP: 100}}),
        WireRequest(name="07-choice", body=CHOICE),
        WireRequest(name="07-stop-False", body={**stop, "include_stop_str_in_output": False}),
        WireRequest(name="07-stop-True", body={**stop, "include_stop_str_in_output": True}),
        WireRequest(name="07-stop-stream", body={**stop, "stream": True}),
        WireRequest(
            name="07-stopids",
            # The stop id, as soon as it may come.
            body={**CHOICE, "stop_token_ids": [Token(13440, "ta")], "logit_bias": OnlyVllm({13440: 50})},
            script=_says(raw="alpha beta gamma"),
        ),
        WireRequest(name="10-utf8-stream", body={**utf8, "stream": True}),
        WireRequest(name="10-utf8", body=utf8),
    ]


def _tools() -> list[WireRequest]:
    # A call that does not end before the limit, its arguments a text of many words.
    half = '<tool_call>{"name": "get_weather", "arguments": "' + RAMBLE
    # A quote where one may stand, and behind it words for ever: `"`, " the", " word".
    quoting = OnlyVllm({1: 50, 279: 100, 3409: 100})
    named = {"type": "function", "function": {"name": "get_weather"}}
    forced = [
        WireRequest(
            name=f"20-tool-{label}-{'s' if stream else 'n'}-{'think' if thinking else 'nothink'}",
            body={
                **BASE,
                "max_tokens": 60,
                "tools": [WEATHER],
                "tool_choice": choice,
                "stream": stream,
                "chat_template_kwargs": {"enable_thinking": thinking},
                **({"allowed_token_ids": WORDS} if thinking or label == "auto" else {"logit_bias": quoting}),
            },
            script=_says(raw=RAMBLE if thinking or label == "auto" else half),
        )
        for label, choice in (("auto", "auto"), ("named", named), ("required", "required"))
        for stream in (False, True)
        for thinking in (False, True)
    ]
    # A blank of its own before the value is held back, as the real tokeniser's are.
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Paris"}}\n</tool_call>'
    regex = r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Rome)"\}\}\n</tool_call>'
    written = [
        WireRequest(
            name=f"21-hermes-regex-{'s' if stream else 'n'}",
            body={
                **BASE,
                **NO_THINKING,
                "max_tokens": 60,
                "tools": [WEATHER],
                "tool_choice": "auto",
                "stream": stream,
                "structured_outputs": {"regex": regex},
                # A blank of its own, and the second of the end tokens.
                "logit_bias": OnlyVllm({220: 50, 151643: 50}),
            },
            script=_says(raw=call, end="<|endoftext|>"),
        )
        for stream in (False, True)
    ]
    return forced + written


def _thinking() -> list[WireRequest]:
    requests = []
    # So that the constraint, and with it the think tags, covers the reasoning too.
    in_reasoning = ("--structured-outputs-config", '{"enable_in_reasoning": true}')
    biased = {
        **BASE,
        "max_tokens": 60,
        "structured_outputs": {"regex": r"<think>\n[a-z ]{10,20}\n</think>\n\n[A-Za-z ,.]{10,20}"},
        "logit_bias": {Token(151667, "<think>"): 90, Token(151668, "</think>"): 90, Token(151643, "<|endoftext|>"): 50},
    }
    spelled = {
        **BASE,
        **NO_THINKING,
        "max_tokens": 60,
        "structured_outputs": {"regex": r"<think>\nab cd\n</think>\n\nalpha beta"},
        "logit_bias": OnlyVllm({151643: 50}),
    }
    for stream in (False, True):
        suffix = "s" if stream else "n"
        requests += [
            WireRequest(
                name=f"22-think-{suffix}",
                body={**biased, "stream": stream},
                script=_says(raw="<think>\nmany words\n</think>\n\nand an answer", end="<|endoftext|>"),
                flags=in_reasoning,
            ),
            WireRequest(
                name=f"22-think-regex-{suffix}",
                body={**spelled, "stream": stream},
                script=_says(raw="<think>\nab cd\n</think>\n\nalpha beta", end="<|endoftext|>"),
            ),
        ]
    return requests


def _refusals() -> list[WireRequest]:
    one = {**RAMBLING, "max_tokens": 1}
    long = {**BASE, "messages": [{"role": "user", "content": "word " * 17000}]}
    rambles = _says(raw=RAMBLE)
    only_end = {**BASE, "allowed_token_ids": [END]}
    return [
        WireRequest(name="50-maxcomp", body={**only_end, "max_tokens": None, "max_completion_tokens": 20000}),
        WireRequest(name="50-maxtok", body={**only_end, "max_tokens": MAX_MODEL_LEN}),
        WireRequest(name="50-toolong", body=long),
        WireRequest(name="50-toolong-stream", body={**long, "stream": True}),
        WireRequest(name="51-badmodel", body={**BASE, "model": "nope"}),
        WireRequest(
            name="52-ctype",
            body={"model": MODEL, "messages": ASK, "max_tokens": 1},
            headers={"Content-Type": "text/plain"},
        ),
        WireRequest(name="52-malformed", body=b'{"model": "tiny", '),
        WireRequest(name="52-nomsg", body={"model": MODEL}),
        WireRequest(
            name="53-extrabody",
            body={**one, "return_token_ids": None, "logprobs": None, "extra_body": {"return_token_ids": True}},
            script=rambles,
        ),
        WireRequest(name="53-logprobs5", body={**BASE, "logprobs": 5}),
        WireRequest(name="53-top21", body={**BASE, "top_logprobs": 21}),
        WireRequest(name="53-topnolp", body={**BASE, "logprobs": None, "top_logprobs": 2}),
        WireRequest(
            name="53-unknown",
            body={
                **one,
                "zzz_unknown": {"a": 1},
                "metadata": {"a": "b"},
                "store": True,
                "reasoning_effort": "low",
                "service_tier": "auto",
                "prompt_cache_key": "k",
                "safety_identifier": "x",
                "verbosity": "low",
            },
            script=rambles,
        ),
        WireRequest(
            name="54-both", body={**one, "request_id": "body-2"}, headers={"X-Request-Id": "hdr-2"}, script=rambles
        ),
        WireRequest(name="54-ridbody", body={**one, "request_id": "body-1"}, script=rambles),
        WireRequest(name="54-xrid", body=one, headers={"X-Request-Id": "hdr-1"}, script=rambles),
        WireRequest(name="59-nokey", body={**BASE, "max_tokens": 4}, api_key="k"),
    ]


def _side() -> list[WireRequest]:
    return [
        WireRequest(name="60-health", method="GET", path="/health"),
        WireRequest(name="60-v1_models", method="GET", path="/v1/models"),
        WireRequest(name="60-version", method="GET", path="/version"),
        WireRequest(
            name="61-tokenize",
            path="/tokenize",
            body={"model": MODEL, "messages": ASK, "tools": [WEATHER], **NO_THINKING},
        ),
        WireRequest(name="61-tokenize-text", path="/tokenize", body={"model": MODEL, "prompt": "hello<|im_end|>"}),
        WireRequest(
            name="61-detokenize",
            path="/detokenize",
            body={"model": MODEL, "tokens": [Token(151644, "<|im_start|>"), Token(872, "user"[:1]), Token(198, "\n")]},
        ),
    ]


# The chat exchanges that both engines must answer alike, and the rest of what was recorded.
CHAT = tuple(sorted([*_plain(), *_ends(), *_tools(), *_thinking()], key=lambda request: request.name))
OTHERS = (*_refusals(), *_side())
REQUESTS = CHAT + OTHERS
