"""opencode (opencode-ai 1.18.33)."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.agents.recipe import CONTEXT, OUTPUT, PROVIDER, SECRET, TASK, Recipe
from capture.noproxy import no_proxy


def opencode(
    *, base_url: str, model: str, secret: str = SECRET, context: int = CONTEXT, output: int = OUTPUT
) -> Recipe:
    """Return opencode's recipe.

    The configuration holds no secret: it reads the address and the key from the two variables that registering a
    rollout answers with, so one file serves all rollouts. `context` and `output` are in tokens.
    """
    config: dict[str, Any] = {
        "$schema": "https://opencode.ai/config.json",
        # Nothing but the rollout's calls may leave the sandbox, and no version change between two rollouts.
        "autoupdate": False,
        "share": "disabled",
        "model": f"{PROVIDER}/{model}",
        # The title call too goes to the captured engine; else a provider found in the environment could get it.
        "small_model": f"{PROVIDER}/{model}",
        "enabled_providers": [PROVIDER],
        "permission": {"*": "allow"},
        # Pruning rewrites old tool results in the middle of the prompt. Compaction stays: without it the agent would
        # run into the context limit, and the forest follows it.
        "compaction": {"auto": True, "prune": False},
        # Diagnostics and formatters act on their own time: what a tool answers would depend on the machine's load.
        "lsp": False,
        "formatter": False,
        "snapshot": False,
        "provider": {
            PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Treering",
                "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
                "models": {
                    model: {
                        "name": model,
                        "tool_call": True,
                        # Reasoning is sent back as it came; dropped, it would be missing from the next prompt.
                        "reasoning": True,
                        "limit": {"context": context, "output": output},
                    }
                },
            }
        },
    }
    return Recipe(
        files={"~/.config/opencode/opencode.json": msgspec.json.format(msgspec.json.encode(config), indent=2).decode()},
        env={
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": secret,
            "NO_PROXY": no_proxy(base_url),
            # The catalogue of models would be fetched from the internet at each start.
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        },
        command=["opencode", "run", "--model", f"{PROVIDER}/{model}", TASK],
    )
