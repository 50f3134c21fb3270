"""mini-swe-agent's recipe."""

from capture import agents


def test_it_is_variables_and_a_command_line():
    recipe = agents.mini_swe_agent(base_url="http://h/v1", model="org/m", secret="s3", output=77)
    assert recipe.files == {}
    assert (recipe.env["OPENAI_API_BASE"], recipe.env["OPENAI_API_KEY"]) == ("http://h/v1", "s3")
    assert "openai/org/m" in recipe.command
    assert recipe.command[-2:] == ["--task", agents.TASK]


def test_its_own_settings_are_named_before_ours():
    command = agents.mini_swe_agent(base_url="http://h/v1", model="m", output=77).command
    given = [command[place + 1] for place, word in enumerate(command) if word == "--config"]
    assert given == ["mini.yaml", "model.model_kwargs.max_tokens=77"]
