"""Ask a trainer's library, in its own environment, what it makes of something: JSON in, JSON out.

A script of tests/real runs in `.real/NAME` as `python SCRIPT CASE REPORT`. It gets few variables, a home of its own and
no way out.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.real import program

HERE = Path(__file__).parent
# An import of torch on a busy machine, and seconds of work.
LIMIT_S = 300.0


class LibraryError(Exception):
    """The script failed; the message holds the end of what it said."""


def needed(name: str) -> None:
    """Skip the test where a library's environment is missing or half made."""
    stamp = program.REAL / f"{name}.stamp"
    if (reason := program.missing_venv(name, "python")) or not stamp.exists():
        pytest.skip(reason or f"{name}: its installation did not end: run bin/setup.py real-{name}")


def ask(name: str, script: str, case: Any, folder: Path, *, limit_s: float = LIMIT_S) -> Any:
    """Run a script in a library's environment and return its report.

    Skips where the environment is missing. Raises `LibraryError`.
    """
    needed(name)
    folder.mkdir(parents=True, exist_ok=True)
    asked, report = folder / "case.json", folder / "report.json"
    asked.write_bytes(encoded(case))
    argv = [str(program.REAL / name / "bin" / "python"), str(HERE / script), str(asked), str(report)]
    env = program.environment(folder) | {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode:
        raise LibraryError(f"{script} ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    return msgspec.json.decode(report.read_bytes())


def encoded(value: Any) -> bytes:
    """Encode a form as it goes over the wire: arrays as lists, no number as null."""

    def lists(array: np.ndarray) -> Any:
        return array.tolist()

    return msgspec.json.encode(value, enc_hook=lists)
