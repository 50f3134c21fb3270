"""Ways to a data plane that is there in name only."""

from __future__ import annotations

from capture.reach import Reach
from capture.settings import Settings
from tunnel.base import Local


def leads(host: str = "127.0.0.1", port: int = 8400, **settings) -> Reach:
    """A reach whose listener is said to be at `host:port`; nothing listens there."""
    reach = Reach(Settings(**settings))
    local = Local(host=host, port=port)
    reach.start(local, url=local.url, loopback=host == "127.0.0.1", nonce="n0", on_lost=lambda rollouts, known: None)
    return reach


LEADS = leads()
