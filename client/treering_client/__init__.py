"""Treering in a trainer's process.

    with Client(url, key).rollout(task="Fix the test.", sampling={"temperature": 1.0}) as r:
        run_my_agent(env=r.env)
        r.reward(grade())
        rows = r.sequences(format="native")

Python 3.10 and the standard library, nothing else. Adapters to trainers' own classes are in `treering_client.adapters`,
each of which imports its library.
"""

from __future__ import annotations

from treering_client.aio import AsyncClient, AsyncRollout
from treering_client.client import Client
from treering_client.errors import CutShort, RequestError, TreeringError, Unreachable
from treering_client.rollout import Rollout
from treering_client.version import version as _version

__all__ = [
    "AsyncClient",
    "AsyncRollout",
    "Client",
    "CutShort",
    "RequestError",
    "Rollout",
    "TreeringError",
    "Unreachable",
]

__version__ = _version()
