"""The script that runs gradio's library: as a program of its own, what it prints and how it ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.tunnel.test_gradio import PYTHON, frpc  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tunnel" / "gradio_share.py"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not PYTHON.exists() and not os.environ.get("TREERING_REQUIRE_REAL"),
        reason="gradio's environment is missing: bin/setup.py bench-openenv",
    ),
]


def test_it_prints_the_address_and_ends_with_the_clients_code(frpc):  # noqa: F811 - the fixture
    argv = [str(PYTHON), "-P", str(SCRIPT), "127.0.0.1", "9", "a-token", "127.0.0.1:7000"]
    environment = {**os.environ, "TREERING_FRPC": str(frpc), "STANDIN_FRPC": "dies"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("treering: url http://127.0.0.1:")
