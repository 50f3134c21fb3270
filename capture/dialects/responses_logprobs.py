"""Logprob entries of a chat reply, as those of a response's text.

A chat reply has one entry for each sampled token, thinking and calls included; a response has them on its text alone.
In a stream those of a chunk with text are its text's. In a whole reply the text is looked for among the tokens' bytes,
behind the reasoning; where it can't be found, as when a parser changed it, no entry is given rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

Entries = list[dict[str, Any]]


def entries_of(logprobs: Any) -> Entries:
    """Return all entries of a choice's logprobs; empty where there are none."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    found = []
    for entry in content if isinstance(content, list) else ():
        if isinstance(entry, Mapping):
            tops = entry.get("top_logprobs")
            alternatives = [_entry(top) for top in tops if isinstance(top, Mapping)] if isinstance(tops, list) else []
            found.append({**_entry(entry), "top_logprobs": alternatives})
    return found


def entries_of_text(logprobs: Any, message: Mapping[str, Any]) -> Entries:
    """Return the entries of a whole message's text."""
    entries, text = entries_of(logprobs), message.get("content")
    if not entries or not isinstance(text, str) or not text:
        return []
    pieces = [bytes(entry["bytes"]) for entry in entries]
    said = b"".join(pieces)
    thought = message.get("reasoning") or message.get("reasoning_content")
    before = thought.encode("utf-8", "replace") if isinstance(thought, str) else b""
    start = said.find(text.encode("utf-8", "replace"), max(0, said.find(before)) + len(before) if before else 0)
    if start < 0:
        return []
    end = start + len(text.encode("utf-8", "replace"))
    ends = list(accumulate(map(len, pieces)))
    return [
        entry
        for entry, piece, stop in zip(entries, pieces, ends, strict=True)
        if piece and stop > start and stop - len(piece) < end
    ]


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    raw, token, logprob = entry.get("bytes"), entry.get("token"), entry.get("logprob")
    whole = isinstance(raw, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in raw)
    return {
        "token": token if isinstance(token, str) else "",
        "bytes": raw if whole else [],
        "logprob": logprob if isinstance(logprob, int | float) else None,
    }
