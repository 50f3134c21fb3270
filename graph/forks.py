"""Where calls part: forks, what was discarded, and the trees that are left.

Rules
- *retry*: calls with the same prompt, of which the first failed or was never delivered, and at most one request was.
- *resample*: any other calls with the same prompt; the choices of one request included.
- *branch*: calls with one parent and different prompts. Calls with the same prompt count as one of them.
- A call's reply came back when a later request goes on from it or carries it, whatever became of that request. The
  branch whose reply came back is the one that is *kept*; of several, the one that went on last, and of those the ones
  that were delivered before broken ones. If none was and did, the only one that was delivered; else none.
- Where one is kept, those that nobody went on with are *discarded*, but not one that arrived last of all, which ended
  the rollout, nor a root whose text a later request brings: equal subagents are normal, and their replies come back in
  tool results. (Where none is kept, every branch is an end.)
- Failed calls make no node. They are named as tries of a retry, and nothing else.
- A root that wasn't delivered, and that nothing continues, belongs to the tree of the try that went on.

Same prompt means equal ids where both have them; else equal messages and tools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping

import msgspec

from graph.messages import strings
from graph.records import Call, Fork, ForkKind, Link
from graph.tokens import Trie

REPORT_CHARS = 16
"""An argument this long stands in a tool's result by more than chance."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The forest's outline, as `graph.forest.Forest` shows it."""

    forks: tuple[Fork, ...]
    fork_of: dict[int, ForkKind]
    discarded: frozenset[int]
    trees: tuple[tuple[int, ...], ...]
    roots: tuple[int, ...]
    tree_of: dict[int, int]


def shape(
    calls: Mapping[int, Call],
    links: Mapping[int, Link],
    tokens: Trie,
    *,
    nodes: Collection[int],
    came_back: Collection[int],
    delivered: Callable[[int], bool | None],
) -> Shape:
    """Find the forks and trees of linked calls; `nodes` are those that are linked, in order of arrival."""
    return _Shaping(calls, links, tokens, nodes, came_back, delivered).shape()


class _Shaping:
    def __init__(
        self,
        calls: Mapping[int, Call],
        links: Mapping[int, Link],
        tokens: Trie,
        nodes: Collection[int],
        came_back: Collection[int],
        delivered: Callable[[int], bool | None],
    ) -> None:
        self.calls, self.links, self.tokens, self.nodes, self.delivered = calls, links, tokens, nodes, delivered
        self.used = {*came_back, *(n for link in links.values() for n in link.carries)}
        self.root: dict[int, int] = {}
        # The last call to arrive among those that continue a call, itself included; and in a whole tree, by its root.
        self.latest: dict[int, int] = {n: n for n in nodes}
        self.last_in_tree: dict[int, int] = {}
        self.continued: set[int] = set()
        for n in nodes:
            parent = links[n].parent
            self.root[n] = n if parent is None else self.root[parent]
            self.last_in_tree[self.root[n]] = n
        for n in reversed(list(nodes)):
            if (parent := links[n].parent) is not None:
                self.latest[parent] = max(self.latest[parent], self.latest[n])
                self.continued.add(parent)
        self.forks: list[Fork] = []
        self.fork_of: dict[int, ForkKind] = {}
        self.discarded: set[int] = set()
        # What requests read, by digest: the first call that brought it, and its text. Made when it is asked for.
        self.read: dict[bytes, tuple[int, str]] | None = None
        # Root of a try that was given up → root of the try that went on.
        self.given_up: dict[int, int] = {}

    def shape(self) -> Shape:
        parts: dict[int | None, list[list[int]]] = {}
        for (parent, _), group in self._same_prompts().items():
            parts.setdefault(parent, []).append(group)
        for parent, groups in parts.items():
            heads = [self._same_prompt(parent, group) for group in groups]
            if parent is not None and len(groups) > 1:
                self._branches(parent, groups, heads)
        # A fork of one prompt says more of a call than the branch that it stands for.
        for fork in sorted(self.forks, key=lambda fork: fork.kind != "branch"):
            self.fork_of.update(dict.fromkeys(fork.children, fork.kind))
        trees: dict[int, list[int]] = {}
        for n in self.nodes:
            root = self.root[n]
            trees.setdefault(self.given_up.get(root, root), []).append(n)
        return Shape(
            forks=tuple(sorted(self.forks, key=lambda fork: (-1 if fork.at is None else fork.at, fork.children))),
            fork_of=dict(sorted(self.fork_of.items())),
            discarded=frozenset(self.discarded),
            trees=tuple(tuple(tree) for tree in trees.values()),
            roots=tuple(trees),
            tree_of={n: place for place, tree in enumerate(trees.values()) for n in tree},
        )

    def _same_prompts(self) -> dict[tuple[int | None, Hashable], list[int]]:
        """Group calls with one parent and one prompt; a call that failed goes with the next try of the same prompt."""
        groups: dict[tuple[int | None, Hashable], list[int]] = {}
        later: dict[Hashable, tuple[int | None, Hashable]] = {}
        blind = any(n not in self.tokens for n in self.calls)
        text = {n: self._prompt_by_message(n) for n in self.calls} if blind else {}
        ids = {n: ("ids", self.tokens.spot(n, self.tokens.n_prompt(n))) for n in self.calls if n in self.tokens}
        by_text = {(self.links[n].parent, text[n]): ids[n] for n in self.latest if n in ids and text.get(n) is not None}
        # From the last to the first, so that `later` holds the next try when a failed call is reached.
        for n in sorted(self.calls, reverse=True):
            keys = [key for key in (ids.get(n), text.get(n)) if key is not None]
            if n in self.latest:
                parent = self.links[n].parent
                found = (parent, ids.get(n) or by_text.get((parent, text.get(n))) or text.get(n) or ("call", n))
                groups.setdefault(found, []).append(n)
                later.update(dict.fromkeys(keys, found))
            elif self.calls[n].status == "error":
                tries = [later[key] for key in keys if key in later]
                if tries:
                    groups[tries[0]].append(n)
        return {key: sorted(group) for key, group in sorted(groups.items(), key=lambda item: min(item[1]))}

    def _prompt_by_message(self, n: int) -> Hashable:
        call = self.calls[n]
        if not call.messages:
            return None
        return "text", hashlib.sha256(b"".join(message.digest for message in call.messages)).digest(), call.tools

    def _same_prompt(self, parent: int | None, group: list[int]) -> int:
        """Note the fork of calls with one prompt, if it is one; return the call that stands for them."""
        nodes = [n for n in group if n in self.latest]
        kept = self._kept([[n] for n in nodes])
        if len(group) > 1:
            self.forks.append(Fork(at=parent, kind=self._kind(group), children=tuple(group), kept=kept))
            if kept is not None:
                self._discard(nodes, kept)
            if parent is None:
                self._give_up(nodes, kept)
        return nodes[-1] if kept is None else kept

    def _kind(self, group: list[int]) -> ForkKind:
        first = self.calls[group[0]]
        requests = {self.calls[n].arrived for n in group}
        had = {self.calls[n].arrived for n in group if self.calls[n].status != "error" and self._had(n)}
        return "retry" if len(requests) > 1 and len(had) <= 1 and first.arrived not in had else "resample"

    def _branches(self, parent: int, groups: list[list[int]], heads: list[int]) -> None:
        nodes = [[n for n in group if n in self.latest] for group in groups]
        kept = self._kept(nodes)
        head = None if kept is None else next(head for head, group in zip(heads, nodes, strict=True) if kept in group)
        self.forks.append(Fork(at=parent, kind="branch", children=tuple(sorted(heads)), kept=head))
        for group in nodes:
            if kept is not None and kept not in group:
                self._discard(group, kept)

    def _kept(self, branches: list[list[int]]) -> int | None:
        """Return the call, of branches given as calls of one prompt each, that was kept."""
        used = [n for branch in branches for n in branch if self._went_on(n)]
        whole = [n for n in used if self._had(n)]
        had = [branch for branch in branches if any(self._had(n) for n in branch)]
        if not whole and len(had) == 1:
            # A broken reply may have been brought back beside it: it was used, but the other is what went on.
            return next((n for n in reversed(had[0]) if self._had(n)), None)
        return max(whole or used, key=lambda n: (self.latest[n], n), default=None)

    def _went_on(self, n: int) -> bool:
        return n in self.used or n in self.continued

    def _had(self, n: int) -> bool:
        """Say if the agent had this reply; where it isn't known, if something shows that it went on from it."""
        delivered = self.delivered(n)
        return self._went_on(n) if delivered is None else delivered

    def _discard(self, nodes: list[int], kept: int) -> None:
        last = self.last_in_tree[self.root[kept]]
        for n in nodes:
            if n == kept or self._went_on(n):
                continue
            ended_it = n >= max(last, self.last_in_tree[self.root[n]])
            if not self._had(n) or not (ended_it or (self.links[n].parent is None and self._reported(n, kept))):
                self.discarded.add(n)

    def _reported(self, n: int, kept: int) -> bool:
        """Say if a reply stands in what a later request read: its text, or what it gave to a tool.

        gemini-cli's subagents report by a tool of their own. What the kept reply gave to tools too shows nothing.
        """
        reply = self.calls[n].reply
        texts = _given(self.calls[n]) - _given(self.calls[kept])
        if reply is not None and reply.text.strip():
            texts.add(reply.text.strip())
        if self.read is None:
            # Each message once, with the call that brought it.
            self.read = {}
            for m in sorted(self.calls, reverse=True):
                brought = (message for message in self.calls[m].messages if message.role in ("tool", "user"))
                self.read.update((message.digest, (m, message.text)) for message in brought)
        return any(m > n and text in read for m, read in self.read.values() for text in texts)

    def _give_up(self, nodes: list[int], kept: int | None) -> None:
        to = kept if kept is not None else next((n for n in reversed(nodes) if self._had(n)), nodes[-1])
        for n in nodes:
            if n != to and not self._had(n):
                self.given_up[n] = to


def _given(call: Call) -> set[str]:
    """Return the long texts among what a reply gave to tools."""
    if call.reply is None:
        return set()
    given = (text.strip() for tool_call in call.reply.tool_calls for text in strings(tool_call.arguments))
    return {text for text in given if len(text) >= REPORT_CHARS}
