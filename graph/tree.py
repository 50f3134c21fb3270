"""The tree of a rollout: every distinct token once, for trainers with tree attention (`drift=tree`).

Rules
- A token hangs on the token before it; a token's position is its depth. What a token attends to is its way to the root,
  so each reply is scored under exactly the prefix that the engine scored it under, and no drift is crossed or cut.
- Context that two calls share is there once, across conversations too. What two calls sampled is never one token, equal
  ids or not: each sampled token is trained once, with its own logprob.
- Only what trained replies need is there: their prompts and themselves, and the replies that they go on from exactly.
- Nodes are stretches that nothing parts: of one call, of one kind, of one version of the weights. They come depth
  first, parents before children, and a node's tokens lie together.

    nodes    0 prompt of call 0  ─┬─ 1 sampled by call 0 ── 2 prompt of call 1 ── 3 sampled by call 1
                                  └─ 4 sampled by call 2, a second draw of the same prompt

Costs: a call's prompt is read from where it parts from the call that it goes on from; a root's from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np

from graph.graph import Graph
from graph.records import FloatArray, IntArray, LogprobsMode, Role
from graph.sequences import (
    LeftOut,
    MaskArray,
    Options,
    codes,
    left_out,
    reward_of,
    sampling_of,
    truncated,
    versions,
    wanted,
)
from graph.tokens import lcp


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of tokens; `start` and `end` are places in the tree's arrays, end exclusive."""

    node: int
    # None for one that begins a prompt.
    parent: int | None
    # Whose prompt or reply it is; of a prompt that several share, the first.
    call: int
    kind: Literal["prompt", "sampled"]
    trained: bool
    start: int
    end: int
    # The policy's version for a sampled node, None where unknown and for prompts.
    weights: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A trained reply: the node that it ends with, and what a row would say of it."""

    call: int
    conversation: int
    role: Role
    node: int
    truncated: Literal[False, "length", "limit"]
    sampling: dict[str, Any]
    reward: float | None


class Tree(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The tree of one rollout. All arrays have one length, the number of tokens."""

    rollout: str
    group: str | None
    # False while the rollout is open: more calls may come.
    final: bool
    reward: float | None
    logprobs_mode: LogprobsMode
    input_ids: IntArray
    # The place of the token before each, -1 for one that begins a prompt; and its depth.
    parents: IntArray
    position_ids: IntArray
    loss_mask: MaskArray
    logprobs: FloatArray
    nodes: tuple[Node, ...]
    replies: tuple[Reply, ...]
    left_out: tuple[LeftOut, ...]
    # Codes of findings of level warn or error.
    findings: tuple[str, ...]

    @property
    def n_trained_tokens(self) -> int:
        """The number of trained tokens."""
        return int(self.loss_mask.sum())


def plant(graph: Graph, options: Options | None = None) -> Tree:
    """Return the tree of what is trained of a graph; `drift` and `threshold` of the options are of no meaning."""
    options = options or Options(drift="tree")
    reasons = left_out(graph, options)
    trained = {n for n, why in reasons.items() if why is None}
    planting = _Planting(graph, trained)
    for n in sorted(_needed(graph, trained)):
        planting.add(n)
    branches = list(planting.depth_first())
    place = {id(branch): number for number, branch in enumerate(branches)}
    lengths = [len(branch.ids) for branch in branches]
    starts = [0, *np.cumsum(lengths).tolist()]
    parents = np.arange(-1, starts[-1] - 1, dtype=np.int32)
    nodes = []
    for number, branch in enumerate(branches):
        above = place.get(id(branch.parent))
        parents[starts[number]] = -1 if above is None else starts[above + 1] - 1
        nodes.append(
            Node(
                node=number,
                parent=above,
                call=branch.call,
                kind=branch.kind,
                trained=branch.logprobs is not None,
                start=starts[number],
                end=starts[number + 1],
                weights=branch.weights,
            )
        )
    ends = {n: place[id(end)] for n, end in planting.ends.items() if n in trained}
    rollout = graph.rollout
    return Tree(
        rollout=rollout.id,
        group=rollout.group,
        final=rollout.state == "closed",
        reward=rollout.reward,
        logprobs_mode=rollout.logprobs_mode,
        input_ids=_joined([branch.ids for branch in branches], np.int32),
        parents=parents,
        position_ids=_joined([np.arange(each.start, each.end, dtype=np.int32) for each in branches], np.int32),
        loss_mask=np.repeat(np.array([each.trained for each in nodes], dtype=np.uint8), lengths),
        logprobs=_joined([_logprobs(branch) for branch in branches], np.float32),
        nodes=tuple(nodes),
        replies=tuple(_replies(graph, options, ends)),
        left_out=tuple(LeftOut(call=n, reason=why) for n, why in reasons.items() if why is not None),
        findings=codes(graph, *([] if trained else ["nothing_trainable"])),
    )


def _needed(graph: Graph, trained: set[int]) -> set[int]:
    """Return the trained calls and those that they go on from exactly."""
    needed: set[int] = set()
    links = graph.forest.links
    for n in trained:
        at: int | None = n
        while at is not None and at not in needed:
            needed.add(at)
            at = links[at].parent if links[at].kind == "exact" else None
    return needed


def _replies(graph: Graph, options: Options, ends: dict[int, int]) -> Iterator[Reply]:
    for conversation in graph.conversations:
        if not wanted(conversation, options.roles):
            continue
        for n in conversation.calls:
            if n in ends:
                calls = [graph.forest.calls[n]]
                yield Reply(
                    call=n,
                    conversation=conversation.n,
                    role=conversation.role,
                    node=ends[n],
                    truncated=truncated(graph, conversation, calls),
                    sampling=sampling_of(calls),
                    reward=reward_of(graph, calls[0]),
                )


def _joined(parts: list[Any], dtype: type) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _logprobs(branch: _Branch) -> FloatArray:
    return np.full(len(branch.ids), np.nan, np.float32) if branch.logprobs is None else branch.logprobs


class _Branch:
    """A node while the tree grows."""

    __slots__ = ("call", "children", "ids", "kind", "logprobs", "parent", "start", "weights")

    def __init__(
        self,
        ids: IntArray,
        start: int,
        parent: _Branch | None,
        *,
        call: int,
        kind: Literal["prompt", "sampled"],
        logprobs: FloatArray | None = None,
        weights: str | None = None,
    ) -> None:
        self.ids, self.start, self.parent = ids, start, parent
        self.call, self.kind, self.logprobs, self.weights = call, kind, logprobs, weights
        self.children: list[_Branch] = []
        if parent is not None:
            parent.children.append(self)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class _Planting:
    def __init__(self, graph: Graph, trained: set[int]) -> None:
        self._forest = graph.forest
        self._trained = trained
        self._root = _Branch(np.empty(0, np.int32), 0, None, call=-1, kind="prompt")
        # Call → the node that its reply ends with.
        self.ends: dict[int, _Branch] = {}

    def add(self, n: int) -> None:
        """Put a call in; those that it goes on from are in before it."""
        forest, call = self._forest, self._forest.calls[n]
        middle, sampled = forest.n_prompt(n), forest.sampled_ids(n)
        assert middle is not None, "a trained call, and what it goes on from, has a prompt"
        assert sampled is not None, "a trained call, and what it goes on from, has sampled ids"
        end = self._prompt(n, middle)
        for first, last, version in versions(call, len(sampled)):
            scored = call.logprobs[first:last] if n in self._trained and call.logprobs is not None else None
            end = _Branch(
                sampled[first:last],
                middle + first,
                end,
                call=n,
                kind="sampled",
                logprobs=scored,
                weights=version,
            )
        self.ends[n] = end

    def depth_first(self) -> Iterator[_Branch]:
        """Yield the nodes, parents before children, and children in the order in which they came."""
        waiting = self._root.children[::-1]
        while waiting:
            branch = waiting.pop()
            yield branch
            waiting += branch.children[::-1]

    def _prompt(self, n: int, end: int) -> _Branch:
        """Return the node that a prompt ends with, at depth `end`, which is made where it isn't there."""
        at, known = self._known(n, end)
        # Read from there on alone; the rest is in the tree.
        prompt = self._forest.tokens.path(n, known)[: end - known]
        depth = known
        while True:
            depth += lcp(at.ids[depth - at.start :], prompt[depth - known :])
            if depth < at.end:
                at = self._split(at, depth)
            if depth == end:
                return at
            rest = prompt[depth - known :]
            ways = [child for child in at.children if child.ids[0] == rest[0]]
            if not ways:
                # A copy, or the node would hold all that was read.
                return _Branch(rest.copy(), depth, at, call=n, kind="prompt")
            # What several calls sampled may begin alike.
            at = ways[0] if len(ways) == 1 else max(ways, key=lambda child: lcp(child.ids, rest))

    def _known(self, n: int, n_prompt: int) -> tuple[_Branch, int]:
        """Return a node and a depth in it up to which a prompt is known to be there."""
        links, tokens = self._forest.links, self._forest.tokens
        above = links[n].parent
        while above is not None and above not in self.ends:
            above = links[above].parent
        if above is None:
            return self._root, 0
        at, depth = self.ends[above], min(tokens.common(above, n), n_prompt)
        while at.parent is not None and at.start >= depth:
            at = at.parent
        return at, depth

    def _split(self, branch: _Branch, depth: int) -> _Branch:
        """Part a node at a depth inside it; return the upper part. The lower one stays the node that calls end with."""
        cut = depth - branch.start
        above = branch.parent
        assert above is not None, "the root has no ids to part"
        upper = _Branch(
            branch.ids[:cut],
            branch.start,
            None,
            call=branch.call,
            kind=branch.kind,
            logprobs=None if branch.logprobs is None else branch.logprobs[:cut],
            weights=branch.weights,
        )
        upper.parent, upper.children = above, [branch]
        above.children[above.children.index(branch)] = upper
        branch.ids, branch.start, branch.parent = branch.ids[cut:], depth, upper
        branch.logprobs = None if branch.logprobs is None else branch.logprobs[cut:]
        return upper
