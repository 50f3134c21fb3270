"""The script that runs gradio's library: as a program of its own, what it prints and how it ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.tunnel.test_gradio import MISSING, PYTHON, frpc  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tunnel" / "gradio_share.py"

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON.exists() and not os.environ.get("TREERING_REQUIRE_REAL"), reason=MISSING),
]


def test_it_prints_what_its_client_says_and_the_address_and_ends_with_its_code(frpc):  # noqa: F811 - the fixture
    argv = [str(PYTHON), "-P", str(SCRIPT), "127.0.0.1", "9", "a-token", "127.0.0.1:7000"]
    environment = {**os.environ, "TREERING_FRPC": str(frpc), "STANDIN_FRPC": "dies"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    (address,) = [line for line in done.stdout.splitlines() if line.startswith("treering: url ")]
    assert address.startswith("treering: url http://127.0.0.1:")
    assert "connecting to 127.0.0.1:7000" in done.stdout


def test_it_brings_in_no_more_of_the_library_than_a_tunnel_needs():
    """Three to thirty seconds and 150 MiB a tunnel: a version that needs more of it should be noticed here."""
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('share', sys.argv[1]);"
        "share = importlib.util.module_from_spec(spec); spec.loader.exec_module(share);"
        "networking, tunneling = share._library();"
        "print(networking.setup_tunnel.__module__, networking.Tunnel is tunneling.Tunnel);"
        "print('gradio.blocks' in sys.modules)"
    )
    argv = [str(PYTHON), "-P", "-c", code, str(SCRIPT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == ["gradio.networking", "True", "False"]
