"""claude-code (@anthropic-ai/claude-code 2.1.197), which speaks Anthropic Messages."""

from __future__ import annotations

from capture.agents.recipe import CONTEXT, OUTPUT, SECRET, TASK, Recipe, root
from capture.noproxy import no_proxy


def claude_code(
    *,
    base_url: str,
    model: str,
    secret: str = SECRET,
    context: int = CONTEXT,
    output: int = OUTPUT,
) -> Recipe:
    """Return claude-code's recipe: variables alone.

    `output` is the longest reply, in tokens.
    """
    return Recipe(
        files={},
        env={
            "ANTHROPIC_BASE_URL": root(base_url),
            "ANTHROPIC_AUTH_TOKEN": secret,
            "NO_PROXY": no_proxy(base_url),
            # The title call and other small ones too go to the captured engine.
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output),
            # Both, for it to compact by itself, 13,000 tokens before the longest reply no longer fits; else it waits
            # for an error. It takes the first for a model whose name does not begin with `claude-`, and also cuts a
            # list in its prompt by it.
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(context),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(context),
            # Else the first line of the system prompt differs between main, title and subagents, and so do all tokens
            # behind it: nothing could be shared.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            # Nothing but the rollout's calls may leave the sandbox, and no version change between two rollouts.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # Lets it run its tools unasked as root too.
            "IS_SANDBOX": "1",
        },
        command=["claude", "-p", "--dangerously-skip-permissions", TASK],
    )
