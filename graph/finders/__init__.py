"""Finders: one file a family, each a pure function of a forest whose conversations have roles.

A finder yields what `graph.finders.statements.make` makes; it reads no other's, and their order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graph.finders import capture, ends, links, prefix, roles, sampling, tokens
from graph.records import Finding
from graph.roles import Judged

Finder = Callable[[Judged], Iterator[Finding]]

FINDERS: tuple[Finder, ...] = (
    capture.find,
    tokens.find,
    links.find,
    prefix.find,
    roles.find,
    sampling.find,
    ends.find,
)

__all__ = ["FINDERS", "Finder"]
