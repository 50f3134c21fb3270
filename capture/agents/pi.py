"""pi (@mariozechner/pi-coding-agent 0.73.1), which speaks OpenAI chat completions, streamed."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.agents.recipe import CONTEXT, OUTPUT, PROVIDER, SECRET, TASK, Recipe
from capture.noproxy import no_proxy

KEEP_RECENT = 20_000
"""Tokens that pi itself would keep behind a summary; of a small window, an eighth."""


def pi(*, base_url: str, model: str, secret: str = SECRET, context: int = CONTEXT, output: int = OUTPUT) -> Recipe:
    """Return pi's recipe.

    The configuration holds no secret, but it does hold the address: pi reads only the key from a variable. `context`
    and `output` are in tokens.
    """
    models: dict[str, Any] = {
        "providers": {
            PROVIDER: {
                "baseUrl": base_url,
                "api": "openai-completions",
                # The name of a variable.
                "apiKey": "OPENAI_API_KEY",
                "compat": {
                    # Its system prompt is sent as `system`, which every template has a place for.
                    "supportsDeveloperRole": False,
                    # Neither an effort, which some templates write into the prompt, nor OpenAI's own `store`.
                    "supportsReasoningEffort": False,
                    "supportsStore": False,
                    "maxTokensField": "max_tokens",
                },
                "models": [
                    {
                        "id": model,
                        "name": model,
                        # Reasoning is sent back as it came; dropped, it would be missing from the next prompt.
                        "reasoning": True,
                        "input": ["text"],
                        "contextWindow": context,
                        "maxTokens": output,
                        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                    }
                ],
            }
        }
    }
    settings: dict[str, Any] = {
        # Its own reserve of 16,384 tokens would leave nothing of a small window.
        "compaction": {
            "enabled": True,
            "reserveTokens": output,
            "keepRecentTokens": min(KEEP_RECENT, context // 8),
        },
        "enableInstallTelemetry": False,
    }
    return Recipe(
        files={
            "~/.pi/agent/models.json": _as_file(models),
            "~/.pi/agent/settings.json": _as_file(settings),
        },
        env={
            "OPENAI_API_KEY": secret,
            "NO_PROXY": no_proxy(base_url),
            # Nothing but the rollout's calls may leave the sandbox: no update check, no telemetry, no downloads.
            "PI_OFFLINE": "1",
        },
        command=["pi", "--provider", PROVIDER, "--model", model, "-p", TASK],
    )


def _as_file(config: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()
