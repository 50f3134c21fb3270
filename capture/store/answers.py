"""Answers to registrations, kept under their Idempotency-Key for an hour, sealed.

The answer of a registration holds the rollout's secrets, which are shown once and stored nowhere. So it is stored
XORed with SHAKE-256 of a nonce, the Idempotency-Key and the body's digest, and the key itself as a digest only: whoever
reads the file without knowing the key (a UUID, as a rule) reads noise.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from hashlib import blake2b, shake_256

import apsw

from capture import clock
from capture.errors import ClientError
from capture.store import query

KEPT = timedelta(hours=1)
"""How long an answer is kept (the interface's promise)."""

NONCE_BYTES = 16


def get(db: apsw.Connection, key: str, body: str, *, now: str) -> bytes | None:
    """Return the answer kept under an Idempotency-Key, None for a new or expired one.

    Raises `ClientError` `idempotency_key_reused` (422) if `body`, a digest, is another.
    """
    row = query.first(db, "SELECT body, sealed FROM answer WHERE key = ? AND until > ?", (name_of(key), now))
    if row is None:
        return None
    return opened(key, body, kept_body=row[0], sealed=row[1])


def put(db: apsw.Connection, key: str, body: str, answer: bytes, *, now: str) -> None:
    """Keep an answer, and drop those whose hour is over."""
    db.execute("DELETE FROM answer WHERE until <= ?", (now,))
    db.execute(
        "INSERT OR REPLACE INTO answer (key, body, until, sealed) VALUES (?, ?, ?, ?)",
        (name_of(key), body, until(now), sealed(key, body, answer)),
    )


def parted(key: str | None) -> tuple[str, str]:
    """Return the Idempotency-Key and the digest of the body, which the store's interface takes as one."""
    idempotency, _, body = ("", "", "") if key is None else key.rpartition(" ")
    return idempotency, body


def raced() -> ClientError:
    """Return the error for a key that was answered since it was looked up."""
    return ClientError(
        "idempotency_key_raced",
        "another request with this Idempotency-Key was answered meanwhile",
        hint="send it again to get that answer",
        status=409,
    )


def until(now: str) -> str:
    """Return until when an answer of this moment is kept."""
    return clock.text(clock.parse(now) + KEPT)


def sealed(key: str, body: str, answer: bytes) -> bytes:
    """Return an answer as it is stored: a nonce, and noise for who doesn't know the key."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + _veil(nonce, key, body, answer)


def opened(key: str, body: str, *, kept_body: str, sealed: bytes) -> bytes:
    """Return the answer of what `sealed` made. Raises `ClientError` `idempotency_key_reused` for another body."""
    if kept_body != body:
        raise ClientError(
            "idempotency_key_reused",
            "this Idempotency-Key came with another body before",
            hint="use a new key for a new request",
            status=422,
        )
    return _veil(sealed[:NONCE_BYTES], key, body, sealed[NONCE_BYTES:])


def name_of(key: str) -> bytes:
    """Return the name under which a key's answer is stored, from which the key can't be had."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, person=b"treering answer").digest()


def _veil(nonce: bytes, key: str, body: str, data: bytes) -> bytes:
    stream = shake_256(nonce + f"{key}\0{body}".encode("utf-8", "surrogatepass")).digest(len(data))
    return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))
