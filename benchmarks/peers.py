"""Other people's proxies, each in an environment of its own, made on first use (`bin/bench overhead --peers`).

- `openenv`: OpenEnv's capture server, `python -m openenv.core.harness.capture.server`. Asks for a whole reply, keeps
  ids and logprobs in memory, and replies whole or with a stream of one event.
- `litellm`: LiteLLM's proxy, one worker, no database, no callbacks. Relays, and records nothing.
- `verifiers`: verifiers' interception server with its client for evaluations. Relays, and parses the reply for its
  trace, without ids; a stream is held back until its end.

verifiers' other client, for training, tokenises itself and asks a route of vLLM's that takes ids: against replies that
are ready beforehand it cannot be driven. LiteLLM's newest releases name packages that the index does not have; the one
here is the newest whose `proxy` extra installs as it is.

None of the three keeps anything on disk. OpenEnv passes no headers on, so it is told in the body which reply is wanted
(`upstream.py`), 30 bytes more than the others get.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import systems
from benchmarks.load import CHAT, Marks
from benchmarks.systems import ROOT, System

OPENENV = "0.10.0"
LITELLM = "1.106.12"

START_LIMIT_S = 120.0
"""LiteLLM imports for a quarter of a minute on two cores."""

_KEY = "sk-bench"


class OpenEnv(System):
    """OpenEnv's capture server."""

    # Its stream's one event, as Python's json writes it.
    marks = Marks(CHAT.event, b'"content":')

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        super().__init__("openenv", process, url)
        self._sessions: list[str] = []

    def told(self, body: bytes, bench: str) -> bytes:
        """Return a body that names its reply."""
        return b'{"user":"%b",%b' % (bench.encode(), body[1:])

    def open(self, conversations: int) -> list[str]:
        """Make a session for each conversation; its id is the key."""
        self._sessions = [_ask("POST", f"{self.url}/sessions", {})["session_id"] for _ in range(conversations)]
        return self._sessions

    def close_round(self, calls: dict[int, int]) -> None:
        """Drop the sessions. Raises RuntimeError if a turn is missing."""
        for conversation, session in enumerate(self._sessions):
            turns = _ask("GET", f"{self.url}/sessions/{session}")["n_turns"]
            if turns != calls[conversation]:
                raise RuntimeError(f"openenv: {calls[conversation]} calls were made and {turns} captured")
            _ask("DELETE", f"{self.url}/sessions/{session}")


class LiteLLM(System):
    """LiteLLM's proxy."""

    marks = Marks(CHAT.event, b'"content":"')

    def open(self, conversations: int) -> list[str]:
        """Return the one key that there is."""
        return [_KEY] * conversations


class Verifiers(System):
    """verifiers' interception server."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, control: str) -> None:
        super().__init__("verifiers", process, url)
        self._control = control

    def open(self, conversations: int) -> list[str]:
        """Register a session for each conversation; return their secrets."""
        secrets: list[str] = _ask("POST", f"{self._control}/open", {"n": conversations})["secrets"]
        return secrets

    def close_round(self, calls: dict[int, int]) -> None:
        """Drop the sessions. Raises RuntimeError if a turn is missing."""
        turns = _ask("POST", f"{self._control}/close", {})["turns"]
        if turns != [calls[conversation] for conversation in sorted(calls)]:
            raise RuntimeError(f"verifiers: {calls} calls were made and {turns} recorded")


def start(upstream: str, folder: Path) -> tuple[list[System], list[str]]:
    """Start every peer that can be had; return them, and a sentence for each that can't."""
    found: list[System] = []
    why: list[str] = []
    for name, starts in PEERS.items():
        try:
            found.append(starts(upstream, folder))
        except RuntimeError as error:
            why.append(f"{name} is left out: {error}")
    return found, why


def start_openenv(upstream: str, folder: Path) -> System:
    """Start OpenEnv's capture server. Raises RuntimeError."""
    python = environment("openenv", f"openenv=={OPENENV}", "450 MB") / "bin" / "python"
    port = _free_port()
    # The level would be found out by a probe of its own; said, it is what that would find.
    command = [
        str(python), "-m", "openenv.core.harness.capture.server", "--llm-url", upstream, "--model", "bench",
        "--engine", "vllm", "--port", str(port), "--capture-level", "tokens",
    ]  # fmt: skip
    process = systems.start("openenv", command, folder)
    url = f"http://127.0.0.1:{port}"
    _wait(f"{url}/health", process, folder / "openenv.log")
    return OpenEnv(process, url)


def start_litellm(upstream: str, folder: Path) -> System:
    """Start LiteLLM's proxy. Raises RuntimeError."""
    program = environment("litellm", f"litellm[proxy]=={LITELLM}", "600 MB") / "bin" / "litellm"
    port = _free_port()
    config = folder / "litellm.yaml"
    parameters = {"model": "hosted_vllm/bench", "api_base": f"{upstream}/v1", "api_key": "none"}
    # JSON is YAML.
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "bench", "litellm_params": parameters}],
                "litellm_settings": {"num_retries": 0, "request_timeout": 600},
                "general_settings": {"master_key": _KEY, "forward_client_headers_to_llm_api": True},
            }
        )
    )
    command = [
        str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1",
        "--telemetry", "False",
    ]  # fmt: skip
    # Prices come with the package; it would look for newer ones on the network.
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    process = systems.start("litellm", command, folder, **quiet)
    url = f"http://127.0.0.1:{port}"
    _wait(f"{url}/health/liveliness", process, folder / "litellm.log")
    return LiteLLM("litellm", process, url)


def start_verifiers(upstream: str, folder: Path) -> System:
    """Start verifiers' interception server. Raises RuntimeError."""
    setup = _setup()
    if setup.main(["real-verifiers"]):
        raise RuntimeError("verifiers cannot be installed; bin/setup.py real-verifiers says why")
    python = setup.REAL / "verifiers" / "bin" / "python"
    script = Path(__file__).parent / "verifiers_server.py"
    process = systems.start("verifiers", [str(python), str(script), upstream], folder, HF_HUB_OFFLINE="1")
    control, url = systems.addresses(process, folder / "verifiers.log", 2)
    return Verifiers(process, url, control)


PEERS: dict[str, Callable[[str, Path], System]] = {
    "openenv": start_openenv,
    "litellm": start_litellm,
    "verifiers": start_verifiers,
}


def environment(name: str, requirement: str, size: str) -> Path:
    """Return the folder of an environment with one package, made on first use. Raises RuntimeError."""
    setup = _setup()
    folder: Path = setup.REAL / f"bench-{name}"

    def build() -> None:
        setup.make_venv(folder, sys.executable, ">= (3, 10)")
        env = setup.install_environment()
        setup.run([*setup.installer(folder, env), requirement], env=env)

    try:
        setup.make(
            setup.REAL / f"bench-{name}.stamp",
            lambda: f"{requirement.replace('==', ' ')} {ROOT}",
            f"installing {name} into .real/bench-{name} (a minute or two, {size})",
            build,
        )
    except setup.SetupError as error:
        raise RuntimeError(str(error)) from error
    return folder


def _setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("treering_setup", ROOT / "bin" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    # The parts that it is made of look it up there.
    sys.modules[spec.name] = setup
    spec.loader.exec_module(setup)
    return setup


def _ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - our own address
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        return json.load(answer)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > end:
                systems.stop(process)
                raise RuntimeError(f"{log.stem} did not start: {log.read_text(errors='replace')[-1000:]}") from error
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
