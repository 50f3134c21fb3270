"""The scripted engine: a server that says what its rules say, over vLLM's wire, with no GPU and no download.

A request goes through it from left to right, each noun a module: `request` (JSON, checked) → `template` and
`tokeniser` (prompt ids) → `rules` or `builtin` (the reply's text) → `generation` and `sampler` (ids and logprobs of
that text) → `parser` and `wire` (chunks). `model` joins them, without sockets; `server` adds those, the pace and
the failures.

It imports nothing of the rest of Treering, and knows nothing of rollouts or of who asks.
"""

from __future__ import annotations

from capture.scripted.model import MAX_MODEL_LEN, VERSION
from capture.scripted.rules import Rules
from capture.scripted.rulesfile import RulesError, load_rules, parse_rules
from capture.scripted.server import ScriptedEngine

__all__ = ["MAX_MODEL_LEN", "VERSION", "Rules", "RulesError", "ScriptedEngine", "load_rules", "parse_rules"]
