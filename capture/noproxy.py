"""`NO_PROXY` for an agent: the addresses that its proxy, if it has one, must be left out for. Pure.

A sandbox whose `HTTP_PROXY` is set asks its proxy for every address, and the proxy looks for 127.0.0.1 on a machine of
its own: the agent makes no call, and the rollout's secret goes where nobody meant it to go. So it is named what is
near: loopback, and Treering's own address where that is one of a private network (RFC 1918 and its like) or a name
without a dot. A public name is not: the proxy may be the only way there.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def no_proxy(url: str) -> str:
    """Return the value of `NO_PROXY` for an agent that connects to that URL."""
    host = urlsplit(url).hostname or ""
    return ",".join(dict.fromkeys((*LOOPBACK, *([host] if _is_near(host) else []))))


def _is_near(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        # `treering`, `host.docker.internal`, `node7.local`: names that only the sandbox's own network knows.
        return bool(host) and ("." not in host or host.endswith((".internal", ".local")))
