"""mini-swe-agent (mini-swe-agent 2.4.6, through litellm), which speaks OpenAI chat completions, never streamed."""

from __future__ import annotations

from capture.agents.recipe import CONTEXT, OUTPUT, SECRET, TASK, Recipe
from capture.noproxy import no_proxy


def mini_swe_agent(
    *,
    base_url: str,
    model: str,
    secret: str = SECRET,
    context: int = CONTEXT,  # noqa: ARG001 - every recipe is asked for in the same words
    output: int = OUTPUT,
) -> Recipe:
    """Return mini-swe-agent's recipe: variables and a command line.

    `output` is the longest reply, in tokens. mini-swe-agent asks for none by itself, and knows no context window: it
    never compacts, and ends where the engine refuses a prompt.
    """
    return Recipe(
        files={},
        env={
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": secret,
            "NO_PROXY": no_proxy(base_url),
            # Else it asks how it is to be set up.
            "MSWEA_CONFIGURED": "true",
            # Else it stops at a model whose price it does not know.
            "MSWEA_COST_TRACKING": "ignore_errors",
            # Else litellm fetches prices from the internet at each start.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        command=[
            "mini",
            "--yolo",
            "--exit-immediately",
            "--cost-limit",
            "0",
            "--model",
            # The first part is litellm's name of the dialect.
            f"openai/{model}",
            # Naming one setting leaves the others out, unless their file is named too.
            "--config",
            "mini.yaml",
            "--config",
            f"model.model_kwargs.max_tokens={output}",
            "--output",
            "trajectory.json",
            "--task",
            TASK,
        ],
    )
