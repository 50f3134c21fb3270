"""codex's recipe."""

import tomllib

from capture import agents


def test_codex_reads_the_key_from_a_variable_and_the_rest_from_its_file():
    recipe = agents.codex(base_url="http://h/v1", model='a "b"', secret="s3", context=9, output=3)
    (content,) = recipe.files.values()
    config = tomllib.loads(content)
    provider = config["model_providers"][config["model_provider"]]
    assert (provider["base_url"], provider["env_key"]) == ("http://h/v1", "OPENAI_API_KEY")
    assert config["model"] == 'a "b"'
    assert (config["model_context_window"], config["model_auto_compact_token_limit"]) == (9, 6)
    assert recipe.env["OPENAI_API_KEY"] == "s3"
    assert "s3" not in content


def test_codex_gets_no_tool_that_is_not_its_own():
    (content,) = agents.codex(base_url="http://h/v1", model="m").files.values()
    assert tomllib.loads(content)["web_search"] == "disabled"
