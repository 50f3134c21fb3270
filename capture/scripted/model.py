"""The model without the sockets: a checked request in, a reply's writer out.

What changes from call to call is kept here and nowhere else: how often each rule was used, how often each draw was
made, and the number of replies, of which their ids are made.
"""

from __future__ import annotations

from typing import Any

import msgspec

from capture.scripted import builtin, wire
from capture.scripted.generation import generate
from capture.scripted.request import ChatRequest, RequestError, parse_chat
from capture.scripted.rules import Reply, Rules, Seen, fill, matches
from capture.scripted.sampler import Draws, LogprobsMode, Prefix
from capture.scripted.template import Encoder, TemplateError, render, text_of
from capture.scripted.tokeniser import Tokeniser

# What `/version` says, and the beginning of every `system_fingerprint`.
VERSION = "scripted-1"

# The context length in tokens, unless another is asked for.
MAX_MODEL_LEN = 131_072


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered prompt: ids and text."""

    ids: list[int]
    text: str


class ScriptedModel:
    """A model that says what its rules say. The same requests in the same order give the same replies."""

    def __init__(
        self,
        rules: Rules,
        *,
        name: str,
        max_model_len: int,
        mode: LogprobsMode,
        seed: int,
        noncanonical: float | None = None,
    ) -> None:
        """Take the rules. `noncanonical` overrides their own probability."""
        self.name = name
        self.max_model_len = max_model_len
        self.tokeniser = Tokeniser()
        self._rules = rules
        self._noncanonical = rules.noncanonical if noncanonical is None else noncanonical
        self._mode: LogprobsMode = mode
        self._seed = seed
        self._encoder = Encoder(self.tokeniser)
        self._draws = Draws()
        self._used = [0] * len(rules.rules)
        self._replies = 0
        script = msgspec.json.encode(rules).decode()
        self._fingerprint = f"{VERSION}-{wire.hex_id(script, self.tokeniser.size)[:8]}"

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name}, {len(self._rules.rules)} rules, {self._replies} replies)"

    def parse(self, data: dict[str, Any]) -> ChatRequest:
        """Check a decoded chat request. Raises RequestError."""
        return parse_chat(data, model=self.name, max_model_len=self.max_model_len, vocabulary=self.tokeniser.size)

    def prompt(self, asked: ChatRequest) -> Prompt:
        """Render and encode a request's messages and tools, unless its ids are given. Raises RequestError."""
        if (given := asked.given_prompt) is not None:
            return Prompt(ids=given, text=self.tokeniser.decode(given))
        try:
            segments = render(
                asked.messages,
                asked.tools,
                thinking=asked.thinking,
                generation_prompt=asked.add_generation_prompt,
                continue_final=asked.continue_final_message,
            )
        except TemplateError as error:
            raise RequestError(str(error).replace("{model}", self.name)) from None
        return Prompt(ids=self._encoder.encode(segments), text="".join(segments))

    def fits(self, prompt: Prompt) -> None:
        """Raise RequestError where a prompt leaves no room for a token."""
        most = self.max_model_len
        if len(prompt.ids) >= most:
            message = (
                f"This model's maximum context length is {most} tokens. However, your prompt contains at least "
                f"{most + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
                f"length of the input prompt. (parameter=input_tokens, value={most + 1})"
            )
            raise RequestError(message, param="input_tokens")

    def reply(self, asked: ChatRequest) -> Reply:
        """Choose the reply: of the first rule that matches and is not used up, else a built-in one."""
        seen = _seen(asked, self.name)
        for n, rule in enumerate(self._rules.rules):
            if rule.times is not None and self._used[n] >= rule.times:
                continue
            values = matches(rule.match, seen)
            if values is not None:
                self._used[n] += 1
                return fill(rule.reply, values)
        return builtin.answer(asked, seen)

    def write(
        self, asked: ChatRequest, prompt: Prompt, reply: Reply, *, created: int, given_id: str | None
    ) -> wire.Writer:
        """Sample the choices and give their writer. `created` is in seconds since 1970; `given_id` names the reply."""
        limit = self.max_model_len - len(prompt.ids)
        if asked.output_limit is not None:
            limit = min(limit, asked.output_limit)
        greedy = asked.temperature == 0
        script = msgspec.json.encode(reply)
        prefix = Prefix(prompt.ids)
        # Equal draws differ by their number, unless a seed or temperature 0 asks for equal ones.
        again = 0 if greedy or asked.seed is not None else self._draws.next(prefix.number(script))
        nonce = f"/{self._seed}/{None if greedy else asked.seed}/{again}"
        choices = [
            generate(
                self.tokeniser,
                prompt.ids,
                reply,
                asked,
                index=index,
                key=prefix.number(script + f"{nonce}/{0 if greedy else index}".encode()),
                limit=limit,
                noncanonical=self._noncanonical,
                mode=self._mode,
            )
            for index in range(asked.n or 1)
        ]
        self._replies += 1
        fresh = wire.hex_id(f"reply/{self._seed}", self._replies)
        last = asked.messages[-1]
        frame = wire.Frame(
            id=f"chatcmpl-{given_id or asked.request_id or fresh}",
            created=created,
            model=self.name,
            fingerprint=self._fingerprint,
            request=asked,
            prompt_ids=prompt.ids,
            prompt_text=prompt.text,
            echo=text_of(last.get("content")) if last.get("role") == asked.role else "",
            call_seed=fresh,
        )
        return wire.Writer(self.tokeniser, frame, choices)


def _seen(asked: ChatRequest, model: str) -> Seen:
    last = asked.messages[-1]
    systems = [message for message in asked.messages if message.get("role") in ("system", "developer")]
    return Seen(
        role=str(last.get("role")),
        text=text_of(last.get("content")),
        system="\n".join(text_of(message.get("content")) for message in systems),
        tools=tuple(tool["function"]["name"] for tool in asked.tools or ()),
        tool_choice=asked.tool_choice if isinstance(asked.tool_choice, str) else "named",
        turn=sum(message.get("role") == "assistant" for message in asked.messages),
        model=asked.model or model,
        thinking=asked.thinking,
    )
