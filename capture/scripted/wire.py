"""Choices to JSON: the chat completions of vLLM 0.32, whole and streamed. Pure: dicts out, no bytes, no clock.

Rules, as vLLM 0.32 has them (entrypoints/openai/chat_completion/serving.py; seen on a real server)
1. A whole reply has every key, null where there is nothing: `token_ids` and `prompt_token_ids` too when they were
   not asked for. Only `tool_calls` is left out when there are none.
2. A stream begins with one role chunk a choice. It carries `prompt_token_ids` and `prompt_text`, null when they were
   not asked for, and no `token_ids`; every later chunk has those, null when they were not asked for.
3. Then come chunks of one or more tokens, the choices in turn. A chunk whose tokens show nothing has an empty
   `delta`, and is sent only for its ids, its logprobs or its finish. `stop_reason` is in the last one of a choice
   only.
4. `system_fingerprint` is in a choice's last chunk, or, with `include_usage`, in the usage chunk behind all of
   them, which has no choices.
5. Tool calls make the finish `tool_calls` where the sampler stopped, unless `tool_choice` names the tool: then it
   is `stop`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any

import msgspec

from capture.scripted.generation import Choice, label, reasoning_tokens
from capture.scripted.parser import DeltaParser, parse_whole, thinks_on
from capture.scripted.request import ChatRequest
from capture.scripted.sampler import Scored, Scorer
from capture.scripted.tokeniser import Tokeniser

Json = dict[str, Any]


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of one reply share."""

    id: str
    # Seconds since 1970.
    created: int
    model: str
    fingerprint: str
    request: ChatRequest
    prompt_ids: Sequence[int]
    prompt_text: str
    # The last message's text, for `echo`.
    echo: str
    # Tool-call ids are made from the reply's id and this.
    call_seed: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk, None where nothing is to be sent, and how many of its choice's tokens are out with it."""

    chunk: Json | None
    tokens: int


class Writer:
    """Writes one reply, whole or in chunks."""

    def __init__(self, tokeniser: Tokeniser, frame: Frame, choices: Sequence[Choice]) -> None:
        """Take the finished choices; what is written depends on them and on the request alone."""
        self._tokeniser = tokeniser
        self._frame = frame
        self._choices = choices
        self._calls = count(1)

    def __repr__(self) -> str:
        return f"Writer({self._frame.id}, {len(self._choices)} choices)"

    @property
    def longest(self) -> int:
        """The tokens of the longest choice."""
        return max(len(choice.ids) for choice in self._choices)

    def body(self) -> Json:
        """Write the whole reply."""
        frame = self._frame
        request = frame.request
        return {
            "id": frame.id,
            "object": "chat.completion",
            "created": frame.created,
            "model": frame.model,
            "choices": [self._whole(choice) for choice in self._choices],
            "service_tier": None,
            "system_fingerprint": frame.fingerprint,
            "usage": usage(frame.prompt_ids, self._choices) | {"prompt_tokens_details": None},
            "prompt_logprobs": self._prompt_logprobs(),
            "prompt_token_ids": list(frame.prompt_ids) if request.return_token_ids else None,
            "prompt_text": frame.prompt_text if request.return_prompt_text else None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _whole(self, choice: Choice) -> Json:
        request = self._frame.request
        parsed = parse_whole(
            choice.text,
            thinking=request.thinking,
            tools=request.parses_tools,
            forced=request.tool_choice == "required" or request.forced_tool is not None,
        )
        message: Json = {
            "role": request.role,
            "content": parsed.content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": parsed.reasoning if request.include_reasoning else None,
        }
        if request.echo:
            message["content"] = self._frame.echo + (parsed.content or "")
        calls = [
            {
                "id": self._call_id(),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in parsed.calls
        ]
        if calls:
            message["tool_calls"] = calls if request.parallel_tool_calls is not False else calls[:1]
        shows = request.include_reasoning
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice, 0, len(choice.ids)) if request.logprobs and shows else None,
            "finish_reason": self._finish(choice, called=bool(calls), whole=True),
            "stop_reason": choice.stop_reason,
            "token_ids": list(choice.ids) if request.return_token_ids and shows else None,
            "routed_experts": None,
        }

    def _prompt_logprobs(self) -> list[Json | None] | None:
        request = self._frame.request
        wanted = request.prompt_logprobs
        if wanted is None and request.echo and request.logprobs:
            wanted = request.top_logprobs or 0
        if wanted is None:
            return None
        scorer = Scorer(self._tokeniser, (), mode="raw", temperature=None)
        listed: list[Json | None] = []
        for n, token in enumerate(self._frame.prompt_ids):
            scored = scorer.score(token, wanted)
            text = label(self._tokeniser, self._frame.prompt_ids, n)
            entries: Json = {str(token): {"logprob": scored.logprob, "rank": _rank(scored), "decoded_token": text}}
            for place, (other, logprob) in enumerate(scored.others, 1):
                text = self._tokeniser.decode([other])
                entries[str(other)] = {"logprob": logprob, "rank": place, "decoded_token": text}
            listed.append(entries if n else None)
        return listed

    def _finish(self, choice: Choice, *, called: bool, whole: bool) -> str:
        if choice.finish_forced:
            return choice.finish
        request = self._frame.request
        if request.forced_tool is not None:
            return choice.finish
        if whole and (request.tool_choice == "required" and choice.finish == "stop"):
            return "tool_calls"
        # A whole reply with calls says so even where it was cut behind them.
        return "tool_calls" if called and (whole or choice.finish == "stop") else choice.finish

    def opening(self) -> Iterator[Json]:
        """Write the role chunks, and the echo where one is asked for."""
        frame = self._frame
        request = frame.request
        for choice in self._choices:
            delta = {"role": request.role, "content": ""}
            chunk = self._chunk(choice, {"delta": delta, "logprobs": None, "finish_reason": None}, 0)
            yield chunk | {
                "prompt_token_ids": list(frame.prompt_ids) if request.return_token_ids else None,
                "prompt_text": frame.prompt_text if request.return_prompt_text else None,
            }
        if request.echo and frame.echo:
            for choice in self._choices:
                yield self._chunk(
                    choice, {"delta": {"content": frame.echo}, "logprobs": None, "finish_reason": None}, 0
                )

    def steps(self, tokens_per_chunk: int = 1) -> Iterator[Step]:
        """Write the chunks with tokens, the choices in turn, until each has finished."""
        request = self._frame.request
        thinking = request.thinking and thinks_on(self._tokeniser, self._frame.prompt_ids)
        parsers = [
            DeltaParser(
                self._tokeniser,
                thinking=thinking,
                tools=request.parses_tools,
                call_id=self._call_id,
                one_call=request.parallel_tool_calls is False,
            )
            for _ in self._choices
        ]
        for begin in range(0, max(self.longest, 1), tokens_per_chunk):
            for choice, parser in zip(self._choices, parsers, strict=True):
                end = min(begin + tokens_per_chunk, len(choice.ids))
                if begin >= len(choice.ids) and not (begin == 0 and not choice.ids):
                    continue
                # An aborted choice ends in a chunk of its own, without tokens.
                last = end == len(choice.ids) and choice.finish != "abort"
                if begin < end or last:
                    yield Step(chunk=self._tokens(choice, parser, begin, end, last=last), tokens=end)
                if end == len(choice.ids) and choice.finish == "abort":
                    yield Step(chunk=self._tokens(choice, parser, end, end, last=True), tokens=end)

    def _tokens(self, choice: Choice, parser: DeltaParser, begin: int, end: int, *, last: bool) -> Json | None:
        request = self._frame.request
        ids = choice.ids[begin:end]
        delta = parser.feed("".join(choice.texts[begin:end]), ids, last=last)
        if delta is not None and not request.include_reasoning:
            delta.pop("reasoning", None)
            delta = delta or None
        logprobs = None
        if request.logprobs and request.include_reasoning:
            logprobs = self._logprobs(choice, begin, end)
        shows_ids = bool(request.return_token_ids) and request.include_reasoning
        if delta is None and not last and logprobs is None and not shows_ids:
            return None
        body: Json = {"delta": delta or {}, "logprobs": logprobs, "finish_reason": None}
        if last:
            body["finish_reason"] = self._finish(choice, called=parser.called, whole=False)
            body["stop_reason"] = choice.stop_reason
        body["token_ids"] = list(ids) if shows_ids else None
        chunk = self._chunk(choice, body, end)
        if last and not _asks_usage(request):
            chunk["system_fingerprint"] = self._frame.fingerprint
        return chunk

    def closing(self) -> Iterator[Json]:
        """Write the usage chunk, if one is asked for."""
        if _asks_usage(self._frame.request):
            yield self._envelope() | {
                "choices": [],
                "usage": usage(self._frame.prompt_ids, self._choices),
                "system_fingerprint": self._frame.fingerprint,
            }

    def _envelope(self) -> Json:
        frame = self._frame
        return {"id": frame.id, "object": "chat.completion.chunk", "created": frame.created, "model": frame.model}

    def _chunk(self, choice: Choice, body: Json, tokens: int) -> Json:
        chunk = self._envelope() | {"choices": [{"index": choice.index} | body]}
        options = self._frame.request.stream_options
        if _asks_usage(self._frame.request) and options is not None and options.continuous_usage_stats:
            chunk["usage"] = _running_usage(self._tokeniser, self._frame, choice, tokens)
        return chunk

    def _call_id(self) -> str:
        return f"chatcmpl-tool-{hex_id(self._frame.call_seed, next(self._calls))}"

    def _logprobs(self, choice: Choice, begin: int, end: int) -> Json:
        return {"content": [self._entry(choice.scores[n], choice.labels[n]) for n in range(begin, end)]}

    def _entry(self, scored: Scored, label: str) -> Json:
        request = self._frame.request
        entry = self._candidate(scored.token, scored.logprob, label)
        wanted = request.top_logprobs or 0
        top = [dict(entry)] if wanted else []
        for token, logprob in scored.others[: wanted - 1] if wanted else ():
            top.append(self._candidate(token, logprob, self._tokeniser.decode([token])))
        if request.return_tokens_as_token_ids:
            # vLLM keeps the true bytes in the entry itself and spells the name in the alternatives.
            entry["bytes"] = list(label.encode())
        return entry | {"top_logprobs": top}

    def _candidate(self, token: int, logprob: float, text: str) -> Json:
        if self._frame.request.return_tokens_as_token_ids:
            text = f"token_id:{token}"
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def joined(bodies: Sequence[Json]) -> Json:
    """Join whole replies to one with a choice each, as vLLM's batch route does: no prompt ids, no usage details."""
    counts = {key: sum(body["usage"][key] for body in bodies) for key in _COUNTS}
    choices = [body["choices"][0] | {"index": n} for n, body in enumerate(bodies)]
    nothing = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return bodies[0] | {"choices": choices, "usage": counts | nothing, "prompt_token_ids": None}


_COUNTS = ("prompt_tokens", "total_tokens", "completion_tokens")


def hex_id(seed: str, n: int) -> str:
    """Give 16 hexadecimal digits, other ones for each seed and number."""
    return blake2b(f"{seed}/{n}".encode(), digest_size=8).hexdigest()


def error(message: str, *, status: int = 500, kind: str = "InternalServerError") -> Json:
    """Write an error object, as a body or as an event in a stream."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _rank(scored: Scored) -> int:
    """Give a rank that goes with the logprob: 1 for the likeliest."""
    return 1 + int(min(-scored.logprob, 10.0) ** 3)


def _asks_usage(request: ChatRequest) -> bool:
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def usage(prompt_ids: Sequence[int], choices: Sequence[Choice]) -> Json:
    """Count tokens; `completion_tokens` is the sum over the choices."""
    sampled = sum(len(choice.ids) for choice in choices)
    return {
        "prompt_tokens": len(prompt_ids),
        "total_tokens": len(prompt_ids) + sampled,
        "completion_tokens": sampled,
        "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in choices)},
    }


def _running_usage(tokeniser: Tokeniser, frame: Frame, choice: Choice, tokens: int) -> Json:
    thought = 0
    if frame.request.thinking and tokens:
        thought = reasoning_tokens(tokeniser, choice.ids[:tokens])
    return {
        "prompt_tokens": len(frame.prompt_ids),
        "total_tokens": len(frame.prompt_ids) + tokens,
        "completion_tokens": tokens,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
