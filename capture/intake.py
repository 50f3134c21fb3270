"""Requests' bodies: read in bounded memory and in bounded time.

Rule 1: a body is measured while it comes and while it inflates; nothing is inflated beyond the limit and one step of
the HTTP library's (256 KiB).
Rule 2: its time limits are of silence and of slowness, never of length: an upload that goes on is never cut.
"""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from capture.aside import aside
from capture.errors import ClientError

CODINGS = ("identity", "gzip", "deflate", "zstd")
"""Codings of a body that our HTTP library undoes, both ways (aiohttp 3.14; it would need one more package for `br`)."""

IDLE_S = 60.0
"""Without a byte of a body, after which it is given up; a tunnel that reconnects takes seconds."""

RENEWALS = 100
"""Of the time for a byte to come, in that time at the most: one with each piece would cost more than the piece."""

LEAST_RATE = 1_024.0
"""Bytes a second that a body must bring on the average, after two minutes: a modem of 1990 was faster."""


async def read(incoming: web.BaseRequest, limit: int) -> bytes:
    """Read a request's body, decompressed, of at most `limit` bytes.

    Raises `ClientError`: 415 `coding_unknown`, 413 `body_too_large`, 408 `body_too_slow`, 400 `body_incomplete`.
    """
    if incoming.headers.get("Content-Encoding", "identity").strip().lower() not in CODINGS:
        raise ClientError(
            "coding_unknown",
            f"A body in the coding {incoming.headers['Content-Encoding'][:80]!r} can't be read.",
            hint=f"Send it as it is, or in one of these: {', '.join(CODINGS[1:])}.",
            status=415,
        )
    too_large = ClientError(
        "body_too_large",
        f"The request's body is larger than {limit} bytes.",
        hint="The limit is --max-body-mib.",
        status=413,
    )
    if incoming.content_length is not None and incoming.content_length > limit:
        raise too_large
    content = incoming.content
    if isinstance(content, aiohttp.StreamReader) and content.is_eof() and content.exception() is None:
        # It came with the head, as a short one does.
        body = content.read_nowait()
        if len(body) > limit:
            raise too_large
        return body
    pieces: list[bytes] = []
    size = 0
    now = asyncio.get_running_loop().time
    start = renewed = now()
    try:
        async with asyncio.timeout(IDLE_S) as patience:
            async for piece in content.iter_any():
                size += len(piece)
                if size > limit:
                    raise too_large
                pieces.append(piece)
                if (at := now()) - renewed > IDLE_S / RENEWALS:
                    renewed = at
                    patience.reschedule(min(at + IDLE_S, start + 2 * IDLE_S + size / LEAST_RATE))
    except TimeoutError as error:
        raise ClientError(
            "body_too_slow", "The request's body took too long to come.", hint="Send it again.", status=408
        ) from error
    except (aiohttp.ClientPayloadError, web.RequestPayloadError) as error:
        raise ClientError(
            "body_incomplete", "The request's body ended before it was complete, or can't be decompressed."
        ) from error
    return pieces[0] if len(pieces) == 1 else await aside(size, lambda: b"".join(pieces))
