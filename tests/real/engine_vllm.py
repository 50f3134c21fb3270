"""Start and stop the real vLLM that bin/setup.py puts into .real.

One engine serves a whole test session, at the fixture `vllm`: a start costs about a minute on two cores. Its flags are
those of an ordinary server for an agent (tool and reasoning parser of the model's family) plus processed logprobs,
which are what a trainer wants.

A second model and server, SHARP, are for holding logprobs to what a trainer computes: float32, full distribution. Two
engines at once do not start on a small machine, so one ends before the other begins (`tests/real/conftest.py`).

Mind in tests: vLLM 0.32 on CPUs ends with `CPU Generator does not use offset` on a request with a seed, a temperature
above 0 and a prompt that needs more than one prefill chunk, and every later request then fails. Keep seeded prompts
under 2,000 tokens, or send longer ones greedily.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.real.orphans import end_with_parent

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".real" / "vllm" / "bin" / "python"
MODEL = ROOT / ".real" / "model"
# Says words, with an entropy of 1.5 nats a token (tests/real/tiny_model.py).
SHARP_MODEL = ROOT / ".real" / "model-sharp"

MODEL_NAME = "tiny"
MAX_MODEL_LEN = 16384

# Below what systems hand out for port 0 (Linux: 32768 and up).
PORTS = (20_000, 32_000)

# A start took 40 to 80 s on two cores; twice that again for a machine that does other things too.
START_LIMIT_S = 240.0
# vLLM ends its engine process itself on SIGTERM; a stuck one is killed with its whole process group.
STOP_LIMIT_S = 20.0

FLAGS = (
    *("--served-model-name", MODEL_NAME, "--max-model-len", str(MAX_MODEL_LEN), "--dtype", "bfloat16"),
    *("--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    *("--logprobs-mode", "processed_logprobs", "--disable-uvicorn-access-log"),
)

# float32, as the trainer that recomputes. No reasoning parser: what this model says is all text.
SHARP_FLAGS = (
    *("--served-model-name", MODEL_NAME, "--max-model-len", "4096", "--dtype", "float32", "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--logprobs-mode", "processed_logprobs"),
    "--disable-uvicorn-access-log",
)

# What a test may name with `pytest.mark.parametrize("vllm", [...], indirect=True)`: model and flags.
ENGINES = {"tiny": (MODEL, FLAGS), "sharp": (SHARP_MODEL, SHARP_FLAGS)}


@dataclass(frozen=True, kw_only=True)
class Vllm:
    """A running engine: where it answers, without a path; its model's name; its log."""

    base_url: str
    model: str
    log: Path


class EngineError(Exception):
    """The engine did not come up; the message holds the end of its log."""


def missing(model: Path = MODEL) -> str | None:
    """Say in a sentence why the engine cannot be started here with a model, or return None."""
    if PYTHON.exists() and (model / "model.safetensors").exists():
        return None
    why = ROOT / ".real" / "vllm.why"
    reason = why.read_text().strip() if why.exists() else "it is not installed: run bin/test, or bin/setup.py real-vllm"
    return f"vLLM: {reason}"


@contextlib.contextmanager
def running(folder: Path, *, model: Path = MODEL, flags: tuple[str, ...] = FLAGS) -> Iterator[Vllm]:
    """Run an engine for as long as the context lasts; its log and its home lie in `folder`.

    Raise EngineError when it ends, or has not answered /health with 200, within START_LIMIT_S.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "vllm.log"
    argv = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*argv, "--host", "127.0.0.1", "--port", str(port), *flags],
            env=environment(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own: vLLM is three processes, and all must go
            preexec_fn=end_with_parent,
        )
        try:
            wait_until_healthy(process, url, log)
            yield Vllm(base_url=url, model=MODEL_NAME, log=log)
        finally:
            stop(process)


def environment(home: Path) -> dict[str, str]:
    """Return the engine's variables: nothing of the caller's but its PATH, nothing fetched, nothing reported."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # "auto" keeps one core free for the server process beside the engine's; a single core cannot be shared out.
        "VLLM_CPU_OMP_THREADS_BIND": "auto" if (os.cpu_count() or 1) > 1 else "nobind",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def free_port() -> int:
    """Return a loopback port that is free: vLLM does not print the one that it gets for 0.

    Half a minute goes by until it listens there, so it is none of those that are handed out for 0: other tests' servers
    would have it by then.
    """
    for port in random.sample(range(*PORTS), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise EngineError(f"no port is free between {PORTS[0]} and {PORTS[1]}")


def wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Return once /health answers 200; raise EngineError when the process ends first or the time is up."""
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until:
        # OSError covers URLError: refused until the server listens, 503 while the engine behind it is loading.
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            if reply.status == 200:
                return
        # The wait between two looks, which ends at once when the process does.
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=0.5)
            raise EngineError(f"vLLM ended with code {code} while starting:\n{tail(log)}")
    raise EngineError(f"vLLM had not answered /health after {START_LIMIT_S:.0f} s:\n{tail(log)}")


def tail(log: Path, *, lines: int = 30) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine and all that it started: politely, then not."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        # Also after a polite end: the group outlives its leader when a worker hangs.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=STOP_LIMIT_S)
