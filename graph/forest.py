"""A rollout's calls as a forest: links, forks, what was discarded, and the trees that follow.

`grow` takes the calls one at a time and in any order, so that a caller can stream them from a store. Each prompt goes
into the trie as it comes and is kept nowhere else; when all are in, the calls are linked in order of arrival
(`graph.links`) and the forks are found (`graph.forks`). Nothing that a forest says depends on the order in which the
calls came.

`Growing` is the same for a rollout that is still open: calls are put in as they end, and a forest is taken when one is
asked for.
- A prompt is read once, when its call is put in, whatever comes later.
- What links a call depends on calls that arrived before it alone, and on what became of them. So calls that have ended
  are linked once, in order of arrival, up to the first that still runs; those behind it anew for each forest, since a
  reply that comes later may be in their way. A call that changes, or comes late, in what was linked has all calls
  linked anew: that reads messages and the trie, and no prompt.
- Forks, trees, and all that is made of a forest (roles, findings) are found anew for each: a few microseconds a call,
  and no token is read for them.
- A forest keeps what it was made of. Putting in a call when a forest was taken since the last one copies the trie: 4
  bytes a token, moved at once.
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
    """A rollout's calls, linked. Made by `grow` or `Growing`; nothing changes it afterwards."""

    def __init__(
        self,
        rollout: Rollout,
        calls: Mapping[int, Call],
        notices: tuple[Notice, ...],
        tokens: Trie,
        linker: Linker,
        damaged: frozenset[int] = frozenset(),
    ) -> None:
        """Outline `calls`, in order of `n` and without prompts (`tokens` holds those); `linker` has linked them.

        The ids of `damaged` calls were none, and are held to be missing.
        """
        self.rollout = rollout
        self.calls = calls
        self.notices = notices
        self.tokens = tokens
        self.damaged = damaged
        # Every call has one; error, stopped and running calls are roots in no tree.
        self.links: Mapping[int, Link] = dict(linker.links)
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


class Growing:
    """The calls of one rollout, put in as they come; `forest` says what `grow` would say of them."""

    def __init__(self) -> None:
        self._tokens = Trie()
        self._calls: dict[int, Call] = {}
        self._linker = Linker(self._tokens)
        # Number of the last call in `_linker`.
        self._linked = -1
        # Calls whose ids are none.
        self._damaged: set[int] = set()
        # A forest reads `_tokens`.
        self._lent = False

    def __repr__(self) -> str:
        return f"<Growing: {len(self._calls)} calls, {len(self._linker.links)} linked, {self._tokens.distinct} tokens>"

    def __contains__(self, n: object) -> bool:
        return n in self._calls

    @property
    def calls(self) -> Iterable[Call]:
        """All calls, without their prompts, in the order in which they were put in."""
        return self._calls.values()

    @property
    def last(self) -> int:
        """The highest number of a call; -1 when there is none."""
        return max(self._calls, default=-1)

    @property
    def unsettled(self) -> tuple[int, ...]:
        """The calls whose record may still change: running ones, and those that are not known to be delivered."""
        return tuple(
            n
            for n, call in sorted(self._calls.items())
            if call.status == "running" or (call.status in LINKED and call.delivered is not True)
        )

    def put(self, call: Call) -> None:
        """Take in a call, new or changed; one that says what is known already changes nothing."""
        known = self._calls.get(call.n)
        if known is not None and _unchanged(known, call):
            return
        if _is_damaged(call):
            # Half a bundle would look whole; none at all says what is the case.
            self._damaged.add(call.n)
            call = msgspec.structs.replace(call, prompt_ids=None, sampled_ids=None, logprobs=None)
        if self._lent:
            self._tokens, self._lent = self._tokens.copy(), False
            self._linker.read(self._tokens)
        if call.n in self._tokens:
            self._tokens.remove(call.n)
        if call.prompt_ids is not None:
            sampled = np.empty(0, np.int32) if call.sampled_ids is None else call.sampled_ids
            self._tokens.insert(call.n, call.prompt_ids, sampled)
        self._calls[call.n] = msgspec.structs.replace(call, prompt_ids=None)
        if call.n <= self._linked:
            self._linker, self._linked = Linker(self._tokens), -1

    def forest(self, rollout: Rollout, notices: Iterable[Notice] = ()) -> Forest:
        """Return the forest of all calls that were put in."""
        calls = dict(sorted(self._calls.items()))
        linker = self._linker
        for n in [n for n in calls if n > self._linked]:
            call = calls[n]
            if linker is self._linker:
                if call.status != "running":
                    self._linked = n
                else:
                    linker = linker.copy()
            linker.add(call)
        self._lent = True
        return Forest(rollout, calls, _ordered(notices), self._tokens, linker, frozenset(self._damaged))


def grow(rollout: Rollout, calls: Iterable[Call], notices: Iterable[Notice] = ()) -> Forest:
    """Link `calls`, taken one at a time and in any order, into the forest of `rollout`.

    Raises ValueError when two calls have the same number.
    """
    growing = Growing()
    for call in calls:
        if call.n in growing:
            raise ValueError(f"two calls of rollout {rollout.id} have the number {call.n}")
        growing.put(call)
    return growing.forest(rollout, notices)


def _is_damaged(call: Call) -> bool:
    """Say if a call's ids can't be ids: no vocabulary has negative ones."""
    return any(ids is not None and ids.size and int(ids.min()) < 0 for ids in (call.prompt_ids, call.sampled_ids))


def _unchanged(known: Call, call: Call) -> bool:
    """Say if a record is the one that is known: what an ended call says is fixed, but not if it was delivered."""
    if known.status == "running" or call.status == "running":
        return False
    return (known.status, known.delivered, known.ended) == (call.status, call.delivered, call.ended)


def _ordered(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    return tuple(
        sorted(notices, key=lambda notice: (notice.at, notice.code, notice.calls, repr(sorted(notice.data.items()))))
    )
