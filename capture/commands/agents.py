"""`treering agents`: the ready configuration of an agent."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from capture import agents
from capture.cli import Given
from capture.client import client, segment
from capture.errors import ClientError
from capture.settings import is_loopback, is_wildcard, parse_address
from tunnel.base import url_at


def opencode(given: Given) -> int:
    """Print opencode's recipe."""
    return _show(given, agents.opencode)


def codex(given: Given) -> int:
    """Print codex's recipe."""
    return _show(given, agents.codex)


def claude_code(given: Given) -> int:
    """Print claude-code's recipe."""
    return _show(given, agents.claude_code)


def gemini_cli(given: Given) -> int:
    """Print gemini-cli's recipe."""
    return _show(given, agents.gemini_cli)


def pi(given: Given) -> int:
    """Print pi's recipe."""
    return _show(given, agents.pi)


def qwen_code(given: Given) -> int:
    """Print qwen-code's recipe."""
    return _show(given, agents.qwen_code)


def mini_swe_agent(given: Given) -> int:
    """Print mini-swe-agent's recipe."""
    return _show(given, agents.mini_swe_agent)


def harbor(given: Given) -> int:
    """Print Harbor's recipe."""
    return _show(given, agents.harbor)


def _show(given: Given, recipe_of: Callable[..., agents.Recipe]) -> int:
    """Print an agent's configuration, environment and command line."""
    asked = given.arguments
    model, context = asked["model"], asked["context"]
    if asked["rollout"]:
        plane = client(given.settings, asked["url"])
        rollout = plane.json("GET", f"/rollouts/{segment(asked['rollout'])}")
        if rollout["state"] == "closed":
            raise ClientError("rollout_closed", f"The rollout {asked['rollout']} is closed.", hint="Register another.")
        model = model or rollout["model"]
        (engine,) = plane.json("GET", "/engines")["engines"]
        context = context or engine["max_model_len"]
    context = context or agents.CONTEXT
    recipe = recipe_of(
        base_url=asked["base_url"] or _base_url(given),
        model=model or "treering",
        context=context,
        output=asked["output"] or min(agents.OUTPUT, context // 2),
    )
    shown = msgspec.json.encode(recipe).decode() if asked["json"] else agents.text(recipe)
    sys.stdout.write(shown + "\n")
    if not asked["json"]:
        sys.stderr.write("The key was shown when the rollout was registered: treering rollout new --env exports it.\n")
    return 0


def _base_url(given: Given) -> str:
    host, port = parse_address(given.settings.listen)
    host = "127.0.0.1" if is_wildcard(host) or is_loopback(host) else host
    return f"{url_at(host, port, scheme='http' if given.settings.tls_cert is None else 'https')}/v1"
