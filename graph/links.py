"""How a call hangs on an earlier one: exact, compaction, drift, or not at all.

Rules
1. *exact*: the parent's prompt and sampled ids are a prefix of this prompt. The longest wins; among equals the
   delivered, then the latest ended.
2. *compaction*: see `graph.compactions`.
3. *drift*: the request carries an earlier call's reply as an assistant message, and that call's own opening still
   stands before it. The latest such call. See `graph.replies`.
4. *root*.

A parent ended before the child arrived, and was delivered; or, for an exact link, is proved used by it. Only complete
and aborted calls are linked. A call with ids but without sampled ones, or with one half of its ids unknown, is nobody's
parent. Calls without ids (tier eval) are linked by their messages alone: a link of kind drift whose drift is None, for
an exact link says something about ids.

Two things that the rules leave to be said
- A conversation that drifts in its last turn still begins with exactly the ids of the turn before. Its parent is the
  last turn all the same, by drift: "not exact" is said of the call whose reply the request carries. Else drift would be
  seen in first turns alone, and a turn that drifts would look like a branch that nobody went on with.
- What was sampled of an aborted reply may be a prefix of what its retry sampled, so that ids alone would prove the
  aborted call used when it was the retry that was, by drift. So they don't where the message in the reply's place is
  what a delivered call with the same prompt said.

Costs. An exact link takes a few steps in the trie and a look at the last messages. Other links take besides a look at
the messages behind the reply that is found. Replies are found by what they are known by, never by going through calls.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TypeVar

from graph.compactions import Trees
from graph.drift import explain
from graph.records import Call, Drift, Link
from graph.replies import Replies
from graph.tokens import Trie

LINKED = ("complete", "aborted")
"""Statuses of calls that are linked; the others make no node."""


T = TypeVar("T")


class Linker:
    """Links the calls of one rollout. They come in order of arrival; the ids of all of them are in `tokens` before."""

    def __init__(self, tokens: Trie) -> None:
        self._tokens = tokens
        self._replies = Replies(tokens)
        self._trees = Trees(self._replies)
        self.links: dict[int, Link] = {}
        # Calls whose reply came back in a later request, of any status.
        self.came_back: set[int] = set()
        # Those of them that were never delivered: an agent that was stopped keeps what it had.
        self.brought_back: set[int] = set()

    def copy(self) -> Linker:
        """Return a linker of its own that knows the same. Costs a few entries a call."""
        twin, replies, trees = _twin(self), _twin(self._replies), _twin(self._trees)
        twin._replies, twin._trees, trees._replies = replies, trees, replies  # noqa: SLF001 -- one state in three objects
        return twin

    def read(self, tokens: Trie) -> None:
        """Read ids from another trie from now on, in which those of all calls are."""
        self._tokens = self._replies._tokens = tokens  # noqa: SLF001 -- one state in three objects

    @property
    def proved(self) -> frozenset[int]:
        """The calls proved used by an exact continuation."""
        return frozenset(self._replies.proved)

    def add(self, call: Call) -> None:
        """Link one call, which arrived after all that were added before."""
        exact = self._exact(call)
        found = self._replies.carried(call, expected=exact)
        if found is not None:
            self.came_back.add(found[0])
        broken = self._replies.brought_back(call)
        self.brought_back.update(broken)
        self.came_back.update(broken)
        if call.status not in LINKED:
            # No node; but the reply that its request carries was used.
            self.links[call.n] = Link(kind="root")
            return
        link = self._link(call, exact, found)
        self.links[call.n] = link
        if link.parent is not None:
            self.came_back.add(link.parent)
            if link.kind == "exact" and self._replies.delivered(link.parent) is not True:
                self._replies.proved.add(link.parent)
            if link.kind == "compaction":
                self.came_back.update(self._kept_turns(call, link.parent))
        self._replies.add(call)
        self._trees.add(call, link.parent, link.carries)

    def _kept_turns(self, call: Call, parent: int) -> Iterator[int]:
        """Yield the calls of a conversation whose replies a request keeps behind the summary.

        claude-code asks for the summary beside the last turn, and not behind it: both are used.
        """
        for message in call.messages:
            for n in self._replies.saying_this(message) if message.role == "assistant" else ():
                if self._trees.root.get(n) == self._trees.root[parent] and self._replies.parent_by_message(n, call):
                    yield n

    def _link(self, call: Call, exact: int | None, found: tuple[int, int] | None) -> Link:
        carried = None if found is None else found[0]
        if exact is not None and not (carried is not None and self._nearer(carried, exact)):
            return Link(kind="exact", parent=exact, n_shared=self._tokens.depth(exact))
        if exact is None and (compaction := self._trees.compaction(call, carried)) is not None:
            return Link(
                kind="compaction",
                parent=compaction.parent,
                carries=compaction.carries,
                n_shared=self._shared(compaction.parent, call),
            )
        if found is not None:
            return self._drift(call, *found)
        return Link(kind="root")

    def _exact(self, call: Call) -> int | None:
        if call.n not in self._tokens or call.status not in LINKED:
            return None
        replies = self._replies
        for _, keys in self._tokens.ends(call.n, self._tokens.n_prompt(call.n)):
            parents = [n for n in keys if n in replies.calls and self._gone_on_from(n, call)]
            if parents:
                return max(parents, key=lambda n: (replies.delivered(n) is True, replies.calls[n].ended, n))
        return None

    def _gone_on_from(self, n: int, call: Call) -> bool:
        """Say if `call`, whose prompt begins with the ids of call `n`, can have gone on from it."""
        replies = self._replies
        place = len(replies.calls[n].messages)
        if not replies.usable(n, call):
            return False
        if replies.delivered(n) is True or not 0 < place < len(call.messages):
            return True
        return not any(
            m != n and replies.parent_by_message(m, call) and self._same_prompt(m, n)
            for m in replies.saying_this(call.messages[place])
        )

    def _same_prompt(self, a: int, b: int) -> bool:
        tokens = self._tokens
        return a in tokens and tokens.n_prompt(a) == tokens.n_prompt(b) <= tokens.common(a, b)

    def _nearer(self, carried: int, exact: int) -> bool:
        """Say if the call whose reply is carried is nearer than the one whose ids are."""
        return carried != exact and self._trees.descends(carried, exact)

    def _shared(self, parent: int, call: Call) -> int:
        if parent not in self._tokens or call.n not in self._tokens:
            return 0
        return min(self._tokens.common(parent, call.n), self._tokens.n_prompt(call.n))

    def _drift(self, call: Call, parent: int, place: int) -> Link:
        shared = self._shared(parent, call)
        drift: Drift | None = None
        if parent in self._tokens and call.n in self._tokens:
            tokens = self._tokens
            drift = explain(
                self._replies.calls[parent],
                call,
                call.messages[place],
                at=shared,
                parent_ids=tokens.path(parent),
                n_parent_prompt=tokens.n_prompt(parent),
                new=tokens.path(call.n, shared)[: tokens.n_prompt(call.n) - shared],
            )
        return Link(kind="drift", parent=parent, n_shared=shared, drift=drift)


def _twin(known: T) -> T:
    """Copy an object and its containers, and the containers in these; not what they hold."""
    twin = copy.copy(known)
    for name, value in vars(known).items():
        if isinstance(value, dict):
            setattr(twin, name, {k: copy.copy(v) if isinstance(v, dict | list | set) else v for k, v in value.items()})
        elif isinstance(value, list | set):
            setattr(twin, name, copy.copy(value))
    return twin
