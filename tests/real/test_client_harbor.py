"""Harbor reads the jobs that the client makes, as they were meant."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.real import library

sys.path.append(str(Path(__file__).resolve().parents[2] / "client"))

from treering_client.adapters import harbor

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def test_its_own_model_takes_the_jobs(tmp_path):
    env = {"OPENAI_BASE_URL": "http://10.0.0.5:8400/v1", "OPENAI_API_KEY": "sk-secret"}
    rollout = SimpleNamespace(
        id="r", url="http://10.0.0.5:8400", base_url="http://10.0.0.5:8400/v1", secret="sk-secret", model="m", env=env
    )
    jobs = [harbor.job(rollout, name, "tasks/hello") for name in ("opencode", "terminus-2")]
    installed, outside = library.ask("harbor", "client_harbor.py", jobs, tmp_path)
    (agent,) = installed["agents"]
    assert (agent["name"], agent["model_name"]) == ("opencode", "openai/m")
    assert agent["env"]["OPENAI_API_KEY"] == "${OPENAI_API_KEY}"
    assert [task["path"] for task in installed["tasks"]] == ["tasks/hello"]
    assert installed["n_attempts"] == 1
    assert outside["agents"][0]["kwargs"]["api_base"] == "http://10.0.0.5:8400/v1"
