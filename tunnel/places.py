"""Places for tunnels: what stands in one, who has it, and who is about to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from tunnel.base import Tunnel
from tunnel.spec import Spec

Tell = Callable[[Iterable[str], Mapping[str, Any]], None]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A tunnel as `GET /tunnels` shows it."""

    name: str
    kind: str
    url: str | None
    healthy: bool
    # Why it is not, a sentence; "" while it is.
    reason: str
    # Those on the URL as it is now, and those that were told one which leads nowhere any more.
    rollouts: int
    stranded: int
    # Openings since the start, the first included; and losses.
    opened: int
    lost: int


class Place:
    """One place for a tunnel: what stands in it changes when it is lost, the place stays."""

    def __init__(self, spec: Spec, number: int = 1) -> None:
        """`number` tells places of one description apart."""
        self.spec = spec
        self.number = number
        self.tunnel: Tunnel | None = None
        self.url: str | None = None
        self.reason = "not opened yet"
        # By name, the URL that each was told.
        self.rollouts: dict[str, str] = {}
        # Places held by those who register.
        self.held = 0
        self.failures = 0
        self.opened = 0
        self.lost = 0
        # What was told of the last loss.
        self.loss: Mapping[str, Any] = {}
        self.lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Place {self.spec.text} {self.url} {self.reason!r} {self.load}>"

    @property
    def stranded(self) -> int:
        """How many rollouts were told a URL that it no longer has."""
        return sum(url != self.url for url in self.rollouts.values())

    @property
    def load(self) -> int:
        """How many rollouts are on it as it is now, those that are being registered included."""
        return self.held + len(self.rollouts) - self.stranded

    @property
    def needed(self) -> bool:
        """Whether any rollout has to do with it."""
        return self.held > 0 or bool(self.rollouts)

    @property
    def name(self) -> str:
        """What people and metrics call it, whatever stands in it; the later ones of a description are numbered."""
        return self.spec.text if self.number == 1 else f"{self.spec.text} #{self.number}"

    @property
    def health(self) -> Health:
        """How it stands."""
        return Health(
            name=self.name,
            kind=self.spec.kind,
            url=self.url,
            healthy=self.url is not None and not self.reason,
            reason=self.reason,
            rollouts=len(self.rollouts) - self.stranded,
            stranded=self.stranded,
            opened=self.opened,
            lost=self.lost,
        )


class Hold:
    """A place at a tunnel for rollouts that are being registered. Kept or dropped once; more does nothing."""

    def __init__(self, place: Place, n: int, tell: Tell) -> None:
        """`tell` tells rollouts of a loss."""
        place.held += n
        self.place = place
        self._tell = tell
        self._n = n
        self._losses = place.lost
        # Where the place leads.
        self.url = ""

    def __repr__(self) -> str:
        return f"<Hold {self._n} at {self.url}>"

    def proved(self, url: str) -> None:
        """Note where it leads, as was just proved."""
        self.url, self._losses = url, self.place.lost

    def keep(self, rollouts: Collection[str]) -> None:
        """Let these rollouts have the place; a loss since it was given is told now."""
        if self._n:
            self._free()
            self.place.rollouts.update(dict.fromkeys(rollouts, self.url))
            if self.place.lost > self._losses:
                self._tell(rollouts, self.place.loss)

    def drop(self) -> None:
        """Give it back."""
        if self._n:
            self._free()

    def _free(self) -> None:
        self.place.held -= self._n
        self._n = 0
