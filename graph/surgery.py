"""Forest surgery: the main conversation alone, the points from which it can be resumed, and seeds cut at them.

Rules
1. A point names the first messages of one call's request, and whether that call's reply follows them. So a seed is made
   of what the agent itself sent, in its own spelling: nothing is rendered or put together from the forest.
2. There is a point
   - behind the results of each reply's tool calls, where the next request of main brings them (`tool_result`);
   - before and after each compaction of main (`before_compaction`, `after_compaction`);
   - where main parts: behind what all branches of a fork have in common (`fork`).
   Points with equal messages are one, of several kinds. `k` counts them in the order of their calls.
3. A seed holds no tool call without a result, wherever it stands, no result without its call, no assistant message with
   nothing in it, and nothing that is no message. Results stand right behind their calls. Nothing else is changed.
4. A tool result can be resumed if something of its turn is left after rule 3, so that every seed of that kind ends with
   a tool result.

Theory. Calls of the main conversation that were discarded, failed, stopped or broke off unused are no place to resume
from. What stands behind is what the next call sent; a last reply that nobody answered has nothing behind it, so a
rollout that ended well is resumed from before its last reply, or, whole, with a new instruction (`recheck`).

What a seed awaits is told by its end: behind a user message or a tool result, the model's reply; behind the model's
own words, a user.

Chat messages here are those of OpenAI's chat completions, as parsed from JSON; media in them stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from graph.graph import Graph
from graph.messages import chain, from_chat
from graph.records import Message

Chat = dict[str, Any]
"""One message of OpenAI's chat completions."""

Kind = Literal["tool_result", "before_compaction", "after_compaction", "fork", "whole"]
KINDS: tuple[Kind, ...] = ("tool_result", "before_compaction", "after_compaction", "fork", "whole")
Awaits = Literal["reply", "user"]

WHOLE = "whole"
"""Names the end of the whole rollout, where the other points have numbers."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A place from which a rollout can be resumed."""

    # Its number among the rollout's; None for the end of the whole.
    k: int | None = None
    kinds: tuple[Kind, ...]
    # The call whose request the messages are from, how many of them, and whether its reply comes behind them.
    call: int
    n_messages: int
    reply: bool = False
    awaits: Awaits


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """What a new rollout starts from."""

    # Where it comes from, so that what comes of it can be told from a rollout of its own.
    rollout: str
    k: int | None
    kinds: tuple[Kind, ...]
    awaits: Awaits
    messages: tuple[Chat, ...]
    # The tools of the request that it was cut from, as they were sent; None where it had none.
    tools: Any = None


def main_path(graph: Graph) -> tuple[int, ...]:
    """Return the calls of the main conversation that led somewhere, in order of arrival.

    Left out: calls that were discarded, failed, stopped or still run, and broken or undelivered ones that no later call
    went on from.
    """
    forest = graph.forest
    return tuple(
        n
        for n in graph.calls_of("main")
        if n not in forest.discarded
        and (n in forest.came_back or (forest.calls[n].status == "complete" and forest.delivered(n) is not False))
    )


def points(graph: Graph) -> tuple[Point, ...]:
    """Return where a rollout's main conversation can be resumed, in order of the calls."""
    found: dict[bytes, tuple[tuple[int, int, bool], list[Kind]]] = {}

    def add(kind: Kind, call: int, n_messages: int, *, reply: bool = False) -> None:
        messages = _canonical(graph, call, n_messages, reply=reply)
        left = _mended(messages)
        if not any(message.role != "system" for message in left):
            return
        if kind == "tool_result" and left[-1].role != "tool":
            return
        _, kinds = found.setdefault(chain(left)[-1], ((call, n_messages, reply), []))
        if kind not in kinds:
            kinds.append(kind)

    path = main_path(graph)
    for n in path:
        messages = graph.forest.calls[n].messages
        if messages and messages[-1].role == "tool":
            add("tool_result", n, len(messages))
        if graph.forest.links[n].kind == "compaction":
            _around_compaction(graph, n, add)
        elif (brought := _new_results(graph, n)) is not None:
            add("tool_result", n, brought)
    _forks(graph, set(path), add)
    placed = sorted(found.values(), key=lambda item: item[0])
    return tuple(
        Point(
            k=k,
            kinds=tuple(sorted(kinds, key=KINDS.index)),
            call=call,
            n_messages=n_messages,
            reply=reply,
            awaits=_awaits(_mended(_canonical(graph, call, n_messages, reply=reply))),
        )
        for k, ((call, n_messages, reply), kinds) in enumerate(placed)
    )


def whole(graph: Graph) -> Point | None:
    """Return the end of the main conversation, its last reply included; None where main has no reply."""
    path = [n for n in main_path(graph) if graph.forest.calls[n].reply is not None]
    if not path:
        return None
    last = max(path, key=lambda n: (graph.forest.calls[n].ended or 0, n))
    n_messages = len(graph.forest.calls[last].messages)
    left = _mended(_canonical(graph, last, n_messages, reply=True))
    return Point(kinds=("whole",), call=last, n_messages=n_messages, reply=True, awaits=_awaits(left))


def cut(
    rollout: str,
    point: Point,
    *,
    messages: Sequence[Any],
    reply: Any = None,
    tools: Any = None,
    instruction: str | None = None,
) -> Seed:
    """Cut the seed at a point.

    `messages` are the request's of the point's call, chat messages as parsed from JSON; `reply` its assistant message;
    `instruction` a user message that comes behind. Raises ValueError where the messages are fewer than the point has,
    or its reply is missing.
    """
    if len(messages) < point.n_messages or (point.reply and reply is None):
        raise ValueError(f"call {point.call} of rollout {rollout} has too few messages for this point")
    taken = [*messages[: point.n_messages], *([reply] if point.reply else [])]
    return seed_of(rollout, point.k, point.kinds, taken, tools=tools, instruction=instruction)


def seed_of(
    rollout: str,
    k: int | None,
    kinds: tuple[Kind, ...],
    messages: Sequence[Any],
    *,
    tools: Any = None,
    instruction: str | None = None,
) -> Seed:
    """Make a seed of messages that were cut already: mend them, and put the instruction behind them."""
    left = mended(messages)
    if instruction is not None:
        left.append({"role": "user", "content": instruction})
    return Seed(
        rollout=rollout,
        k=k,
        kinds=kinds,
        awaits=_awaits([from_chat(message) for message in left]),
        messages=tuple(left),
        tools=tools,
    )


def mended(messages: Iterable[Any]) -> list[Chat]:
    """Return chat messages without what is malformed: see rule 3. What is left is the same object, or a copy of it."""
    given = list(messages)
    left: list[Chat] = []
    for place, kept in _keep([from_chat(message) for message in given]):
        message = given[place]
        if kept is not None:
            message = {name: value for name, value in message.items() if name not in ("tool_calls", "function_call")}
            calls = given[place].get("tool_calls")
            # A call of the older form is one that has no id, and is read behind the others.
            objects = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
            if chosen := [objects[i] for i in kept if i < len(objects)]:
                message["tool_calls"] = chosen
            if any(i >= len(objects) for i in kept):
                message["function_call"] = given[place]["function_call"]
        left.append(message)
    return left


def to_chat(message: Message) -> Chat:
    """Spell a canonical message as chat. Media are not in it, and are left out."""
    chat: Chat = {"role": message.role, "content": message.text}
    if message.reasoning:
        chat["reasoning_content"] = message.reasoning
    if message.tool_calls:
        chat["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    return chat


# -- points -----------------------------------------------------------------------------------------------------------


def _canonical(graph: Graph, call: int, n_messages: int, *, reply: bool) -> list[Message]:
    said = graph.forest.calls[call]
    messages = list(said.messages[:n_messages])
    return [*messages, said.reply] if reply and said.reply is not None else messages


def _new_results(graph: Graph, n: int) -> int | None:
    """Return how many messages a request has up to the last tool result that it was the first to bring, where a user
    message stands behind it; None where there is none such."""
    messages = graph.forest.calls[n].messages
    parent = graph.forest.links[n].parent
    known = 0 if parent is None else len(graph.forest.calls[parent].messages)
    for place in range(len(messages) - 1, known - 1, -1):
        if messages[place].role == "assistant":
            return None
        if messages[place].role == "tool":
            return place + 1
    return None


def _around_compaction(graph: Graph, n: int, add: Any) -> None:
    forest = graph.forest
    link = forest.links[n]
    before = link.parent
    if before is not None:
        asked = forest.calls[before].messages
        if before in link.carries:
            # The summary was asked for inside the conversation: before that, without the words that asked.
            own = ("assistant", "tool")
            end = max((place for place, message in enumerate(asked) if message.role in own), default=-1)
            add("before_compaction", before, end + 1)
        else:
            add("before_compaction", before, len(asked), reply=True)
    add("after_compaction", n, len(forest.calls[n].messages))


def _forks(graph: Graph, path: set[int], add: Any) -> None:
    forest = graph.forest
    main = set(graph.calls_of("main"))
    for fork in forest.forks:
        children = [n for n in fork.children if n in main and forest.calls[n].messages]
        # The tries of a retry are one way on, not several.
        if len(children) < 2 or fork.kind == "retry" or not path & {*children, fork.at}:
            continue
        first, *others = [forest.calls[n].messages for n in children]
        common = len(first)
        for other in others:
            same = zip(first, other, strict=False)
            common = min(common, next((i for i, (a, b) in enumerate(same) if a.digest != b.digest), len(other)))
        add("fork", next((n for n in children if n in path), children[0]), common)


def _awaits(messages: Sequence[Message]) -> Awaits:
    last = next((message.role for message in reversed(messages) if message.role != "system"), "system")
    return "user" if last in ("assistant", "system") else "reply"


# -- mending ----------------------------------------------------------------------------------------------------------


def _mended(messages: Sequence[Message]) -> list[Message]:
    left = []
    for place, kept in _keep(messages):
        message = messages[place]
        if kept is not None:
            message = from_chat(to_chat(message) | {"tool_calls": [to_chat(message)["tool_calls"][i] for i in kept]})
        left.append(message)
    return left


def _keep(messages: Sequence[Message]) -> list[tuple[int, tuple[int, ...] | None]]:
    """Return the places of the messages that stay, in their new order, and which of a message's tool calls stay where
    not all do.

    A tool call's result is the first message of role tool that names it, before the next assistant message; one without
    an id answers the first call that nothing answers yet.
    """
    out: list[tuple[int, tuple[int, ...] | None]] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        end = place + 1
        if message.role == "assistant":
            while end < len(messages) and messages[end].role != "assistant":
                end += 1
            answers = _answers(message, messages, range(place + 1, end))
            kept = tuple(i for i in range(len(message.tool_calls)) if i in answers)
            if kept or message.text.strip() or message.media:
                out.append((place, None if len(kept) == len(message.tool_calls) else kept))
            out += [(answer, None) for answer in sorted(answers.values())]
            # What else was said meanwhile comes behind the results.
            out += [(i, None) for i in range(place + 1, end) if messages[i].role != "tool" and messages[i].role]
        elif message.role and message.role != "tool":
            out.append((place, None))
        place = end
    return out


def _answers(message: Message, messages: Sequence[Message], places: range) -> dict[int, int]:
    """Return the place of the result of each tool call that has one."""
    answers: dict[int, int] = {}
    open_: dict[str | None, list[int]] = {}
    for i, call in enumerate(message.tool_calls):
        same = open_.setdefault(call.id, [])
        # A second call with the same id could be answered by nobody.
        if call.id is None or not same:
            same.append(i)
    for place in places:
        if messages[place].role != "tool":
            continue
        waiting = open_.get(messages[place].tool_call_id)
        if waiting:
            answers[waiting.pop(0)] = place
    return answers
