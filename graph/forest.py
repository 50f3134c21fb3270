"""How the calls of a rollout hang together: links, forks, what was discarded, and the trees that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graph.records import Call, Fork, ForkKind, IntArray, Link, Notice, Rollout
from graph.tokens import Trie


class Forest:
    """A rollout's calls, linked. Made by `grow`; nothing changes it afterwards."""

    rollout: Rollout
    # Every call by its number, `prompt_ids` None: the prompts are kept once, in `tokens`.
    calls: Mapping[int, Call]
    notices: tuple[Notice, ...]
    tokens: Trie
    # Every call has one; error, stopped and running calls are roots in no tree.
    links: Mapping[int, Link]
    forks: tuple[Fork, ...]
    fork_of: Mapping[int, ForkKind]
    discarded: frozenset[int]
    # Each root with all that continues it, in order of `n`; ordered by their first call. `roots` runs parallel: a tree
    # that an undelivered first try was put into begins with that try, and its root is the try that went on.
    trees: tuple[tuple[int, ...], ...]
    roots: tuple[int, ...]
    # Call → its tree's place in `trees`; absent for calls that are in none.
    tree_of: Mapping[int, int]
    # Calls that an exact continuation proves used.
    proved: frozenset[int]

    def delivered(self, n: int) -> bool | None:
        """Say if the agent had the reply of call `n`; a proof overrules the record."""
        raise NotImplementedError

    def n_prompt(self, n: int) -> int | None:
        """Return the length of the prompt of call `n` in tokens; None where the engine gave no ids."""
        raise NotImplementedError

    def n_sampled(self, n: int) -> int | None:
        """Return the number of sampled ids of call `n`; None where the engine gave none."""
        raise NotImplementedError

    def prompt_ids(self, n: int) -> IntArray | None:
        """Return a copy of the prompt of call `n`, int32; None where the engine gave no ids."""
        raise NotImplementedError

    def sampled_ids(self, n: int) -> IntArray | None:
        """Return the sampled ids of call `n`, int32; None where the engine gave none."""
        raise NotImplementedError

    def ids(self, n: int) -> IntArray | None:
        """Return prompt and sampled ids of call `n` in one int32 array; None where one of them is unknown."""
        raise NotImplementedError

    def children(self, n: int) -> tuple[int, ...]:
        """Return the calls whose parent is `n`, in order of arrival."""
        raise NotImplementedError


def grow(rollout: Rollout, calls: Iterable[Call], notices: Iterable[Notice] = ()) -> Forest:
    """Link `calls`, taken one at a time and in any order, into the forest of `rollout`."""
    raise NotImplementedError
