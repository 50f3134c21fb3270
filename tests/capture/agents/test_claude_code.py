"""claude-code's recipe."""

from capture import agents


def test_claude_code_is_told_all_by_variables():
    recipe = agents.claude_code(base_url="http://h/v1", model="m", secret="s3", context=90_000, output=3)
    assert recipe.files == {}
    assert recipe.env["ANTHROPIC_BASE_URL"] == "http://h"
    assert recipe.env["ANTHROPIC_AUTH_TOKEN"] == "s3"
    assert recipe.env["ANTHROPIC_MODEL"] == recipe.env["ANTHROPIC_SMALL_FAST_MODEL"] == "m"
    assert recipe.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == recipe.env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "90000"
    assert recipe.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "3"


def test_claude_code_keeps_the_head_of_its_prompts():
    env = agents.claude_code(base_url="http://h/v1", model="m").env
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
