"""A rollout's calls as a forest: links, forks, what was discarded, and the trees that follow.

`grow` takes the calls one at a time and in any order, so that a caller can stream them from a store. Each prompt goes
into the trie as it comes and is kept nowhere else; when all are in, the calls are linked in order of arrival
(`graph.links`) and the forks are found (`graph.forks`). Nothing that a forest says depends on the order in which the
calls came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from graph.forks import shape
from graph.links import LINKED, Linker
from graph.records import Call, Fork, ForkKind, IntArray, Link, Notice, Rollout
from graph.tokens import Trie


class Forest:
    """A rollout's calls, linked. Made by `grow`; nothing changes it afterwards."""

    def __init__(self, rollout: Rollout, calls: Mapping[int, Call], notices: tuple[Notice, ...], tokens: Trie) -> None:
        """Link `calls`, in order of `n` and without their prompts, which `tokens` holds."""
        self.rollout = rollout
        self.calls = calls
        self.notices = notices
        self.tokens = tokens
        linker = Linker(tokens)
        for call in calls.values():
            linker.add(call)
        # Every call has one; error, stopped and running calls are roots in no tree.
        self.links: Mapping[int, Link] = linker.links
        # Calls that an exact continuation proves used.
        self.proved = linker.proved
        nodes = [n for n, call in calls.items() if call.status in LINKED]
        found = shape(calls, self.links, tokens, nodes=nodes, came_back=linker.came_back, delivered=self.delivered)
        self.forks: tuple[Fork, ...] = found.forks
        self.fork_of: Mapping[int, ForkKind] = found.fork_of
        self.discarded: frozenset[int] = found.discarded
        # Each root with all that continues it, in order of `n`; ordered by their first call. `roots` runs parallel: a
        # tree that an undelivered first try was put into begins with that try, and its root is the try that went on.
        self.trees: tuple[tuple[int, ...], ...] = found.trees
        self.roots: tuple[int, ...] = found.roots
        # Call → its tree's place in `trees`; absent for calls that are in none.
        self.tree_of: Mapping[int, int] = found.tree_of
        # Calls whose reply came back in a later request, or whose text a compaction carries.
        self.came_back = frozenset(linker.came_back)
        # Those of them whose reply was broken off, so that no link says that another call goes on from it.
        self.brought_back = frozenset(linker.brought_back)
        self._children: dict[int, list[int]] = {}
        for n, link in self.links.items():
            if link.parent is not None:
                self._children.setdefault(link.parent, []).append(n)

    def __repr__(self) -> str:
        lines = [f"Forest({self.rollout.id}: {len(self.calls)} calls, {self.tokens.distinct} tokens)"]
        for tree in self.trees:
            lines += [self._line(n) for n in tree]
        lines += [self._line(n) for n in self.calls if n not in self.tree_of]
        return "\n".join(lines)

    def delivered(self, n: int) -> bool | None:
        """Say if the agent had the reply of call `n`; a proof overrules the record."""
        return True if n in self.proved else self.calls[n].delivered

    def n_prompt(self, n: int) -> int | None:
        """Return the length of the prompt of call `n` in tokens; None where the engine gave no ids."""
        return self.tokens.n_prompt(n) if n in self.tokens else None

    def n_sampled(self, n: int) -> int | None:
        """Return the number of sampled ids of call `n`; None where the engine gave none."""
        ids = self.calls[n].sampled_ids
        return None if ids is None else len(ids)

    def prompt_ids(self, n: int) -> IntArray | None:
        """Return a copy of the prompt of call `n`, int32; None where the engine gave no ids."""
        return self.tokens.path(n)[: self.tokens.n_prompt(n)] if n in self.tokens else None

    def sampled_ids(self, n: int) -> IntArray | None:
        """Return the sampled ids of call `n`, int32; None where the engine gave none."""
        return self.calls[n].sampled_ids

    def ids(self, n: int) -> IntArray | None:
        """Return prompt and sampled ids of call `n` in one int32 array; None where one of them is unknown."""
        return self.tokens.path(n) if n in self.tokens and self.calls[n].sampled_ids is not None else None

    def children(self, n: int) -> tuple[int, ...]:
        """Return the calls whose parent is `n`, in order of arrival."""
        return tuple(self._children.get(n, ()))

    def _line(self, n: int) -> str:
        link, call = self.links[n], self.calls[n]
        depth, at = 1, link.parent
        while at is not None:
            depth, at = depth + 1, self.links[at].parent
        said = [call.status, f"{self.n_prompt(n)}+{self.n_sampled(n)}", link.kind]
        if link.parent is not None:
            said.append(f"of {link.parent}")
        if link.drift is not None:
            said.append(f"-{link.drift.tokens} at {link.drift.at}: {link.drift.cause}")
        if link.carries:
            said.append(f"carries {link.carries}")
        said += [str(self.fork_of[n])] if n in self.fork_of else []
        said += ["discarded"] if n in self.discarded else []
        said += ["proved"] if n in self.proved else []
        return "  " * depth + f"{n} " + " ".join(said)


def grow(rollout: Rollout, calls: Iterable[Call], notices: Iterable[Notice] = ()) -> Forest:
    """Link `calls`, taken one at a time and in any order, into the forest of `rollout`.

    Raises ValueError when two calls have the same number.
    """
    tokens = Trie()
    taken: dict[int, Call] = {}
    for call in calls:
        if call.n in taken:
            raise ValueError(f"two calls of rollout {rollout.id} have the number {call.n}")
        if call.prompt_ids is not None:
            sampled = np.empty(0, np.int32) if call.sampled_ids is None else call.sampled_ids
            tokens.insert(call.n, call.prompt_ids, sampled)
        taken[call.n] = msgspec.structs.replace(call, prompt_ids=None)
    return Forest(rollout, dict(sorted(taken.items())), _ordered(notices), tokens)


def _ordered(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    return tuple(
        sorted(notices, key=lambda notice: (notice.at, notice.code, notice.calls, repr(sorted(notice.data.items()))))
    )
