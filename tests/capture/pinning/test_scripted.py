"""Drawn conversations, pinned at the scripted model: each prompt begins with all that was sampled, or it is said why.

The model itself is asked, without a socket: it renders, takes ids, and samples as it does behind one, with as many ids
that the tokeniser would not have given as can be.
"""

from __future__ import annotations

import asyncio
import json

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.errors import EngineError
from capture.pinning.fallback import Fallback
from capture.pinning.parents import Parents
from capture.pinning.pinner import Pinner, Recorded
from capture.pinning.wire import Tokenize, shape
from capture.scripted.model import ScriptedModel
from capture.scripted.request import RequestError
from capture.scripted.rules import Rules
from graph.messages import from_chat
from graph.records import Call

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "read")
]


class Engine:
    """The scripted model as an engine without a socket."""

    def __init__(self):
        self.model = ScriptedModel(
            Rules(), name="m", max_model_len=16_384, mode="processed", seed=0, noncanonical=0.5
        )  # fmt: skip

    async def ask(self, path, body):
        data = json.loads(body)
        if path == "/tokenize":
            try:
                ids = self.model.prompt(self.model.parse({"messages": [], **data})).ids
            except RequestError as error:
                return 400, msgspec.json.encode(error.body)
            return 200, msgspec.json.encode({"tokens": ids})
        if path == "/v1/chat/completions":
            return 200, msgspec.json.encode(self.chat(data))
        raise EngineError("engine_unreachable", path)

    def chat(self, data):
        asked = self.model.parse({**data, "return_token_ids": True, "stream": False})
        prompt = self.model.prompt(asked)
        return self.model.write(asked, prompt, self.model.reply(asked), created=0, given_id=None).body()


class Rollout:
    """Calls of one agent, pinned where they can be."""

    def __init__(self, *, thinking, tools):
        self.engine = Engine()
        self.pinner = Pinner(self.engine.ask, model="m")
        self.parents, self.calls = Parents(), {}
        self.fixed = {"model": "m", "chat_template_kwargs": {"enable_thinking": thinking}}
        if tools:
            self.fixed["tools"] = TOOLS

    async def load(self, n):
        return self.calls.get(n)

    async def call(self, messages, *, limit):
        """One call; return its reply, its parent's ids (None: not pinned), and why not."""
        fields = {name: json.dumps(value).encode() for name, value in {**self.fixed, "messages": messages}.items()}
        pin, why = None, None
        canonical = tuple(map(from_chat, messages))
        try:
            pin = await self.pinner.pin(fields, canonical, self.parents, self.load, engine="e", weights=None)
        except Fallback as fallback:
            why = fallback.reason
        body = {**self.fixed, "messages": messages, "max_tokens": limit}
        if pin is not None:
            body |= {name: json.loads(value) for name, value in Tokenize().pin(pin.ids).items()}
        form = self.engine.chat(body)
        choice = form["choices"][0]
        prompt, sampled = form["prompt_token_ids"], choice["token_ids"]
        n = len(self.calls)
        reply = from_chat({"role": "assistant", **{k: v for k, v in choice["message"].items() if v is not None}})
        self.parents.add(Call(n=n, status="complete", arrived=n, messages=canonical, reply=reply))
        self.calls[n] = Recorded(
            ids=np.array(prompt + sampled, np.int32), n_sampled=len(sampled), finish_reason=choice["finish_reason"],
            stop_reason=choice.get("stop_reason"), shape=shape(fields), stops=False, engine="e", weights=None,
            tool_ids=tuple(call.id for call in reply.tool_calls),
        )  # fmt: skip
        if pin is not None:
            assert prompt == pin.ids.tolist()
        return choice["message"], pin, why


texts = st.text(st.sampled_from("ab <|>\n{}é"), max_size=10) | st.sampled_from(
    ["<|im_end|>", "<think>", "</think>\n\n", "Zebra", "call the tool look", "use read"]
)


@st.composite
def plays(draw):
    """What an agent does turn by turn: the user's words, the tool's results, and how it treats its history."""
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "text": texts,
                    "limit": st.sampled_from([3, 40, 400]),
                    "do": st.sampled_from(["keep", "keep", "keep", "keep", "edit", "prune", "system"]),
                }
            ),
            min_size=2,
            max_size=5,
        )
    )


@settings(max_examples=60, deadline=None)
@given(plays(), st.booleans(), st.booleans())
def test_a_kept_history_never_drifts(play, thinking, tools):
    async def run():
        rollout = Rollout(thinking=thinking, tools=tools)
        await rollout.pinner.look()
        assert rollout.pinner.off is None, rollout.pinner
        messages = [{"role": "user", "content": "hi"}]
        for n, turn in enumerate(play):
            message, pin, why = await rollout.call(messages, limit=turn["limit"])
            spoilt = n and play[n - 1]["do"] in ("edit", "prune", "system")
            if pin is not None:
                parent = rollout.calls[pin.parent]
                assert pin.ids[: len(parent.ids)].tolist() == parent.ids.tolist()
            elif n and not spoilt:
                # A kept history: the reasons that are left have to do with how the reply ended.
                assert why in ("length-in-tool-call", "end-token-mismatch"), (why, turn)
            else:
                assert why == "first-turn" if not n else why is not None
            reply = {"role": "assistant", "content": message["content"] or ""}
            if calls := message.get("tool_calls"):
                reply["tool_calls"] = calls
            new = [{"role": "tool", "tool_call_id": call["id"], "content": turn["text"]} for call in calls or ()]
            new = new or [{"role": "user", "content": turn["text"] or "go on"}]
            if turn["do"] == "edit":
                reply = {"role": "assistant", "content": f"edited {n}"}
                new = [{"role": "user", "content": "go on"}]
            elif turn["do"] == "prune":
                messages = messages[-1:] if messages[-1]["role"] == "user" else [{"role": "user", "content": "pruned"}]
                reply = {"role": "assistant", "content": f"pruned {n}"}
                new = [{"role": "user", "content": "go on"}]
            elif turn["do"] == "system":
                messages = [{"role": "system", "content": f"It is {n} o'clock."}, *messages]
            messages = [*messages, reply, *new]

    asyncio.run(run())
