"""Harbor's recipe."""

import json

from capture import agents

GIVEN = {"base_url": "http://h/v1", "model": "m", "secret": "s3", "context": 9_000, "output": 1_000}


def test_the_job_names_the_variables_of_address_and_key():
    recipe = agents.harbor(**GIVEN)
    (content,) = recipe.files.values()
    assert "s3" not in content
    assert "http://h" not in content
    (agent,) = json.loads(content)["agents"]
    assert agent["env"]["OPENAI_BASE_URL"] == "${OPENAI_BASE_URL}"
    assert agent["env"]["OPENAI_API_KEY"] == "${OPENAI_API_KEY}"
    assert recipe.env == {"OPENAI_BASE_URL": "http://h/v1", "OPENAI_API_KEY": "s3"}


def test_the_agent_has_the_settings_that_it_has_without_harbor():
    (content,) = agents.harbor(**GIVEN).files.values()
    (agent,) = json.loads(content)["agents"]
    alone = agents.opencode(**GIVEN)
    (config,) = alone.files.values()
    assert agent["kwargs"]["opencode_config"] == json.loads(config)
    assert agent["model_name"] == alone.command[alone.command.index("--model") + 1]
    assert agent["env"].keys() == alone.env.keys()
