"""The systems measured: each a process of its own in front of the same upstream, and what it costs, read from /proc.

`direct` is no proxy at all: its process is the benchmark's own, which is load and upstream in one. What these two take
is in every figure, and its row tells how much.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class System:
    """One process that answers agents' calls at `url`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes] | int, url: str, *, ids: bool = True) -> None:
        """`process` may be an id, of a process that is not to be stopped.

        With `ids` false its upstream answers without ids and logprobs.
        """
        self.name = name
        self.url = url
        self.ids = ids
        self._process = process

    def __repr__(self) -> str:
        return f"<System {self.name} {self.url}>"

    def without_ids(self) -> System:
        """Return the same process, asked for replies without ids and logprobs."""
        return System(f"{self.name}, no ids", self._process, self.url, ids=False)

    def open(self, conversations: int) -> list[str]:
        """Return an API key for each conversation of a round."""
        return ["none"] * conversations

    def close_round(self, calls: dict[int, int]) -> None:
        """End a round of so many calls in each conversation."""

    def stop(self) -> None:
        """Stop the process."""
        if not isinstance(self._process, int):
            stop(self._process)

    def cpu_ms(self) -> float:
        """Return the CPU time used so far by the process and its children, in milliseconds."""
        return sum(map(_cpu_ms, self._pids()))

    def reset_peak(self) -> None:
        """Begin anew to note the most memory."""
        for pid in self._pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        """Return the most memory held since `reset_peak`, summed over the processes, in MiB."""
        return sum(map(_peak_mib, self._pids()))

    def _pids(self) -> list[int]:
        if isinstance(self._process, int):
            return [self._process]
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]


class Treering(System):
    """The appliance, with its store in a folder of the run."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, control_url: str, key: str) -> None:
        super().__init__("treering", process, url)
        self._control = control_url.removeprefix("http://")
        self._key = key
        self._rollouts: list[str] = []

    def open(self, conversations: int) -> list[str]:
        """Register a rollout for each conversation; return their secrets."""
        return [each["secret"] for each in self.register({"n": conversations})]

    def register(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Register rollouts, those of the round; return what their owner is told."""
        made = self.ask("POST", "/rollouts", body)
        listed: list[dict[str, Any]] = made.get("rollouts", [made])
        self._rollouts = [each["id"] for each in listed]
        return listed

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._pids()[0]

    def close_round(self, calls: dict[int, int]) -> None:
        """Wait until all is recorded, and drop it. Raises RuntimeError if a call is missing."""
        for conversation, rollout in enumerate(self._rollouts):
            numbers = self.ask("GET", f"/rollouts/{rollout}/calls?limit=1000")["calls"]
            sound = [each for each in numbers if each["status"] == "complete" and each["n_sampled"]]
            if len(sound) != calls[conversation]:
                raise RuntimeError(f"{calls[conversation]} calls were made and {len(sound)} recorded")
            self.ask("DELETE", f"/rollouts/{rollout}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the control plane. Raises RuntimeError unless it does as it is asked."""
        connection = http.client.HTTPConnection(self._control, timeout=60)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}: {text[:300]!r}")
        return json.loads(text) if text else None


def direct(upstream_url: str) -> System:
    """Return the upstream without a proxy."""
    return System("direct", os.getpid(), upstream_url)


def start_bare(upstream: str, folder: Path) -> System:
    """Start the bare pass-through."""
    process = _start("bare", [sys.executable, "-m", "benchmarks.bare", upstream], folder)
    return System("bare", process, _addresses(process, folder / "bare.log", 1)[0])


def start_treering(upstream: str, folder: Path, *words: str, path: str | None = None) -> Treering:
    """Start the appliance, with more words on its command line, and another PATH."""
    command = [
        sys.executable, "-m", "capture.cli", "serve", "--engine", f"vllm={upstream}",
        "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--store", f"sqlite:///{folder}/treering.db",
        *words,
    ]  # fmt: skip
    process = _start("treering", command, folder, path=path)
    log = folder / "treering.log"
    agents, engine, control = _addresses(process, log, 3)
    assert engine == upstream
    return Treering(process, agents, control, (folder / "treering.db.key").read_text().strip())


def start_nginx(upstream: str, folder: Path) -> System | None:
    """Start nginx with one worker, as a proxy that holds nothing back; None where there is none on the PATH."""
    nginx = shutil.which("nginx")
    if nginx is None:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(_NGINX % {"folder": folder, "port": port, "upstream": upstream.removeprefix("http://")})
    process = _start("nginx", [nginx, "-p", str(folder), "-c", str(config)], folder)
    end = time.monotonic() + START_LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > end:
                stop(process)
                raise RuntimeError(f"nginx did not start: {(folder / 'nginx.log').read_text()}") from error
            time.sleep(0.05)
        else:
            return System("nginx", process, f"http://127.0.0.1:{port}")


_NGINX = """
daemon off; worker_processes 1; pid %(folder)s/nginx.pid; error_log stderr warn;
events { worker_connections 1024; }
http {
  access_log off; client_max_body_size 0; client_body_buffer_size 2m; keepalive_requests 1000000;
  client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy; fastcgi_temp_path %(folder)s/fastcgi;
  uwsgi_temp_path %(folder)s/uwsgi; scgi_temp_path %(folder)s/scgi;
  upstream engine { server %(upstream)s; keepalive 64; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:%(port)s backlog=1024;
    location / {
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 1h;
    }
  }
}
"""


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and end it if it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(name: str, command: list[str], folder: Path, *, path: str | None = None) -> subprocess.Popen[bytes]:
    # Settings of the caller's must not reach the appliance, nor a treering.toml in the working folder.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TREERING_")}
    environment["PYTHONPATH"] = str(ROOT)
    if path is not None:
        environment["PATH"] = path
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def _addresses(process: subprocess.Popen[bytes], log: Path, count: int) -> list[str]:
    """Return the first so many addresses that a process prints. Raises RuntimeError with its words if it ends."""
    end = time.monotonic() + START_LIMIT_S
    while True:
        told = log.read_text(errors="replace")
        # Whole lines alone: the last one may still be on its way.
        found = _ADDRESS.findall(told[: told.rfind("\n") + 1])
        if len(found) >= count:
            return found[:count]
        if process.poll() is not None or time.monotonic() > end:
            stop(process)
            raise RuntimeError(f"{log.stem} did not start: {told[-2000:]}")
        time.sleep(0.05)


def _cpu_ms(pid: int) -> float:
    # Nanoseconds that each thread ran; `stat` counts in ticks of 10 ms, too coarse for a round.
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e6


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
