"""Wrong keys: what an address that keeps showing them may still cost. Pure; the caller brings the clock.

Rule 1: a right key is never refused. Many agents sit behind one address (a NAT, a tunnel, a load balancer), so a key
is always looked at first; the throttle hears of failures alone, and nobody can lock another out by failing.
Rule 2: memory is bounded, whatever is sent: so many addresses, the least recently failed forgotten first; an IPv6
address counts with its /64, which one customer owns whole.

Theory of operation
A bucket per address holds `BURST` failures and refills at `PER_S`. While it lasts, a wrong key gets the ordinary 401.
When it is empty the answer carries `Retry-After` and the connection is closed, so each further guess costs its sender a
connection; and what it may cost us is bounded by the caller: look-ups in the store stand in a short line of their own,
and a key that was refused once is refused again without one. Keys that Treering makes have 256 random bits: no rate of
guessing finds one. What is held back here is the noise, and whoever guesses at a weak admin key.

Rejected: refusing an address outright (an agent with an old key would lock out its whole sandbox host), delaying
answers (parked connections are memory that an attacker chooses), and believing `X-Forwarded-For` (anyone writes it).
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

BURST = 20
"""Failures in a row that are answered at once: a misconfigured group of agents, each trying two or three times."""

PER_S = 0.5
"""Failures regained a second."""

ADDRESSES = 4_096
"""Remembered at once, about 1 MB."""

NOTE_EVERY_S = 60.0
"""Between two lines in the log about one address."""


class _Bucket:
    __slots__ = ("at", "failures", "left", "noted")

    def __init__(self, now: float) -> None:
        self.left = float(BURST)
        self.at = now
        # Since the last line in the log.
        self.failures = 0
        self.noted = -NOTE_EVERY_S

    def refill(self, now: float) -> None:
        self.left = min(float(BURST), self.left + (now - self.at) * PER_S)
        self.at = now


class Throttle:
    """Counts failures by address; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Throttle {len(self._buckets)} addresses>"

    def failed(self, address: str | None, now: float) -> float | None:
        """Note a wrong key; return None within the allowance, else the seconds after which to try again."""
        bucket = self._bucket(address, now)
        bucket.failures += 1
        bucket.left -= 1.0
        if bucket.left >= 0.0:
            return None
        # Not deeper: what comes while it is empty doesn't prolong it.
        bucket.left = 0.0
        return 1.0 / PER_S

    def is_spent(self, address: str | None, now: float) -> bool:
        """Say whether an address has used its allowance up; of one that never failed this makes no note."""
        bucket = self._buckets.get(_place(address))
        if bucket is None:
            return False
        bucket.refill(now)
        return bucket.left < 1.0

    def to_note(self, address: str | None, now: float) -> int:
        """Return how many failures to speak of in the log now; 0 while it isn't time."""
        bucket = self._buckets.get(_place(address))
        if bucket is None or now - bucket.noted < NOTE_EVERY_S:
            return 0
        failures, bucket.failures, bucket.noted = bucket.failures, 0, now
        return failures

    def _bucket(self, address: str | None, now: float) -> _Bucket:
        place = _place(address)
        bucket = self._buckets.get(place)
        if bucket is None:
            bucket = self._buckets[place] = _Bucket(now)
            if len(self._buckets) > ADDRESSES:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(place)
            bucket.refill(now)
        return bucket


def _place(address: str | None) -> str:
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        # A Unix socket's peer, or none.
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
