"""Why a call goes the plain way: the names, and what each means. docs/pinned.md is printed from them."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "first-turn": "It has no assistant message: there is nothing to go on from.",
    "no-parent": "Its history is no recorded call's messages and reply: edited, pruned, with another system text, "
    "other tools or template arguments, or from another model.",
    "other-engine": "Its parent was sampled by another engine, or by other weights.",
    "nothing-new": "Nothing stands behind the reply that it goes on from.",
    "empty-sample": "Its parent sampled no ids.",
    "stop-string": "Its parent ended at a stop string: what the engine had sampled beyond it is not known.",
    "length-in-tool-call": "Its parent was cut in the middle of a tool call.",
    "finish-abort": "Its parent ended neither by the model's own end nor by length.",
    "odd-flags": "It continues a message, asks for no generation prompt, for truncation, or for an echo.",
    "non-text": "It carries images, audio or files, which the engine renders from messages alone.",
    "kv-params-taken": "The agent uses the field that the ids would go into.",
    "template-refused": "The template refuses the messages with our own words in the reply's place.",
    "own-words-not-rendered": "The template leaves the reply out of its rendering, so its end can't be found.",
    "closing-differs": "The template closes the reply otherwise when something follows it.",
    "end-token-mismatch": "The parent's last id is not how the template closes a reply.",
    "tail-differs": "What follows the reply in the rendering with our own words is not how the true rendering ends.",
    "overflow": "With what the pinned prompt keeps it is longer than the engine's context.",
    "echo-differs": "The engine's prompt is not the one that it was given.",
    "engine-ignores-ids": "The engine takes no ids as a prompt; found at the start.",
    "no-render": "The engine does not render messages to ids, or did not in time.",
}
"""Name → meaning."""


def table() -> str:
    """Return the table of docs/pinned.md, in Markdown."""
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in REASONS.items())
    return f"| reason | what it means |\n|---|---|\n{rows}"


class Fallback(Exception):  # noqa: N818 - no error: the call goes another way
    """A call that can't be pinned; `reason` is one of `REASONS`."""

    def __init__(self, reason: str) -> None:
        assert reason in REASONS, reason
        super().__init__(reason)
        self.reason = reason
