"""qwen-code (@qwen-code/qwen-code 0.15.10), which speaks OpenAI chat completions, streamed but for its summaries."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.agents.recipe import CONTEXT, OUTPUT, SECRET, TASK, Recipe


def qwen_code(
    *, base_url: str, model: str, secret: str = SECRET, context: int = CONTEXT, output: int = OUTPUT
) -> Recipe:
    """Return qwen-code's recipe.

    The configuration holds neither address nor key, so one file serves all rollouts of a model. `context` and `output`
    are in tokens; it compacts at 0.7 of the context.
    """
    config: dict[str, Any] = {
        "security": {"auth": {"selectedType": "openai"}},
        # Else it goes by the model's name, and takes one that it does not know for 131,072 tokens.
        "model": {"generationConfig": {"contextWindowSize": context}},
        # Nothing but the rollout's calls may leave the sandbox, and no version change between two rollouts.
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
    }
    return Recipe(
        files={"~/.qwen/settings.json": msgspec.json.format(msgspec.json.encode(config), indent=2).decode()},
        env={
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": secret,
            "OPENAI_MODEL": model,
            # A proxy of the environment would get all requests: it doesn't ask NO_PROXY.
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), ""),
            # Else a reply that is cut at its own limit of 8,000 tokens is thrown away and asked for again with 64,000.
            "QWEN_CODE_MAX_OUTPUT_TOKENS": str(output),
        },
        command=["qwen", "--auth-type", "openai", "--yolo", "-p", TASK],
    )
