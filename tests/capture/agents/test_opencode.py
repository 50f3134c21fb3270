"""The configuration that agents are given."""

import json

from capture import agents


def test_opencode_reads_address_and_key_from_what_registration_answers_with():
    recipe = agents.opencode(
        base_url="http://127.0.0.1:8400/v1", model="Qwen/Qwen3-8B", secret="s3", context=9, output=3
    )
    (content,) = recipe.files.values()
    config = json.loads(content)
    provider = config["provider"]["treering"]
    assert provider["options"] == {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"}
    assert provider["models"]["Qwen/Qwen3-8B"]["limit"] == {"context": 9, "output": 3}
    assert recipe.env["OPENAI_BASE_URL"] == "http://127.0.0.1:8400/v1"
    assert recipe.env["OPENAI_API_KEY"] == "s3"
    assert "s3" not in content


def test_opencode_can_reach_nothing_else_and_keeps_its_prefixes():
    recipe = agents.opencode(base_url="http://h/v1", model="m")
    config = json.loads(recipe.files["~/.config/opencode/opencode.json"])
    assert config["model"] == config["small_model"] == "treering/m"
    assert config["enabled_providers"] == ["treering"]
    assert config["compaction"]["prune"] is False
    assert config["autoupdate"] is False
    assert config["share"] == "disabled"


def test_as_text_it_can_be_pasted_into_a_shell():
    text = agents.text(agents.opencode(base_url="http://h/v1", model="m", secret="a'b"))
    assert "export OPENAI_API_KEY='a'\"'\"'b'" in text
    assert text.endswith("opencode run --model treering/m 'the task' </dev/null")
