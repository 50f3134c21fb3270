"""Ready configurations of agents. Pure: names in; files, environment and a command line out.

One file an agent, named for it; what each setting is for stands beside it. Those that keep prompts growing by
appending alone matter most, since a rewritten prefix is drift, and drift costs training data.
"""

from capture.agents.claude_code import claude_code
from capture.agents.codex import codex
from capture.agents.gemini_cli import gemini_cli
from capture.agents.harbor import harbor
from capture.agents.mini_swe_agent import mini_swe_agent
from capture.agents.opencode import opencode
from capture.agents.pi import pi
from capture.agents.qwen_code import qwen_code
from capture.agents.recipe import CONTEXT, OUTPUT, SECRET, TASK, Recipe, text

__all__ = [
    "CONTEXT",
    "OUTPUT",
    "SECRET",
    "TASK",
    "Recipe",
    "claude_code",
    "codex",
    "gemini_cli",
    "harbor",
    "mini_swe_agent",
    "opencode",
    "pi",
    "qwen_code",
    "text",
]
