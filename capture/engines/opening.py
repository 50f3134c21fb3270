"""A stream's first event, which brings the role and the prompt's ids, read by the one of a stream before.

Rules
1. An opening is made of a first event that was read in full: of what stands around the three values that each call has
   anew, its id, its time and the prompt's ids. It serves a first event that has the very same bytes there.
2. An event that an opening reads means what the full reader would have said, byte for byte. Whatever is in doubt is
   `None`, and nothing has changed: the full reader reads.

Theory of operation
The id is a string without escapes and the time a number, so where each ends is seen by one byte; what follows each is
known, and so is what stands behind the list of ids, at the end. The list itself is numbers and commas (`tips`), so
nothing else can hide in it. A first event costs as much as thirty tokens and more, since the caches are cold: a third
is saved.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from capture import rawjson
from capture.engines.chat_reader import ONCE
from capture.engines.sampled import NULL
from capture.engines.stamp import FIRST, begin_of, renamed
from capture.engines.tips import LONG, Known, Later, maybe_told
from graph.records import IntArray

MOST = 4
"""Openings kept: one for each engine and model, as far as they are spoken to at the same time."""

_ID = b'{"id":"'
_IDS = b',"prompt_token_ids":'
# What vLLM has behind the choices of a first event.
_BEHIND = ["prompt_token_ids"], ["prompt_token_ids", "prompt_text"]
_plain = re.compile(rb"[ !#-\[\]-~]*").fullmatch
_number = re.compile(rb"0|[1-9][0-9]{0,15}").fullmatch


class First(NamedTuple):
    """What a first event says."""

    id: str
    # By name, raw: what of the reply stands once.
    head: dict[str, bytes]
    # The prompt's ids, or their text.
    ids: IntArray | Later
    shown: bytes
    # What the events behind it begin with, and with what the client gets them.
    begin: bytes
    shown_begin: bytes


class Opening(NamedTuple):
    """What stands in all first events of an engine's, while it serves a model."""

    # As the client is to see it, raw; None: as it comes.
    model: bytes | None
    # Up to the time; from behind it up to the delta's value; from there up to the ids; and behind them.
    to_created: bytes
    to_delta: bytes
    to_ids: bytes
    end: bytes
    # The same as the client gets it.
    shown_to_delta: bytes
    shown_to_ids: bytes
    delta: dict[str, Any]
    head: dict[str, bytes]

    def maybe_read(self, data: bytes, known: Known) -> First | None:
        """Read a first event."""
        if not (data.startswith(_ID) and data.endswith(self.end)):
            return None
        end_id = data.find(b'"', len(_ID))
        if not data.startswith(self.to_created, end_id):
            return None
        at = end_id + len(self.to_created)
        behind = data.find(b",", at, at + 20)
        if behind < 0 or not data.startswith(self.to_delta, behind):
            return None
        start = behind + len(self.to_delta)
        if not data.startswith(self.to_ids, start):
            return None
        start += len(self.to_ids)
        stop = len(data) - len(self.end)
        name, created = data[len(_ID) : end_id], data[at:behind]
        if stop - start <= LONG or _plain(name) is None or _number(created) is None:
            return None
        ids = maybe_told(data, start, stop, known)
        if ids is None:
            return None
        opened = data[:at] + created
        shown_begin = opened + self.shown_to_delta
        return First(
            id=name.decode(),
            head=self.head | {"created": created},
            ids=ids,
            shown=b"".join((shown_begin, self.shown_to_ids, NULL, self.end)),
            begin=opened + self.to_delta,
            shown_begin=shown_begin,
        )


def maybe_opening(
    data: bytes, top: dict[str, bytes], fields: dict[str, bytes], *, model: bytes | None
) -> Opening | None:
    """Return the opening of a first event with one choice, None if none can be made of it.

    `top` and `fields` are its fields and the choice's, as they came.
    """
    names = list(top)
    before, behind = names[: names.index("choices")], names[names.index("choices") + 1 :]
    if before[:1] != ["id"] or "created" not in before or behind not in _BEHIND or {"usage", "error"} & top.keys():
        return None
    if list(fields) != FIRST:
        return None
    told = fields["index"], fields["logprobs"], fields["finish_reason"]
    if told != (b"0", NULL, NULL):
        return None
    try:
        delta = msgspec.json.decode(fields["delta"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(delta, dict) or not delta or any(delta.get(name) for name in delta if name != "role"):
        # It says something already.
        return None
    shown = renamed(top, model)
    cuts = [cut for one in (top, shown) if (cut := _cut(one, fields)) is not None]
    if len(cuts) < 2:
        return None
    (to_created, to_delta, to_ids, end), (_, shown_to_delta, shown_to_ids, _) = cuts
    made = Opening(
        model=model,
        to_created=to_created,
        to_delta=to_delta,
        to_ids=to_ids,
        end=end,
        shown_to_delta=shown_to_delta,
        shown_to_ids=shown_to_ids,
        delta=delta,
        head={name: shown[name] for name in ONCE if name in shown},
    )
    raw_id, created = top["id"], top["created"]
    whole = b"".join((_ID[:-1], raw_id[:-1], to_created, created, to_delta, to_ids, top["prompt_token_ids"], end))
    return made if whole == data and raw_id[:1] == b'"' and _plain(raw_id[1:-1]) is not None else None


def _cut(top: dict[str, bytes], fields: dict[str, bytes]) -> tuple[bytes, bytes, bytes, bytes] | None:
    """Return what stands around id, time and ids, in four pieces, the second one ending before the delta's value."""
    written = rawjson.join(top | {"choices": b"[%b]" % rawjson.join(fields), "prompt_token_ids": b""})
    begin = begin_of(top, fields)
    created = b'"created":' + top["created"]
    at, ids = begin.find(created), written.find(_IDS, len(begin))
    if at < 0 or ids < 0 or not written.startswith(begin):
        return None
    at += len(created)
    end_id = len(_ID) - 1 + len(top["id"])
    ids += len(_IDS)
    return begin[end_id - 1 : at - len(top["created"])], begin[at:], written[len(begin) : ids], written[ids:]
