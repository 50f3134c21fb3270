"""Ids and logprobs for a scripted text, drawn by hash.

Rules
1. Ids are sampled, not encoded: each piece of the text takes, with the probability `noncanonical`, another of its
   tokenisations. They decode to the text all the same.
2. A draw is a function of the prompt's ids, the text and a nonce. The nonce is the request's seed, nothing at
   temperature 0, else the number of equal draws so far: the same prompt sampled again gives the same words in other
   ids.
3. A token's logprob is a function of the ids before it and of itself alone. So it is the same however the reply is
   cut into chunks, and when it is read again as part of a prompt.
4. Logprobs are below 0.0, and float32 like a real engine's. `raw` ones know nothing of temperature or allowed
   tokens; `processed` ones do: with one allowed token they are exactly 0.0 (vLLM's `--logprobs-mode`).

Theory: `Prefix` is a running BLAKE2b over ids, four bytes each, little-endian. Its digest with a token gives 64
bits, read as a probability. Temperature t makes of p what it makes of the pair (p, 1 - p): p' = p^(1/t) / (p^(1/t)
+ (1-p)^(1/t)).
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Literal

from capture.scripted.tokeniser import Tokeniser

LogprobsMode = Literal["processed", "raw"]

# A reply to `allowed_token_ids` that names neither an end token nor a limit would run to the context's end.
_ALLOWED_RUN = 256


class Prefix:
    """The hash of ids so far; grows by token and can be copied."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        """Begin with the ids of a prompt."""
        packed = array("I", ids)
        if sys.byteorder == "big":
            packed.byteswap()
        self._hash = blake2b(packed.tobytes(), digest_size=16)

    def extend(self, token: int) -> None:
        """Append one id."""
        self._hash.update(struct.pack("<I", token))

    def number(self, salt: bytes) -> int:
        """Give 64 bits that depend on the ids so far and the salt."""
        forked = self._hash.copy()
        forked.update(salt)
        return int.from_bytes(forked.digest()[:8], "little")

    def share(self, salt: bytes) -> float:
        """Give a number from 0, included, to 1, excluded, that depends on the ids so far and the salt."""
        return self.number(salt) / 2**64


class Draws:
    """Counts equal draws, for the nonce of rule 2; forgets the oldest beyond a bound."""

    _KEPT = 100_000

    def __init__(self) -> None:
        """Begin with no draws."""
        self._seen: dict[int, int] = {}

    def next(self, key: int) -> int:
        """Give how often this key was drawn before, and count it."""
        count = self._seen.pop(key, 0)
        self._seen[key] = count + 1
        if len(self._seen) > self._KEPT:
            del self._seen[next(iter(self._seen))]
        return count


def drawer(key: int) -> Callable[[int], int]:
    """Give a deterministic source of numbers: `draw(n)` is from 0 to n - 1."""
    state = blake2b(key.to_bytes(8, "little"), digest_size=32)
    block = b""
    at = 0

    def draw(bound: int) -> int:
        nonlocal block, at
        if at + 4 > len(block):
            block = state.digest()
            state.update(block)
            at = 0
        value = int.from_bytes(block[at : at + 4], "little")
        at += 4
        return value * bound >> 32

    return draw


def sample(tokeniser: Tokeniser, text: str, key: int, noncanonical: float) -> list[int]:
    """Sample ids of a text: each piece, with the probability `noncanonical`, by another of its tokenisations.

    Raises ValueError if the text cannot be encoded and decoded again, which is so with lone surrogates.
    """
    draw = drawer(key)
    bound = 1 << 24
    ids: list[int] = []
    for special, piece in tokeniser.pieces(text):
        if special:
            ids.append(special)
        elif draw(bound) < noncanonical * bound:
            ids.extend(tokeniser.resplit(piece, draw))
        else:
            ids.extend(tokeniser.encode_piece(piece))
    return ids


class Scored:
    """One token with its logprob and the likeliest others, best first: (id, logprob)."""

    __slots__ = ("logprob", "others", "token")

    def __init__(self, token: int, logprob: float, others: list[tuple[int, float]]) -> None:
        """Keep the parts; `others` does not hold the token itself."""
        self.token = token
        self.logprob = logprob
        self.others = others

    def __repr__(self) -> str:
        return f"Scored({self.token}, {self.logprob:.3f}, {len(self.others)} others)"


class Scorer:
    """Scores the tokens of one sequence in their order, for one mode and temperature."""

    def __init__(
        self, tokeniser: Tokeniser, prompt: Sequence[int], *, mode: LogprobsMode, temperature: float | None
    ) -> None:
        """Begin behind the prompt's ids. A temperature of None is 1; at 0 the distribution is left as it is."""
        self.prefix = Prefix(prompt)
        self._tokeniser = tokeniser
        hot = mode == "processed" and temperature not in (None, 0)
        self._temperature = float(temperature) if hot and temperature is not None else 1.0

    def score(self, token: int, others: int = 0) -> Scored:
        """Score the next token, with so many others beside it, and append it."""
        salt = struct.pack("<I", token)
        share = self.prefix.share(salt)
        # Mostly near 1, now and then small, never 0 or 1: what a trained model gives to what it samples.
        chance = min(max(math.exp(-6.0 * share**5), 1e-4), 1 - 1e-4)
        rest = 1 - chance
        odds = (math.log(rest) - math.log(chance)) / self._temperature
        logprob = -math.log1p(math.exp(odds)) if odds < 500 else -odds
        beside: list[tuple[int, float]] = []
        if others:
            left = logprob + odds
            draw = drawer(self.prefix.number(b"others" + salt))
            chosen = {token}
            while len(beside) < others:
                # Merged tokens only: a lone byte may be half a character, which has no text of its own.
                other = 256 + draw(self._tokeniser.size - 256)
                if other in chosen or self._tokeniser.is_special(other):
                    continue
                chosen.add(other)
                left -= 0.7
                beside.append((other, float32(left)))
        self.prefix.extend(token)
        return Scored(token, float32(logprob), beside)


def sample_allowed(
    prefix: Prefix,
    allowed: Sequence[int],
    *,
    bias: dict[str, float],
    temperature: float | None,
    mode: LogprobsMode,
    ends: frozenset[int],
    least: int,
    limit: int | None,
    key: int,
) -> list[tuple[int, float]]:
    """Sample among allowed ids until an end token or the limit; give (id, logprob) pairs.

    No end token is sampled among the first `least`, unless nothing else is allowed.
    """
    draw = drawer(key)
    found: list[tuple[int, float]] = []
    heat = temperature or 1.0
    everything = list(allowed)
    longer = [token for token in everything if token not in ends]
    while len(found) < (limit if limit is not None else _ALLOWED_RUN):
        allowed = longer if longer and len(found) < least else everything
        logits = [4 * prefix.share(struct.pack("<I", token)) + bias.get(str(token), 0.0) for token in allowed]
        scaled = [logit / heat for logit in logits]
        top = max(scaled)
        total = top + math.log(sum(math.exp(value - top) for value in scaled))
        chances = [math.exp(value - total) for value in scaled]
        if temperature == 0:
            n = scaled.index(top)
        else:
            n = _pick(chances, draw(1 << 24) / (1 << 24))
        logprob = scaled[n] - total
        if mode == "raw":
            logprob = 4 * prefix.share(struct.pack("<I", allowed[n])) - 10.0
        prefix.extend(allowed[n])
        found.append((allowed[n], float32(min(logprob, 0.0))))
        if allowed[n] in ends:
            break
    return found


def _pick(chances: Sequence[float], at: float) -> int:
    for n, chance in enumerate(chances):
        at -= chance
        if at < 0:
            return n
    return len(chances) - 1


def float32(value: float) -> float:
    """Round to the nearest float32, as an engine's logprobs are."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
