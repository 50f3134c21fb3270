"""The text of a list of ids, read by numpy: numbers from 0 to 2^31 - 1 with a comma between, and nothing else.

Rules
1. What is read is what a JSON reader would read between the brackets. Anything else (spaces, signs, fractions, a number
   that begins with a zero, an empty list) is None, and for the ordinary reader.
2. There are three ways, and all say the same of any text: what is compiled, where it is (2 ns an id); else
   `_maybe_words`, which is fast for many ids of up to eight digits (12 ns an id), and `_maybe_numbers`, which is fast
   for a few and reads all there are (30 ns an id).

Theory of operation of `_maybe_words`: a number of up to eight digits lies in the eight bytes before its comma, with
what stands before it. So those bytes are taken as one integer of 64 bits, for all numbers at once; a mask by the
number's length takes out what is not the number's, and leaves of each digit its value; and three steps add digits to
pairs, pairs to fours, fours to one. The first digit is the lowest byte, since the bytes are read as little-endian.

    8 7 , 1 5 1 9 3 6 ,    →    0 0 1 5 1 9 3 6    →    0 15 19 36    →    15 1936    →    151936
    └──── 8 bytes ────┘

Tried: blocks that stay in the processor's cache (no faster), a step for each digit (twice as slow), lists by msgspec
(50 ns an id).
"""

from __future__ import annotations

import re

import numpy as np

from capture.compiled import maybe_compiled
from graph.records import IntArray

compiled = maybe_compiled("capture.engines._lists")
"""The lists of numbers in C; None where that was not built, and numpy serves."""

MAX_ID = 2**31 - 1
"""Ids are kept as int32; no vocabulary comes near."""

MANY = 6000
"""Bytes of text from which the fast way is the faster one: some 1,000 ids."""

_WORD = 8
_DIGITS = b"0123456789"
_ZERO, _COMMA = np.uint8(ord("0")), np.uint8(ord(","))
# It begins with what is plain text to the expression, or the search would take ten times as long.
_LEADING_ZERO = re.compile(rb",0[0-9]")

# By length: what the number has of its word, and of each byte of that the digit's value.
_MASKS = np.array([0x0F0F0F0F0F0F0F0F >> 8 * (_WORD - n) << 8 * (_WORD - n) for n in range(_WORD + 1)], np.uint64)
# By length: the least that a number can be, so that it doesn't begin with a zero. None has no digits at all.
_LEAST = np.array([1 << 63, 0, *(10**n for n in range(1, _WORD))], np.uint64)
# To each two neighbours: ten times the first and the second, into the second's place.
_STEPS = [
    (np.uint64((10 << 8) + 1), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64((100 << 16) + 1), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64((10_000 << 32) + 1), np.uint64(32), np.uint64(0x00000000FFFFFFFF)),
]


def maybe_parse(text: bytes) -> IntArray | None:
    """Return the ids of a list's text without its brackets, int32; None for anything but numbers and commas."""
    if compiled is not None:
        found = compiled.ids(text)
        return None if found is None else np.frombuffer(found, np.int32)
    return _maybe_numbers(text) if len(text) < MANY else _maybe_words(text)


def is_list(text: bytes) -> bool:
    """Say whether a text is numbers with a comma between, of any size: a fifth of the time that reading them takes."""
    return bool(compiled.is_list(text)) if compiled is not None else _is_list(text)


def _is_list(text: bytes) -> bool:
    padded = b"".join((b",", text, b","))
    letters = np.frombuffer(padded, np.uint8)
    marks = letters - _ZERO > 9
    commas = letters == _COMMA
    # Nothing but digits and commas; no two commas side by side; and no zero behind a comma with a digit behind it.
    return bool(
        np.count_nonzero(marks) == np.count_nonzero(commas)
        and not (commas[1:] & commas[:-1]).any()
        and not (commas[:-2] & (letters[1:-1] == _ZERO) & ~marks[2:]).any()
    )


def _maybe_words(text: bytes) -> IntArray | None:
    # So that there is a word before each number's end, and a comma before and behind each number.
    padded = b"".join((b"0000000,", text, b","))
    letters = np.frombuffer(padded, np.uint8)
    # Where something else than a digit stands; below "0" the difference is large, for it can't be negative.
    ends = np.flatnonzero(letters - _ZERO > 9)
    if np.count_nonzero(letters == _COMMA) != len(ends):
        return None
    lengths = ends[1:] - ends[:-1]
    lengths -= 1
    if lengths.max() > _WORD:
        return _maybe_numbers(text)
    # One word for each byte that could be a number's first. (`take` copies them all, and is faster than what doesn't.)
    words = np.ndarray((len(padded) - _WORD,), "<u8", padded, 0, (1,))
    found = words.take(ends[1:] - _WORD)
    found &= _MASKS.take(lengths)
    for add, shift, mask in _STEPS:
        found *= add
        found >>= shift
        found &= mask
    if (found < _LEAST.take(lengths)).any():
        return None
    return found.astype(np.int32)


def _maybe_numbers(text: bytes) -> IntArray | None:
    commas = text.translate(None, _DIGITS)
    if commas != b"," * len(commas):
        return None
    # A number that begins with a zero would be no JSON.
    if (text[:1] == b"0" and text[1:2].isdigit()) or _LEADING_ZERO.search(text) is not None:
        return None
    try:
        found = np.fromstring(text, dtype=np.int64, sep=",")
    except ValueError:
        return None
    # Two commas side by side, or one at an end, are a number less.
    if found.size != len(commas) + 1 or found.max() > MAX_ID:
        return None
    return found.astype(np.int32)
