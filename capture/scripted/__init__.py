"""The scripted engine: a server that says what its rules say, over vLLM's wire, so that nobody needs a GPU to try things.

A request goes through it from left to right, each noun a module:
`request` (JSON, checked) → `template` and `tokeniser` (prompt ids) → `rules` or `builtin` (the reply's text) → `generation`
and `sampler` (ids and logprobs of that text) → `parser` and `wire` (chunks) → `server` (sockets, pace, failures).

It imports nothing of the rest of Treering, and knows nothing of rollouts or of who asks.
"""

from __future__ import annotations

from capture.scripted.rules import Rules
from capture.scripted.rulesfile import RulesError, load_rules, parse_rules
from capture.scripted.server import MAX_MODEL_LEN, VERSION, ScriptedEngine

__all__ = ["MAX_MODEL_LEN", "VERSION", "Rules", "RulesError", "ScriptedEngine", "load_rules", "parse_rules"]
