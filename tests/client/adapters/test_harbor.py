"""What a Harbor job is told of a rollout. Harbor's own models look at it in tests/real."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from treering_client.adapters import harbor


def rollout(url="http://10.0.0.5:8400", secret="sk-treering-abc"):
    env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": secret, "NO_PROXY": "localhost", "X": "y"}
    return SimpleNamespace(id="r1", url=url, base_url=f"{url}/v1", secret=secret, model="tiny", env=env)


def test_the_key_stands_in_the_environment_and_not_in_the_job():
    job = harbor.job(rollout(), "opencode", "tasks/hello")
    assert "sk-treering-abc" not in json.dumps(job)
    assert harbor.environment(rollout())["OPENAI_API_KEY"] == "sk-treering-abc"
    (agent,) = job["agents"]
    assert agent["env"]["OPENAI_API_KEY"] == "${OPENAI_API_KEY}"
    assert agent["model_name"] == "openai/tiny"
    assert (job["tasks"], job["n_attempts"]) == ([{"path": "tasks/hello"}], 1)


def test_an_agent_outside_of_the_sandbox_may_use_loopback():
    agent = harbor.agent(rollout("http://127.0.0.1:8400"), "terminus-2", context=4096, output=512)
    assert agent["kwargs"] == {
        "api_base": "http://127.0.0.1:8400/v1",
        "model_info": {"max_input_tokens": 4096, "max_output_tokens": 512},
    }


def test_an_agent_in_a_sandbox_may_not():
    with pytest.raises(ValueError, match="loopback"):
        harbor.agent(rollout("http://127.0.0.1:8400"), "opencode")


def test_a_rollout_without_its_secret_can_not_be_handed_over():
    with pytest.raises(ValueError, match="attached to"):
        harbor.environment(rollout(secret=""))
