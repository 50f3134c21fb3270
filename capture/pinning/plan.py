"""The algorithm: from renderings by the engine to the ids that follow the parent's reply. Sans-I/O.

Words: H the messages before the reply, A the reply as the agent sent it back, N what follows it; P and S the parent's
prompt and sampled ids; R(x) the engine's rendering of x, with its generation prompt unless it is *closed*.

The prompt wanted is P + S + tail, where `tail` is what the template puts behind the reply. It is found by rendering two
own words in the reply's place: what R(h + X + N) and R(h + Y + N) have in common at their ends begins at the latest
where the words ended, so it holds the template's closing of a turn and the tail. h is a dummy history (the system text,
one user message), since most templates render a message alike wherever it stands. Those which don't are found out: the
engine's true rendering R(H + A + N) must end with the tail too, or all is done once more with h = H.

The closing is learnt from the closed renderings of both words. Where the parent's own last id is in it, the tail begins
behind that id; where it isn't (templates without an end of their own, whose models sample the next role's mark), that
id must follow the closing. A reply that ended by length has no end of its own: the whole closing is ours to add.

`plan` is a generator: it yields batches of `Rendering`s to be asked for, all at once where that is possible, and is
sent a list with the ids of each, or None where the template refused. It returns the `Tail`, or raises `Fallback`.

Measured: 18 templates x 25 scenarios, nothing wrong accepted (docs/pinned.md).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from capture.pinning.fallback import Fallback
from graph.records import IntArray

WORDS = ("Zebra", "quilt 77")
"""Our own words: of different lengths, with no letter in common at either end, and in no template."""

Json = dict[str, Any]
Rendered = list["IntArray | None"]


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is to render; `closed`: without a generation prompt."""

    messages: list[Json]
    closed: bool = False


class Ended(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """How the parent's reply ended."""

    sampled: IntArray
    finish_reason: str | None
    # vLLM's: a string for a stop string, a number for one of the request's stop ids; None for the model's own end.
    stop_reason: Any = None


class Tail(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is to follow the parent's prompt and sampled ids."""

    ids: IntArray
    # The engine's true rendering of the whole request: what plain serving would have used as the prompt.
    plain: IntArray


class Closings:
    """The closings learnt so far, by what was rendered; a template's are few, a rollout's one or two."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._kept: dict[str, IntArray] = {}

    def get(self, key: str) -> IntArray | None:
        """Return a closing, None if it is still to be learnt."""
        return self._kept.get(key)

    def put(self, key: str, ids: IntArray) -> None:
        """Keep a closing; the oldest goes when there are too many."""
        if len(self._kept) >= self._most:
            self._kept.pop(next(iter(self._kept)))
        self._kept[key] = ids


def plan(
    messages: Sequence[Json], place: int, ended: Ended, *, closings: Closings, shape: str
) -> Generator[list[Rendering], Rendered, Tail]:
    """Find the tail of a request whose message `place` is the parent's reply.

    `messages` are a chat request's, as they are sent. `shape` stands for all else that a rendering depends on (model,
    tools, template arguments): closings are shared within it. Raises `Fallback`.
    """
    history, reply, new = list(messages[:place]), messages[place], list(messages[place + 1 :])
    end = end_of(ended, reply)
    if not new:
        raise Fallback("nothing-new")
    words = [_own_words(reply, word, cut=end is None) for word in WORDS]
    true = Rendering(messages=[*history, reply, *new])
    plain: IntArray | None = None
    for tried, before in enumerate((_dummy(history), history)):
        asked = [Rendering(messages=[*before, word, *new]) for word in words]
        key = f"{shape}\n{json.dumps([before, words[0]], sort_keys=True)}"
        closing = closings.get(key)
        if closing is None:
            asked += [Rendering(messages=[*before, word], closed=True) for word in words]
        if plain is None:
            asked.append(true)
        got = yield asked
        if plain is None:
            plain = got.pop()
            if plain is None:
                # The plain call will be refused as well; the agent is to see the engine's own words for it.
                raise Fallback("template-refused")
        try:
            if any(one is None for one in got):
                raise Fallback("template-refused")
            ids = [one for one in got if one is not None]
            if closing is None:
                closing = _common_end(ids[2], ids[3])
                closings.put(key, closing)
            tail = _cut(_common_end(ids[0], ids[1]), closing, end)
            if not len(tail):
                raise Fallback("nothing-new")
            if len(tail) > len(plain) or not np.array_equal(plain[-len(tail) :], tail):
                raise Fallback("tail-differs")
        except Fallback as why:
            # The true history can mend what the dummy broke, and nothing else.
            if tried or why.reason in ("end-token-mismatch", "own-words-not-rendered"):
                raise
        else:
            return Tail(ids=tail, plain=plain)
    raise AssertionError("the second try returns or raises")


def end_of(ended: Ended, reply: Json) -> int | None:
    """Return the id by which the parent's reply ended; None where it was cut by length. Raises `Fallback`."""
    if not len(ended.sampled):
        raise Fallback("empty-sample")
    if ended.finish_reason == "length":
        if reply.get("tool_calls"):
            raise Fallback("length-in-tool-call")
        return None
    if ended.finish_reason not in ("stop", "tool_calls"):
        raise Fallback("finish-abort")
    if isinstance(ended.stop_reason, str):
        raise Fallback("stop-string")
    return int(ended.sampled[-1])


def _dummy(history: Sequence[Json]) -> list[Json]:
    first = [history[0]] if history and history[0].get("role") in ("system", "developer") else []
    return [*first, {"role": "user", "content": "u"}]


def _own_words(reply: Json, word: str, *, cut: bool) -> Json:
    """Return a reply of the same shape with our own word in it; of one that was `cut` by length, of text alone."""
    calls = [] if cut else reply.get("tool_calls") or []
    content = reply.get("content")
    said: Json = {"role": "assistant", "content": word if content or not calls else content}
    if calls:
        said["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": json.dumps({"v": word})},
            }
            for call in calls
        ]
    return said


def _common_end(a: IntArray, b: IntArray) -> IntArray:
    """Return the longest common end of two renderings with different words. Raises `Fallback` where they are equal."""
    if np.array_equal(a, b):
        raise Fallback("own-words-not-rendered")
    most = min(len(a), len(b))
    differ = np.flatnonzero(a[len(a) - most :][::-1] != b[len(b) - most :][::-1])
    length = int(differ[0]) if len(differ) else most
    return a[len(a) - length :]


def _cut(common: IntArray, closing: IntArray, end: int | None) -> IntArray:
    """Return what follows the parent's last id in the common end of the renderings with what is new."""
    if end is None:
        if len(closing) and (not len(common) or common[0] != closing[0]):
            raise Fallback("closing-differs")
        return common
    places = np.flatnonzero(closing == end)
    if len(places):
        upto = int(places[-1]) + 1
        if not np.array_equal(common[:upto], closing[:upto]):
            raise Fallback("closing-differs")
        return common[upto:]
    upto = len(closing)
    if not np.array_equal(common[:upto], closing):
        raise Fallback("closing-differs")
    if len(common) <= upto or common[upto] != end:
        raise Fallback("end-token-mismatch")
    return common[upto + 1 :]


def odd(fields: Mapping[str, Any], messages: Sequence[Json]) -> str | None:
    """Return why a chat request can't be pinned whatever it goes on from, by its own fields; None where it can."""
    if not any(message.get("role") == "assistant" for message in messages):
        return "first-turn"
    if (
        fields.get("continue_final_message")
        or fields.get("echo")
        or fields.get("truncate_prompt_tokens") is not None
        or fields.get("add_generation_prompt") is False
    ):
        return "odd-flags"
    if fields.get("kv_transfer_params") or fields.get("input_ids"):
        return "kv-params-taken"
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(
            not isinstance(part, dict) or part.get("type") != "text" for part in content
        ):
            return "non-text"
    return None
