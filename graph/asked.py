"""What a rollout was asked to do, in its first words: what tells one from another in a list.

The task's text, where registration gave one; else what the agent of the main conversation sent first, without the
blocks that agents put in front of it. One line, cut: who wants all of it reads the call.
"""

from __future__ import annotations

from graph.flow import bare
from graph.records import Call
from graph.roles import Judged

MOST_CHARS = 160
"""Of a task: a line on a page. A list of a thousand rows carries one in each."""

MOST_READ = 20 * MOST_CHARS
"""Of a text that is looked at: a task may be megabytes, and its white space be pages."""


def task_words(judged: Judged) -> str | None:
    """Return the first words of what a rollout was asked to do, on one line; None where nothing says it."""
    if given := _line(judged.forest.rollout.task or ""):
        return given
    roots = [found.root for found in judged.conversations if judged.flow_roles.get(found.n, found.role) == "main"]
    said = (_first(judged.forest.calls[root]) for root in roots)
    return next((words for words in said if words), None)


def _first(call: Call) -> str:
    """Return the words of the last message of a user before the assistant's first: boilerplate comes before it."""
    words = ""
    for message in call.messages:
        if message.role == "assistant":
            break
        if message.role == "user":
            words = _line(bare(message.text)) or _line(message.text) or words
    return words


def _line(text: str) -> str:
    words = " ".join(text[:MOST_READ].split())
    return words if len(words) <= MOST_CHARS else f"{words[: MOST_CHARS - 1].rstrip()}…"
