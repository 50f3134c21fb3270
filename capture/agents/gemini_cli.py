"""gemini-cli (@google/gemini-cli 0.61.0), which speaks Gemini."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.agents.recipe import CONTEXT, OUTPUT, SECRET, TASK, Recipe, root
from capture.noproxy import no_proxy

ASSUMED_WINDOW = 1_048_576
"""Tokens (`DEFAULT_TOKEN_LIMIT` of gemini-cli)."""


def gemini_cli(
    *,
    base_url: str,
    model: str,
    secret: str = SECRET,
    context: int = CONTEXT,
    output: int = OUTPUT,
) -> Recipe:
    """Return gemini-cli's recipe.

    The configuration holds neither address nor key, so one file serves all rollouts. `context` and `output` are in
    tokens. gemini-cli can't be told the longest reply: `output` is what is left free of the window when it compacts.
    """
    config: dict[str, Any] = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        # Nothing but the rollout's calls may leave the sandbox, and no version change between two rollouts.
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        # It compacts by a share of the window, and takes that of any model that it does not know for this long.
        "model": {"compressionThreshold": (context - output) / ASSUMED_WINDOW},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    return Recipe(
        files={"~/.gemini/settings.json": msgspec.json.format(msgspec.json.encode(config), indent=2).decode()},
        env={
            "GOOGLE_GEMINI_BASE_URL": root(base_url),
            "GEMINI_API_KEY": secret,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "NO_PROXY": no_proxy(base_url),
        },
        command=["gemini", "--yolo", "-m", model, "-p", TASK],
    )
