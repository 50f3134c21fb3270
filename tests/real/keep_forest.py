"""Keep a finished rollout as a small file: what the graph reads of it, and what is true of it.

    python -m tests.real.keep_forest http://127.0.0.1:8401 ROLLOUT FILE [LABELS]

The admin key comes from TREERING_ADMIN_KEY. LABELS is a JSON file of `Labels`; without one the graph's own verdict is
written, to be corrected by hand, since a record that holds the graph to its own word tests nothing.

Rules
1. All comes from the control plane: a rollout, its calls with ids, each call as it passed.
2. The order in time is what the timestamps say, as readings of one counter; of an end and an arrival in the same
   millisecond the end comes first.
3. Texts are shortened, ids are not. A text that stands in another stands there afterwards as well, shortened in the
   same way: which text holds which is what roles and compactions are read from. Gaps between such texts are cut.
4. Nothing is written unless the graph of the record, read again from the file's form, says the same as the control
   plane did, for every call, conversation and fork.

The file's form is that of `tests.graph.corpus`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np

from graph import messages as canonical
from graph.tokens import lcp
from graph.view import graph_json
from tests.graph.corpus import ConversationLabel, KeptCall, Labels, Prompt, Record, graph_of, write

# Characters. A stretch longer than this that no other text needs is cut to its ends.
LONG, HEAD, TAIL = 600, 160, 80
# A shorter text stands in another only as a whole line (graph.flow has the same bound).
SHORT = 16
# Ask the control plane: method and path in, JSON out.
Control = Callable[[str, str], Awaitable[Any]]


# -- the control plane → the file --------------------------------------------------------------------------------------


async def fetch(control: Control, rollout: str, *, labels: Labels | None, about: str) -> Record:
    """Make a record of a rollout; `labels` None takes the graph's verdict.

    Raises ValueError where its graph, read again, says anything else than the control plane.
    """
    told = await control("GET", f"/rollouts/{rollout}")
    graph = await control("GET", f"/rollouts/{rollout}/graph")
    passed = [await control("GET", f"/rollouts/{rollout}/calls/{call['n']}") for call in graph["calls"]]
    record = make(told, passed, labels=labels or verdict(graph), about=about)
    found = graph_json(graph_of(record))
    for part, left_out in (("calls", _NOT_KEPT), ("conversations", ()), ("forks", ()), ("drift", ())):
        one, other = _without(graph[part], left_out), _without(found[part], left_out)
        if one != other:
            raise ValueError(f"the record's {part} aren't the rollout's:\n{_first_difference(one, other)}")
    return record


def verdict(graph: dict[str, Any]) -> Labels:
    """Write a graph's verdict as labels, to be corrected by hand."""
    return Labels(
        conversations=tuple(msgspec.convert(found, ConversationLabel) for found in graph["conversations"]),
        parents={call["n"]: call["parent"] for call in graph["calls"] if call["parent"] is not None},
        compactions={call["n"]: tuple(call["carries"]) for call in graph["calls"] if call["link"] == "compaction"},
        discarded=tuple(call["n"] for call in graph["calls"] if call["discarded"]),
    )


def make(told: dict[str, Any], passed: Sequence[dict[str, Any]], *, labels: Labels, about: str) -> Record:
    """Make a record from a rollout and its whole calls as the control plane gives them."""
    asked = {call["n"]: _chat(call) for call in passed}
    requests = {n: request["messages"] for n, request in asked.items()}
    replies = {call["n"]: _reply(call) for call in passed}
    said = [message for messages in requests.values() for message in messages]
    said += [message for message in replies.values() if message is not None]
    short = shortened(text for message in said for text in _texts(message))
    kept: list[dict[str, Any]] = []
    places: dict[str, int] = {}

    def place(message: dict[str, Any]) -> int:
        message = _with_texts(message, short)
        key = json.dumps(message, sort_keys=True)
        if key not in places:
            places[key] = len(kept)
            kept.append(message)
        return places[key]

    readings = _readings(passed)
    calls: list[KeptCall] = []
    whole: dict[int, np.ndarray[Any, Any]] = {}
    for call in passed:
        n, request, reply = call["n"], asked[call["n"]], replies[call["n"]]
        usage = call["usage"] or {}
        calls.append(
            KeptCall(
                **{name: call[name] for name in _AS_THEY_ARE},
                # What went undelivered is said by `delivered`.
                status="complete" if call["status"] == "undelivered" else call["status"],
                arrived=readings[n - call["choice"], "arrived"],
                ended=readings.get((n, "ended")),
                messages=tuple(place(message) for message in requests[n]),
                reply=None if reply is None else place(reply),
                tools=canonical.tools_digest(request.get("tools")),
                tool_names=canonical.tool_names(request.get("tools")),
                body=hashlib.sha256(json.dumps(call["request"], sort_keys=True).encode()).hexdigest()[:32],
                usage_prompt=usage.get("prompt_tokens"),
                usage_sampled=usage.get("completion_tokens"),
                sampling_asked=call["sampling"]["asked"],
                sampling_sent=call["sampling"]["sent"],
                prompt=_prompt(call, whole),
                sampled_ids=call.get("sampled_ids"),
                logprobs=[None if p is None else round(p, 4) for p in call["logprobs"]] if "logprobs" in call else None,
            )
        )
    return Record(
        about=about,
        tier=told["tier"],
        logprobs_mode=told["logprobs_mode"],
        labels=labels,
        messages=kept,
        calls=calls,
    )


_AS_THEY_ARE = (
    "n",
    "choice",
    "id",
    "delivered",
    "dialect",
    "streamed",
    "model_asked",
    "finish_reason",
    "constrained",
    "hints",
)
# Of a call in the graph's form: what a record has no use for.
_NOT_KEPT = ("engine", "weights", "repairs", "started_at", "queued_ms", "first_token_ms", "ended_ms")


def _without(value: Any, names: Iterable[str]) -> Any:
    if isinstance(value, list):
        return [{key: inner for key, inner in each.items() if key not in names} for each in value]
    return value


def _first_difference(one: Any, other: Any) -> str:
    pairs = zip(one, other, strict=False) if isinstance(one, list) else [(one, other)]
    return next((f"{a}\n{b}" for a, b in pairs if a != b), f"{len(one)} and {len(other)} of them")


def _chat(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call's request in the chat dialect: what the agent asked, or what it was translated to."""
    request: dict[str, Any] = call["request"] if "messages" in call["request"] else call["sent"]
    return request


def _reply(call: dict[str, Any]) -> dict[str, Any] | None:
    if call["dialect"] == "responses" and call["reply"] is not None:
        return _of_items(call["reply"]["output"])
    choices = (call["reply"] or {}).get("choices") or ()
    message: dict[str, Any] | None = next((c["message"] for c in choices if c["index"] == call["choice"]), None)
    return message


def _of_items(output: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the chat message that a response's items were made from."""
    texts: dict[str, list[str]] = {"reasoning": [], "message": []}
    calls = []
    for item in output:
        if item["type"] == "function_call":
            name = "__".join(filter(None, (item.get("namespace"), item["name"])))
            function = {"name": name, "arguments": item["arguments"]}
            calls.append({"id": item["call_id"], "type": "function", "function": function})
        else:
            texts[item["type"]] += [part["text"] for part in item["content"]]
    message = {"role": "assistant", "content": "".join(texts["message"]), "reasoning": "".join(texts["reasoning"])}
    return {**message, "tool_calls": calls} if calls else message


def _readings(passed: Sequence[dict[str, Any]]) -> dict[tuple[int, str], int]:
    """Put arrivals and ends in one order; the choices of a request arrived together, as its first."""
    events: list[tuple[int, int, int, str]] = []
    for call in passed:
        start = round(datetime.fromisoformat(call["started_at"]).timestamp() * 1_000)
        if call["choice"] == 0:
            events.append((start, 1, call["n"], "arrived"))
        if call["ended_ms"] is not None:
            events.append((start + int(call["ended_ms"]), 0, call["n"], "ended"))
    return {(n, what): reading for reading, (_, _, n, what) in enumerate(sorted(events))}


def _prompt(call: dict[str, Any], whole: dict[int, np.ndarray[Any, Any]]) -> Prompt | None:
    """Write a prompt by the earlier call that it shares the most with, and note its ids in `whole`."""
    if "prompt_ids" not in call:
        return None
    prompt = np.array(call["prompt_ids"], np.int32)
    shared, of = max(((lcp(ids, prompt), -n) for n, ids in whole.items()), default=(0, 0))
    whole[call["n"]] = np.concatenate([prompt, np.array(call.get("sampled_ids", ()), np.int32)])
    tail = prompt[shared:].tolist()
    return Prompt(of=-of, shared=shared, tail=tail) if shared else Prompt(tail=tail)


# -- shortening --------------------------------------------------------------------------------------------------------


def shortened(texts: Iterable[str]) -> dict[str, str]:
    """Shorten texts together; returns text → shortened text, white space at both ends aside.

    From the shortest on: what stands in a text is put into it as it was shortened itself, and what lies between is cut.
    """
    short: dict[str, str] = {}
    for text in sorted({text.strip() for text in texts if text.strip()}, key=lambda text: (len(text), text)):
        parts = []
        at = 0
        for start, end in _inside(text, short):
            parts += [_cut(text[at:start]), short[text[start:end]]]
            at = end
        short[text] = "".join([*parts, _cut(text[at:])])
    return short


def _inside(text: str, others: Iterable[str]) -> list[tuple[int, int]]:
    """Find where other texts stand in a text, without overlaps, the longest first."""
    if len(text) <= LONG:
        # Nothing of it is cut.
        return []
    found: list[tuple[int, int]] = []
    for other in sorted(others, key=len, reverse=True):
        pattern = re.escape(other) if len(other) >= SHORT else rf"(?m:^[ \t]*){re.escape(other)}(?m:[ \t]*$)"
        for match in re.finditer(pattern, text) if other in text else ():
            start = match.start() + match[0].index(other)
            end = start + len(other)
            if all(end <= a or b <= start for a, b in found):
                found.append((start, end))
    return sorted(found)


def _cut(text: str) -> str:
    if len(text) <= LONG:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[:HEAD]}[… {len(text) - HEAD - TAIL} characters, {digest} …]{text[-TAIL:]}"


def _texts(message: dict[str, Any]) -> Iterator[str]:
    told = canonical.from_chat(message)
    yield told.text
    yield told.reasoning
    for tool in told.tool_calls:
        yield from canonical.strings(tool.arguments)


def _with_texts(message: dict[str, Any], short: dict[str, str]) -> dict[str, Any]:
    """Put shortened texts in a message. Arguments are written anew only where one of their texts is another now."""

    def put(value: Any) -> Any:
        if isinstance(value, str):
            inner = value.strip()
            start = value.index(inner)
            return value[:start] + short.get(inner, inner) + value[start + len(inner) :]
        if isinstance(value, dict):
            return {key: put(each) if key not in _NO_TEXT else each for key, each in value.items()}
        return [put(each) for each in value] if isinstance(value, list) else value

    def put_arguments(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            return call
        if (new := put(arguments)) == arguments:
            return call
        return {**call, "function": {**function, "arguments": json.dumps(new, ensure_ascii=False)}}

    changed = {key: value if key == "tool_calls" else put(value) for key, value in message.items()}
    if message.get("tool_calls"):
        changed["tool_calls"] = [put_arguments(call) for call in message["tool_calls"]]
    return changed


# Keys whose values are names, never shortened.
_NO_TEXT = ("role", "type", "tool_call_id", "id", "name")


async def _fetch(url: str, rollout: str, labels: Labels | None, about: str) -> Record:
    headers = {"Authorization": f"Bearer {os.environ['TREERING_ADMIN_KEY']}"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout, raise_for_status=True) as session:

        async def control(method: str, path: str) -> Any:
            async with session.request(method, path) as answer:
                return await answer.json()

        return await fetch(control, rollout, labels=labels, about=about)


def main(arguments: Sequence[str]) -> None:
    """Keep the rollout that the command line names."""
    if len(arguments) not in (3, 4):
        sys.exit(__doc__)
    url, rollout, file = arguments[:3]
    labels = msgspec.json.decode(Path(arguments[3]).read_bytes(), type=Labels) if len(arguments) == 4 else None
    write(asyncio.run(_fetch(url, rollout, labels, Path(file).stem)), Path(file))


if __name__ == "__main__":
    main(sys.argv[1:])
