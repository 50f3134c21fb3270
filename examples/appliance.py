"""Where the examples find an appliance: the one that is named, or one of their own on the scripted engine.

The examples need Python 3.11 or newer and nothing else: `treering_client` is the standard library alone, and an
appliance of their own is started by `bin/treering`, which sets itself up in the clone on first use.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if importlib.util.find_spec("treering_client") is None:
    # Not installed: the clone has it.
    sys.path.insert(0, str(ROOT / "client"))

from treering_client import Client  # noqa: E402 -- found by the line above
from treering_client.rollout import Rollout  # noqa: E402 -- the same

# With its first setting-up; once that is done it starts in a second.
START_LIMIT_S = 600.0
STOP_LIMIT_S = 30.0
ANSWER_LIMIT_S = 60.0
REPLY_LIMIT_S = 600.0

PATHS = {"PYTHONPATH": str(ROOT)}
"""Where a Python that is started finds the clone."""


def arguments(about: str) -> argparse.ArgumentParser:
    """Return a parser that knows how an appliance is named."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="The control plane of an appliance that runs. Default: one is started.")
    parser.add_argument("--key", help="Its admin key. Default: TREERING_ADMIN_KEY.")
    return parser


@dataclass(frozen=True)
class Appliance:
    """A running appliance: its control plane's address and key, and a client of it."""

    url: str
    key: str
    client: Client

    @property
    def page(self) -> str:
        """The page's address. The key stands behind `#`, which no browser sends to a server."""
        return f"{self.url}/#key={self.key}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call what the client has no method for; return the answer's JSON."""
        return _ask(method, self.url + path, self.key, body, ANSWER_LIMIT_S)


def chat(rollout: Rollout, messages: Sequence[Any], tools: Sequence[Any] = ()) -> dict[str, Any]:
    """Make one model call as an agent does, with the rollout's address and key; return the reply's message."""
    body = {"model": "any", "messages": messages, **({"tools": tools} if tools else {})}
    reply = _ask("POST", f"{rollout.base_url}/chat/completions", rollout.secret, body, REPLY_LIMIT_S)
    message: dict[str, Any] = reply["choices"][0]["message"]
    return message


def _ask(method: str, url: str, key: str, body: Any, limit_s: float) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 -- the appliance's own address
    # A proxy that the environment names is not for an appliance: these examples run beside it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=limit_s) as answer:
        return json.load(answer)


@contextlib.contextmanager
def appliance(url: str | None = None, key: str | None = None, *, engine: str = "scripted") -> Iterator[Appliance]:
    """Yield the appliance at `url`; without one, one of our own, which ends with the block.

    `engine` is what our own is started with. Raises `RuntimeError` with what it said if it does not start.
    """
    if url is not None:
        key = key or os.environ.get("TREERING_ADMIN_KEY", "")
        with Client(url, key) as client:
            client.health()
            yield Appliance(url.rstrip("/"), key, client)
        return
    with tempfile.TemporaryDirectory(prefix="treering-example-") as folder, _started(Path(folder), engine) as found:
        key = (Path(folder) / "treering.db.key").read_text().strip()
        with Client(found, key) as client:
            yield Appliance(found, key, client)


def treering() -> list[str]:
    """Return the words that start the command line, with the variables of `PATHS`.

    It is the clone's, by this Python where it has what that needs, else by one that `bin/treering` sets up.
    """
    if importlib.util.find_spec("aiohttp") and importlib.util.find_spec("apsw"):
        return [sys.executable, "-m", "capture.cli"]
    return [str(ROOT / "bin" / "treering")]


@contextlib.contextmanager
def _started(folder: Path, engine: str) -> Iterator[str]:
    """Run an appliance with its store in a folder and free ports; yield its control plane's address."""
    log = folder / "treering.log"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")} | PATHS
    argv = [*treering(), "serve", "--engine", engine, "--store", f"sqlite:///{folder / 'treering.db'}"]
    argv += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--shutdown-timeout", "2"]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 -- our own program
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    before = _ended_in_order()
    try:
        end = time.monotonic() + START_LIMIT_S
        while not (found := re.search(r"^control\s+(http://\S+)", log.read_text(errors="replace"), re.MULTILINE)):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the appliance did not start:\n{log.read_text(errors='replace').strip()}")
            time.sleep(0.05)
        yield found[1]
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ended_in_order() -> Any:
    """Have a SIGTERM end this program by way of its blocks, or what it started outlives it; return what it did before.

    None where that can't be had: only the main thread may.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
