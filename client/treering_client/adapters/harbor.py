"""What a Harbor job (harbor 0.25, Python 3.12) needs to run its agents under rollouts. Harbor itself isn't imported.

One trial is one rollout, so a job is made for each: `job(rollout, "opencode", task)` is its configuration, to be
written to a file for `harbor run --config`. The key stands in the environment and not in the file, which Harbor keeps
beside the trial's results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from treering_client.rollout import Rollout

ACCESS = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "GEMINI_API_KEY",
          "GOOGLE_GEMINI_BASE_URL")  # fmt: skip
"""Variables that the agents which Harbor installs read address and key from."""

OUTSIDE = ("terminus-2",)
"""Agents of Harbor's own that run outside of the sandbox and call the model through litellm."""


def environment(rollout: Rollout) -> dict[str, str]:
    """Return the variables to run `harbor` with: Harbor hands them on to the agent in its sandbox.

    Raises `ValueError` for a rollout without its secret.
    """
    if not rollout.secret:
        raise ValueError(f"rollout {rollout.id} was attached to: its secret was shown when it was registered")
    return {name: rollout.env[name] for name in (*ACCESS, "NO_PROXY") if name in rollout.env}


def agent(rollout: Rollout, name: str, *, context: int = 131_072, output: int = 8_192) -> dict[str, Any]:
    """Return the entry of `agents` in a job's configuration. `context` and `output` are numbers of tokens.

    Raises `ValueError` for an agent in a sandbox and a rollout whose address is this machine's loopback: it would make
    no calls, and read as a policy that can't do the task.
    """
    model = f"openai/{rollout.model or 'treering'}"
    if name in OUTSIDE:
        return {
            "name": name,
            "model_name": model,
            "kwargs": {
                "api_base": rollout.base_url,
                "model_info": {"max_input_tokens": context, "max_output_tokens": output},
            },
        }
    if urlsplit(rollout.url).hostname in ("127.0.0.1", "localhost", "::1"):
        raise ValueError(
            f"{rollout.url} is this machine's loopback, which the agent's sandbox can't reach: let Treering listen on "
            'an address that it can, or open a tunnel, and register with reach={"agent": "remote"}'
        )
    return {"name": name, "model_name": model, "env": {each: f"${{{each}}}" for each in environment(rollout)}}


def job(rollout: Rollout, name: str, task: str, *, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a job with one agent on the task in one folder, attempted once; `extra` goes over its top level."""
    return {"agents": [agent(rollout, name)], "tasks": [{"path": task}], "n_attempts": 1, **(extra or {})}
