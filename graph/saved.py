"""Saved rollouts, a JSON line each: written by `line`, read into points and seeds by `read`.

Two forms are read:
- our own: messages and tool lists once each, and for every resume point the places of its messages among them;
- verifiers' trace (verifiers 0.4.0): a forest of messages, each node with its parent's place. Its points are found
  here, by the rules of `graph.surgery`: behind the last of a reply's tool results, around a `compaction` edge, and
  where a node has several children. Main is the tree of the first node, and every tree that a compaction or a
  continuation leads to from there; trees that a `subagent_call` leads to, and anything else, are not.

Lines are decoded narrowly: what isn't read may have any form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from graph import surgery
from graph.graph import Graph
from graph.surgery import WHOLE, Chat, Kind, Point, Seed

FORMAT = "treering.rollout"
VERSION = 1
"""Of a line's form."""

REPLAY_OF = "replay_of"
"""The label by which a rollout that began with a seed names the rollout that the seed was cut from."""

_SUBAGENT = "subagent_call"
_CONTINUES = ("compaction", "continuation")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a call asked: chat messages and tools, as they were sent."""

    messages: Sequence[Chat]
    tools: Any = None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A resume point of a saved rollout: places of its messages, and of its tools, in the line's lists."""

    k: int | None = None
    kinds: tuple[Kind, ...]
    messages: tuple[int, ...]
    tools: int | None = None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """One saved rollout."""

    format: str = FORMAT
    version: int = VERSION
    rollout: str
    group: str | None = None
    labels: dict[str, str] = {}
    reward: float | None = None
    # The rollout that this one replayed; None for one that began by itself.
    replay_of: str | None = None
    messages: tuple[Any, ...] = ()
    tools: tuple[Any, ...] = ()
    points: tuple[Place, ...] = ()
    # The end of the main conversation.
    whole: Place | None = None

    def place(self, k: int | str) -> Place | None:
        """Return the point of a number, or the end for "whole"; None where there is none such."""
        if k == WHOLE:
            return self.whole
        return next((place for place in self.points if place.k == k), None)

    def seed(self, place: Place, *, instruction: str | None = None) -> Seed:
        """Cut the seed at a point."""
        return surgery.seed_of(
            self.rollout,
            place.k,
            place.kinds,
            [self.messages[each] for each in place.messages],
            tools=None if place.tools is None else self.tools[place.tools],
            instruction=instruction,
        )


def line(graph: Graph, request_of: Callable[[int], Request | None]) -> Saved:
    """Return what is saved of a rollout.

    `request_of` gives what a call asked; where that is None, canonical messages stand for it, without media.
    """
    texts: dict[bytes, int] = {}
    messages: list[Any] = []
    tools: list[Any] = []
    seen: dict[bytes, int] = {}

    def once(value: Any, known: dict[bytes, int], into: list[Any]) -> int:
        at = known.setdefault(msgspec.json.encode(value), len(into))
        if at == len(into):
            into.append(value)
        return at

    def place(point: Point) -> Place:
        call = graph.forest.calls[point.call]
        asked = request_of(point.call) or Request(messages=[surgery.to_chat(message) for message in call.messages])
        taken: list[Any] = list(asked.messages[: point.n_messages])
        if point.reply and call.reply is not None:
            taken.append(surgery.to_chat(call.reply))
        return Place(
            k=point.k,
            kinds=point.kinds,
            messages=tuple(once(message, texts, messages) for message in taken),
            tools=None if asked.tools is None else once(asked.tools, seen, tools),
        )

    rollout = graph.rollout
    end = surgery.whole(graph)
    return Saved(
        rollout=rollout.id,
        group=rollout.group,
        labels=rollout.labels,
        reward=rollout.reward,
        replay_of=rollout.labels.get(REPLAY_OF),
        points=tuple(place(point) for point in surgery.points(graph)),
        whole=None if end is None else place(end),
        messages=tuple(messages),
        tools=tuple(tools),
    )


def read(text: bytes) -> Saved:
    """Read one line of either form. Raises ValueError, with what is wrong, where it is neither."""
    try:
        head = msgspec.json.decode(text, type=_Head)
        if head.format == FORMAT:
            if head.version != VERSION:
                raise ValueError(f"a saved rollout of version {head.version}; this reads {VERSION}")
            saved = msgspec.json.decode(text, type=Saved)
        elif bytes(head.nodes):
            saved = _of_trace(msgspec.json.decode(text, type=_Trace))
        else:
            raise ValueError("neither a saved rollout nor a verifiers trace")
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    places = [place for place in (*saved.points, saved.whole) if place is not None]
    if any(not 0 <= each < len(saved.messages) for place in places for each in place.messages) or any(
        place.tools is not None and not 0 <= place.tools < len(saved.tools) for place in places
    ):
        raise ValueError("a point names a message that is not there")
    return saved


# -- verifiers --------------------------------------------------------------------------------------------------------


class _Head(msgspec.Struct):
    format: Any = None
    version: Any = None
    # Raw in a union is not taken whole (msgspec 0.20); empty where the line has none.
    nodes: msgspec.Raw = msgspec.Raw()


class _Edge(msgspec.Struct):
    node: int
    type: str = ""


class _Node(msgspec.Struct):
    message: dict[str, Any]
    parent: int | None = None
    sampled: bool = False
    semantic_parents: list[_Edge] = []
    tools: Any = None


class _Trace(msgspec.Struct):
    nodes: list[_Node]
    id: Any = None
    task: Any = None
    rewards: Any = None


def _of_trace(trace: _Trace) -> Saved:
    nodes = trace.nodes
    for at, node in enumerate(nodes):
        if node.parent is not None and not 0 <= node.parent < at:
            raise ValueError(f"node {at} has the parent {node.parent}")
    if not nodes:
        raise ValueError("a trace without nodes")
    shape = _Shape(nodes)
    data = trace.task.get("data") if isinstance(trace.task, Mapping) else None
    source = data.get(REPLAY_OF) if isinstance(data, Mapping) else None
    return Saved(
        rollout=str(trace.id or ""),
        reward=_reward(trace.rewards),
        replay_of=source if isinstance(source, str) else None,
        messages=tuple(_as_chat(node.message) for node in nodes),
        tools=tuple(node.tools for node in nodes),
        points=tuple(
            Place(k=k, kinds=kinds, messages=path, tools=shape.tools(path))
            for k, (path, kinds) in enumerate(shape.points())
        ),
        whole=Place(kinds=("whole",), messages=path, tools=shape.tools(path)) if (path := shape.end()) else None,
    )


class _Shape:
    """What hangs on what in a trace."""

    def __init__(self, nodes: list[_Node]) -> None:
        self.nodes = nodes
        self.root: list[int] = []
        self.children: list[list[int]] = [[] for _ in nodes]
        for at, node in enumerate(nodes):
            self.root.append(at if node.parent is None else self.root[node.parent])
            if node.parent is not None:
                self.children[node.parent].append(at)
        started = {self.root[at] for at, _ in self._edges(_SUBAGENT)}
        self.main = {0}
        # Edges lead backwards, so one pass in order of the nodes finds every tree that main leads to.
        for at, edge in sorted((at, edge) for kind in _CONTINUES for at, edge in self._edges(kind)):
            if self.root[edge] in self.main and self.root[at] not in started:
                self.main.add(self.root[at])

    def _edges(self, kind: str) -> list[tuple[int, int]]:
        return [
            (at, edge.node)
            for at, node in enumerate(self.nodes)
            for edge in node.semantic_parents
            if edge.type == kind and 0 <= edge.node < len(self.nodes)
        ]

    def path(self, at: int | None) -> tuple[int, ...]:
        found: list[int] = []
        while at is not None:
            found.append(at)
            at = self.nodes[at].parent
        return tuple(reversed(found))

    def tools(self, path: tuple[int, ...]) -> int | None:
        return path[0] if path and self.nodes[path[0]].tools else None

    def end(self) -> tuple[int, ...]:
        """Return the path to the last sampled message of main."""
        sampled = [at for at, node in enumerate(self.nodes) if node.sampled and self.root[at] in self.main]
        return self.path(sampled[-1]) if sampled else ()

    def points(self) -> list[tuple[tuple[int, ...], tuple[Kind, ...]]]:
        """Return each point's path, with its kinds; in order of the path's last node."""
        found: dict[int, set[Kind]] = {}
        for at, node in enumerate(self.nodes):
            if self.root[at] not in self.main:
                continue
            below = self.children[at]
            role = node.message.get("role")
            if role == "tool" and not any(self.nodes[child].message.get("role") == "tool" for child in below):
                found.setdefault(at, set()).add("tool_result")
            if len(below) > 1:
                found.setdefault(at, set()).add("fork")
        for at, before in self._edges("compaction"):
            if self.root[at] in self.main:
                found.setdefault(before, set()).add("before_compaction")
                found.setdefault(self._asked(at), set()).add("after_compaction")
        return [(self.path(at), tuple(sorted(kinds, key=surgery.KINDS.index))) for at, kinds in sorted(found.items())]

    def _asked(self, at: int) -> int:
        """Return the last message before the model went on from a compaction."""
        parent = self.nodes[at].parent
        while self.nodes[at].sampled and parent is not None:
            at, parent = parent, self.nodes[parent].parent
        while len(self.children[at]) == 1 and not self.nodes[self.children[at][0]].sampled:
            at = self.children[at][0]
        return at


def _as_chat(message: dict[str, Any]) -> Chat:
    """Spell a trace's message as chat: its tool calls have name and arguments beside the id."""
    chat = {name: value for name, value in message.items() if value is not None}
    calls = chat.get("tool_calls")
    if isinstance(calls, list):
        chat["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call["name"], "arguments": call.get("arguments", "")},
            }
            if isinstance(call, Mapping) and isinstance(call.get("name"), str)
            else call
            for call in calls
        ]
    return chat


def _reward(rewards: Any) -> float | None:
    """Return the weighted sum of a trace's rewards; None where it has none, or one was not given."""
    if not isinstance(rewards, Mapping) or not rewards:
        return None
    total = 0.0
    for reward in rewards.values():
        score = reward.get("score") if isinstance(reward, Mapping) else None
        if isinstance(score, bool) or not isinstance(score, int | float):
            return None
        weight = reward.get("weight", 1.0)
        total += score * (weight if isinstance(weight, int | float) else 1.0)
    return total
