"""Harbor (PyPI's harbor 0.25.0), which installs an agent in its own sandbox and runs it: here opencode."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.agents.opencode import opencode
from capture.agents.recipe import CONTEXT, OUTPUT, PROVIDER, SECRET, TASK, Recipe

OPENCODE_VERSION = "1.18.33"
"""What our settings are for; without one Harbor installs the newest."""


def harbor(*, base_url: str, model: str, secret: str = SECRET, context: int = CONTEXT, output: int = OUTPUT) -> Recipe:
    """Return the recipe of a Harbor job with opencode as its agent.

    The configuration names the variables of address and key, and holds neither: Harbor fills them in from its own
    environment and hands them to the agent's. So the address must be one that the agent's sandbox can reach.
    """
    inner = opencode(base_url=base_url, model=model, secret=secret, context=context, output=output)
    (config,) = inner.files.values()
    access = ("OPENAI_BASE_URL", "OPENAI_API_KEY")
    agent: dict[str, Any] = {
        "name": "opencode",
        "model_name": f"{PROVIDER}/{model}",
        "kwargs": {
            "version": OPENCODE_VERSION,
            # Laid over what Harbor writes itself.
            "opencode_config": msgspec.json.decode(config),
        },
        "env": {name: f"${{{name}}}" if name in access else value for name, value in inner.env.items()},
    }
    job = {"agents": [agent]}
    return Recipe(
        files={"harbor.json": msgspec.json.format(msgspec.json.encode(job), indent=2).decode()},
        env={name: inner.env[name] for name in access},
        # One secret is one rollout: a job with several trials would put them all into one.
        command=["harbor", "run", "--config", "harbor.json", "--n-concurrent", "1", "--path", TASK],
    )
