"""codex (@openai/codex 0.171.0), which speaks OpenAI Responses."""

from __future__ import annotations

import json

from capture.agents.recipe import CONTEXT, OUTPUT, PROVIDER, SECRET, TASK, Recipe
from capture.noproxy import no_proxy


def codex(*, base_url: str, model: str, secret: str = SECRET, context: int = CONTEXT, output: int = OUTPUT) -> Recipe:
    """Return codex's recipe.

    The configuration holds no secret, but it does hold the address: codex reads only the key from a variable. `context`
    is in tokens; codex sends no limit of the reply, so `output` only makes room for one before it compacts.
    """
    # JSON's strings are TOML's basic strings.
    lines = [
        f"model = {json.dumps(model)}",
        f"model_provider = {json.dumps(PROVIDER)}",
        # What it knows of OpenAI's models it can't know of this one.
        f"model_context_window = {context}",
        f"model_auto_compact_token_limit = {context - output}",
        # Nothing but the rollout's calls may leave the sandbox.
        'web_search = "disabled"',
        "check_for_update_on_startup = false",
        "",
        "[analytics]",
        "enabled = false",
        "",
        "[feedback]",
        "enabled = false",
        "",
        f"[model_providers.{PROVIDER}]",
        'name = "Treering"',
        f"base_url = {json.dumps(base_url)}",
        'env_key = "OPENAI_API_KEY"',
        'wire_api = "responses"',
    ]
    return Recipe(
        files={"~/.codex/config.toml": "\n".join(lines) + "\n"},
        env={"OPENAI_API_KEY": secret, "NO_PROXY": no_proxy(base_url)},
        command=["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK],
    )
