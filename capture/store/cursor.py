"""Where a page of rollouts ended: the first letters of its order, and the place in it of the last that was seen."""

from __future__ import annotations

from capture.errors import ClientError


def place(after: str | None, order: str, *, first: int, most: int) -> int:
    """Return the place that a page starts behind: `first` without a cursor. Raises `ClientError` `bad_cursor`."""
    if after is None:
        return first
    start, at = after[:2], after[2:]
    if start != order[:2] or not (at.isascii() and at.isdigit() and len(at) <= len(str(most)) and int(at) <= most):
        raise ClientError(
            "bad_cursor",
            f"{after!r} is no cursor of order={order}",
            hint="pass the `next` of the page before, with the same order",
            param="after",
        )
    return int(at)
