"""The thought signatures of a Gemini reply: they hold the reasoning itself.

The API's signatures are sealed thoughts, which an agent hands back so that the API can go on from them, whether or not
it was shown the thoughts or kept them: gemini-cli 0.61 drops thought parts and echoes signatures. These serve for the
same, unsealed: a mark, then the text, deflated, all of it as base64. A turn that comes back with a signature has the
reasoning that it was sampled with, so that the prompt goes on from the engine's own tokens, as far as its template
shows reasoning.
"""

from __future__ import annotations

import base64
import binascii
import zlib

_MARK = b"treering thought 1\n"

MAX_THOUGHT = 8 * 2**20
"""Bytes of text that one signature may hold: above any context, and small enough to be inflated for anyone."""


def sign(thought: str) -> str:
    """Return the signature of a thought: the same for the same text."""
    return base64.b64encode(_MARK + zlib.compress(thought.encode("utf-8", "surrogatepass"), 6)).decode()


def thought_of(signature: str) -> str:
    """Return the thought in a signature, empty where it is none of ours; never raises."""
    raw = unbase64(signature)
    if raw is None or not raw.startswith(_MARK):
        return ""
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(raw[len(_MARK) :], MAX_THOUGHT)
        return text.decode("utf-8", "surrogatepass") if inflater.eof else ""
    except (zlib.error, UnicodeDecodeError):
        return ""


def unbase64(text: str) -> bytes | None:
    """Return the bytes of base64 in either alphabet, padded or not; None where it is neither."""
    bare = text.rstrip("=")
    try:
        plain = bare.replace("-", "+").replace("_", "/").encode("ascii")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
