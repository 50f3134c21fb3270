"""Another machine: a network namespace of its own behind a pair of virtual wires, where the system allows one.

What runs there has a loopback of its own, so it can't reach ours, and it is reached at a private address. Where no
namespace can be made (that takes root and iproute2), it is this machine's loopback, and `Machine.told` says so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple


class Machine(NamedTuple):
    """Where something runs."""

    # Its address, as seen from here and from itself.
    host: str
    # What stands before a command line to run it there.
    prefix: tuple[str, ...]
    # For the test's output.
    told: str

    @property
    def other(self) -> bool:
        """Whether it is another than this one."""
        return bool(self.prefix)


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """Another machine for a block; all that was started there must have ended by then."""
    word = secrets.token_hex(3)
    name, here, there = f"treering-{word}", f"trh{word}", f"trt{word}"
    # 198.18.0.0/15 is for tests between networks (RFC 2544); a /30 of it is one wire.
    net = 4 * secrets.randbelow(2**13)
    first, second = (f"198.18.{(net + n) // 256}.{(net + n) % 256}" for n in (1, 2))
    try:
        if os.geteuid() or not shutil.which("ip"):
            raise OSError("a network namespace takes root and iproute2")
        try:
            _ip("netns", "add", name)
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            _ip("addr", "add", f"{first}/30", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", name, "addr", "add", f"{second}/30", "dev", there)
            _ip("-n", name, "link", "set", there, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        except OSError:
            _remove(name)
            raise
    except OSError as error:
        yield Machine("127.0.0.1", (), f"on this machine's loopback: {error}")
        return
    try:
        yield Machine(second, ("ip", "netns", "exec", name), f"in a network namespace of its own, at {second}")
    finally:
        _remove(name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise OSError(f"ip {' '.join(words[:3])}: {done.stderr.strip() or done.returncode}")


def _remove(name: str) -> None:
    # The wire goes with its end.
    with contextlib.suppress(OSError):
        _ip("netns", "del", name)
