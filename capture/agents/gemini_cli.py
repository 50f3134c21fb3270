"""gemini-cli (@google/gemini-cli 0.61.0), which speaks Gemini."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.agents.recipe import CONTEXT, OUTPUT, SECRET, TASK, Recipe, root


def gemini_cli(
    *,
    base_url: str,
    model: str,
    secret: str = SECRET,
    context: int = CONTEXT,  # noqa: ARG001 - every recipe is asked for in the same words
    output: int = OUTPUT,  # noqa: ARG001 - as above
) -> Recipe:
    """Return gemini-cli's recipe.

    The configuration holds neither address nor key, so one file serves all rollouts. gemini-cli can be told neither
    the context window nor a limit of the reply: it takes any model for one of a million tokens.
    """
    config: dict[str, Any] = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        # Nothing but the rollout's calls may leave the sandbox, and no version change between two rollouts.
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    return Recipe(
        files={"~/.gemini/settings.json": msgspec.json.format(msgspec.json.encode(config), indent=2).decode()},
        env={
            "GOOGLE_GEMINI_BASE_URL": root(base_url),
            "GEMINI_API_KEY": secret,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "NO_PROXY": "127.0.0.1,localhost,::1",
        },
        command=["gemini", "--yolo", "-m", model, "-p", TASK],
    )
