"""qwen-code's recipe."""

import json

from capture import agents


def test_one_file_serves_all_rollouts_of_a_model():
    recipe = agents.qwen_code(base_url="http://h/v1", model="m", secret="s3", context=9_000, output=1_000)
    (content,) = recipe.files.values()
    assert "s3" not in content
    assert "http://h" not in content
    assert json.loads(content)["model"]["generationConfig"] == {"contextWindowSize": 9_000}
    assert (recipe.env["OPENAI_BASE_URL"], recipe.env["OPENAI_API_KEY"]) == ("http://h/v1", "s3")
    assert recipe.env["OPENAI_MODEL"] == "m"


def test_a_reply_is_never_asked_for_again_with_another_limit():
    assert agents.qwen_code(base_url="http://h/v1", model="m", output=77).env["QWEN_CODE_MAX_OUTPUT_TOKENS"] == "77"


def test_no_proxy_of_the_environment_gets_its_requests():
    env = agents.qwen_code(base_url="http://h/v1", model="m").env
    assert {env[name] for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")} == {""}
