"""pi's recipe."""

import json

from capture import agents


def test_the_key_stays_in_a_variable():
    recipe = agents.pi(base_url="http://h/v1", model="org/m", secret="s3", context=9_000, output=1_000)
    provider = json.loads(recipe.files["~/.pi/agent/models.json"])["providers"]["treering"]
    assert (provider["baseUrl"], provider["apiKey"]) == ("http://h/v1", "OPENAI_API_KEY")
    assert recipe.env["OPENAI_API_KEY"] == "s3"
    assert "s3" not in "".join(recipe.files.values())
    (model,) = provider["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("org/m", 9_000, 1_000)
    assert recipe.command[:5] == ["pi", "--provider", "treering", "--model", "org/m"]


def test_a_small_window_has_room_for_what_is_kept_and_a_reply():
    for context, kept in ((8_192, 1_024), (131_072, 16_384), (1_000_000, 20_000)):
        recipe = agents.pi(base_url="http://h/v1", model="m", context=context, output=512)
        compaction = json.loads(recipe.files["~/.pi/agent/settings.json"])["compaction"]
        assert (compaction["reserveTokens"], compaction["keepRecentTokens"]) == (512, kept)


def test_reasoning_goes_back_and_nothing_goes_elsewhere():
    recipe = agents.pi(base_url="http://h/v1", model="m")
    (provider,) = json.loads(recipe.files["~/.pi/agent/models.json"])["providers"].values()
    assert provider["models"][0]["reasoning"] is True
    assert recipe.env["PI_OFFLINE"] == "1"
