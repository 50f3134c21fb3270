"""gemini-cli's recipe."""

import json

from capture import agents


def test_gemini_cli_reads_address_and_key_from_variables():
    recipe = agents.gemini_cli(base_url="http://h/v1/", model="m", secret="s3")
    (content,) = recipe.files.values()
    assert recipe.env["GOOGLE_GEMINI_BASE_URL"] == "http://h"
    assert recipe.env["GEMINI_API_KEY"] == "s3"
    assert "s3" not in content
    assert recipe.command[:4] == ["gemini", "--yolo", "-m", "m"]


def test_gemini_cli_compacts_in_time_though_it_takes_any_window_for_a_million():
    (content,) = agents.gemini_cli(base_url="http://h/v1", model="m", context=40_000, output=8_000).files.values()
    assert json.loads(content)["model"]["compressionThreshold"] * 1_048_576 == 32_000
