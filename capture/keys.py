"""Secrets: what they look like, how they are compared, and how they are kept out of what Treering writes. Pure.

Rule 1: a secret is looked up by its SHA-256 and compared by it, in constant time. It has 256 random bits, so a plain
hash is as strong as a slow one.
Rule 2: nothing but its owner's first answer holds a secret in clear. What might carry one by accident (a path, a
header, an exception's text) goes through `masked` on its way to a log or an error.
Rule 3: content is never altered. An agent that prints its own key is told of by a finding, and `shown_in` is how that
is found: whatever looks like a secret is hashed and compared, so that no secret has to be held to look for it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable

PREFIX = "sk-treering-"
"""How every rollout's secrets begin."""

RANDOM_BYTES = 32
"""Random bytes of a secret; 43 characters of unpadded URL-safe Base64."""

LEAST_KEY = 16
"""Characters below which an admin key is guessable within a training run, however slowly guesses are answered."""

_MARK = PREFIX.encode()
# Overlapping on purpose: what stands before a secret may look like the beginning of another.
_SHOWN = re.compile(rb"(?=(sk-treering-(?:tools-)?[A-Za-z0-9_-]{43}))")
_IN_AUTHORITY = re.compile(r"(//[^:/@\s]*):\S*@")
_IN_QUERY = re.compile(r"(?i)([?&][^=&\s]*(?:password|secret|key|token)[^=&\s]*)=[^&\s]*")
_MASKED = re.compile(r"sk-treering-(?:tools-)?[A-Za-z0-9_%-]{8,}", re.ASCII)


def digest(secret: str) -> bytes:
    """Return what is stored of a secret: its SHA-256, 32 bytes."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def same(given: str, wanted: str) -> bool:
    """Say whether two keys are equal, in a time that tells neither where they differ nor how long they are."""
    # Digests: compare_digest tells lengths, and takes no text beyond ASCII. Header values may hold lone surrogates.
    return hmac.compare_digest(_digest(given), _digest(wanted))


def masked(text: str) -> str:
    """Return a text with every secret of a rollout cut down to its prefix."""
    return _MASKED.sub(f"{PREFIX}…", text) if PREFIX in text else text


def holds_secret(text: str) -> bool:
    """Say whether a text holds something that looks like a rollout's secret, whoever's."""
    return PREFIX in text and _MASKED.search(text) is not None


def shown_in(texts: Iterable[bytes | None], digests: Collection[bytes]) -> bool:
    """Say whether one of these texts (UTF-8, or JSON) holds a secret with one of these digests.

    Costs one search for the prefix, about 0.1 ms a MiB, where there is none.
    """
    return any(
        hmac.compare_digest(hashlib.sha256(found[1]).digest(), wanted)
        for text in texts
        if text is not None and _MARK in text
        for found in _SHOWN.finditer(text)
        for wanted in digests
    )


def without_password(url: str) -> str:
    """Return a URL, or a text with one in it, to be shown: passwords in its authority and in its query are replaced.

    Greedy where a URL could be cut in two ways: rather too little is shown.
    """
    return _IN_QUERY.sub(r"\1=***", _IN_AUTHORITY.sub(r"\1:***@", url))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
