"""The chunks of one stream are stamped alike: what all of them begin with, and a way to read them by it.

Rules
1. A stamp is made from a chunk that was read in full, and serves only chunks that begin with the very same bytes, up to
   the value of `delta`, and go on as vLLM writes a token's chunk: `logprobs` with entries, `finish_reason` null,
   `token_ids`, and nothing behind them.
2. A chunk that a stamp reads means what the full reader would have said, byte for byte. Whatever is in doubt (another
   key, a count that differs, a value that can't be decoded) is `None`, and nothing has changed: the full reader reads.

Theory of operation
Between quotes JSON escapes every quote, so `,"logprobs":` with its bare quotes can't be text; it may still stand inside
a nested object. So each of the three pieces between the marks is decoded on its own: where all three are whole values,
the pieces and the marks make the object, and there is only one way to read it. 1.5 us in place of 10 for one token.

Most tokens are a piece of plain text, with one id and one logprob: those are told by one regular expression, which
says of the whole event that it is JSON, and of its text that any writer would spell it so (`maybe_token`). Half a
microsecond, and nothing is decoded but the text and two numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from capture import rawjson
from capture.compiled import maybe_compiled
from capture.dialects.express import Lane, PlainLane, Token, Way
from capture.engines.sampled import decode_ids, decode_logprobs
from capture.rawjson import ASCII, TEXT

compiled = maybe_compiled("capture.engines._lane")
"""The lane in C, and the way of its tokens; None where it was not built, and both in Python serve."""

_LOGPROBS = b',"logprobs":'
_ENTRIES = b',"logprobs":{"content":['
_IDS = b',"finish_reason":null,"token_ids":'
_END = b"}]}"
_N_LOGPROBS, _N_IDS, _N_END = len(_LOGPROBS), len(_IDS), len(_END)

# Fields beside the choices whose values the reader looks at each time, or that say something of their own.
_TELLING = frozenset({"usage", "prompt_token_ids", "error"})
# A choice's fields, in the order in which vLLM writes them (chat_completion/protocol.py, 0.32.0).
_CHOICE = ["index", "delta", "logprobs", "finish_reason", "token_ids"]
FIRST = _CHOICE[:-1]
"""Those of the first chunk, which brings the role."""

# What that may have behind its choices.
_BESIDE_FIRST = frozenset({"prompt_token_ids", "prompt_text"})

_delta = msgspec.json.Decoder(dict[str, Any]).decode
_text = msgspec.json.Decoder(str).decode

# A logprob as Python writes floats, within a double's range; an id; a byte.
FLOAT = rb"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,20}(?:[eE][+-]?[0-9]{1,2})?|[eE][+-]?[0-9]{1,2})"
ID = rb"(?:0|[1-9][0-9]{0,8})"
_BYTE = rb"(?:0|[1-9][0-9]{0,2})"
_token = re.compile(
    rb'(\{"(content|reasoning|reasoning_content)":"(' + TEXT + rb')"\}),"logprobs":\{"content":\[\{"token":"(?:\3"|'
    + ASCII + rb'"),"logprob":(' + FLOAT + rb'),"bytes":(?:null|\[(?:' + _BYTE + rb"(?:," + _BYTE + rb')*)?\])'
    rb',"top_logprobs":\[\]\}\]\},"finish_reason":null,"token_ids":\[(' + ID + rb")\]\}\]\}\n\n"
).fullmatch  # fmt: skip


# What a token's event ends with that is the last of its choice: a piece of text or none, and a token or none.
_last = re.compile(
    rb'(\{(?:"(content|reasoning|reasoning_content)":"(' + TEXT + rb')")?\}),"logprobs":'
    rb'(null|\{"content":\[\{"token":"(?:\3"|' + ASCII + rb'"),"logprob":' + FLOAT + rb',"bytes":(?:null|\[(?:' + _BYTE
    + rb"(?:," + _BYTE + rb')*)?\]),"top_logprobs":\[\]\}\]\}),"finish_reason":"([a-z_]{1,40})","stop_reason":null'
    rb',"token_ids":(null|\[' + ID + rb"\])\}\]\}"
).fullmatch  # fmt: skip
_LAST_NULLS = b',"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]}'
_CHOICE_OPENED = b'{"index":'
_USAGE = b'],"usage":{'

# What vLLM has behind usage, and behind it nothing.
_fingerprint = re.compile(rb',"system_fingerprint":("' + ASCII + rb'")\}\Z').search
_usage = msgspec.json.Decoder(dict[str, Any]).decode


class Last(NamedTuple):
    """What the last event of a choice says: its text's field, its text, raw logprobs and ids, and why it ended."""

    shown: bytes
    field: str
    text: str
    logprobs: bytes
    ids: bytes
    reason: str


Tell = Callable[[bytes, bytes, str], bytes | None]
"""Says what the client gets of a text, by its field, raw and read; None, and nothing is changed, if it can't say."""

# The raw delta and the delta, the raw logprobs and the logprobs, the raw ids and the ids.
Piece = tuple[bytes, dict[str, Any], bytes, list[float], bytes, list[int]]


class Stamp:
    """What all chunks of a stream with one choice begin with."""

    def __init__(self, begin: bytes, *, shown: bytes, logprobs: bool, ids: bool) -> None:
        """`begin` is as the engine sends it, `shown` as the client gets it; `logprobs` and `ids` say if it gets those.

        Both end where the value of `delta` begins.
        """
        self._begin = begin
        self._length = len(begin)
        self._shown = shown
        self._logprobs = logprobs
        self._ids = ids
        self._same = shown == begin and logprobs and ids
        # Of what stands in the list of choices.
        self._n_choice = self._length - begin.rindex(_CHOICE_OPENED)
        if not logprobs and not ids:
            self._nulls = _LOGPROBS + b"null" + _IDS + b"null" + _END
        # Of a token's whole event, before the delta and behind it; the event as it comes is begun by `lead`.
        self._lead = b"data: " + begin
        self._n_lead = len(self._lead)
        self._before = b"data: " + shown
        self._behind = None if logprobs or ids else self._nulls + b"\n\n"

    def __repr__(self) -> str:
        return f"<Stamp {self._begin!r}>"

    def maybe_token(self, raw: bytes) -> Token | None:
        """Read what came if it is the event of one token of plain text, for a client that gets neither id nor logprob.

        Its text means its own bytes: written by any JSON writer of ours they are the same again.
        """
        if self._behind is None or not raw.startswith(self._lead):
            return None
        found = _token(raw, self._n_lead)
        if found is None:
            return None
        delta, name, text, logprob, token = found.groups()
        try:
            said = read_text(text)
        except ValueError:
            # No UTF-8.
            return None
        return b"%b%b%b" % (self._before, delta, self._behind), name, text, said, logprob, token

    def maybe_lane(
        self, keep: Callable[[str], list[str]], raw: tuple[list[bytes], list[bytes]], *, tell: Tell | None = None
    ) -> Lane | None:
        """Return `maybe_token` as a lane, which also keeps what it read; None where no event goes that way.

        `keep` says where the pieces of a text are kept, by its field; `raw` is where ids and logprobs are, unread: in
        one go they cost a tenth. With `tell` the client gets what that says of each text, by its field, raw and read.
        """
        if self._behind is None:
            return None
        if compiled is not None:
            made: Lane = compiled.Lane(self._lead, self._before, self._behind, keep, *raw, tell)
            return made
        return PlainLane(self._way(keep, raw, tell, self._behind))

    def _way(
        self,
        keep: Callable[[str], list[str]],
        raw: tuple[list[bytes], list[bytes]],
        tell: Tell | None,
        behind: bytes,
    ) -> Way:
        """Return the lane's way in Python.

        All written out, and bound once: a token costs 1.4 us, of which 0.8 is the expression.
        """
        lead, n_lead, before = self._lead, self._n_lead, self._before
        add_id, add_logprob = raw[0].append, raw[1].append
        # By the field, as it stands.
        adds: dict[bytes, Callable[[str], None]] = {}

        def way(event: bytes) -> bytes | None:
            if not event.startswith(lead) or (found := _token(event, n_lead)) is None:
                return None
            delta, name, text, logprob, token = found.groups()
            try:
                said = read_text(text)
            except ValueError:
                return None
            shown = before + delta + behind if tell is None else tell(name, text, said)
            if shown is None:
                return None
            add = adds.get(name)
            if add is None:
                add = adds[name] = keep(name.decode()).append
            add(said)
            add_id(token)
            add_logprob(logprob)
            return shown

        return way

    def maybe_last(self, data: bytes) -> Last | None:
        """Read a chunk if it is the last of its choice, of plain text or none, for a client that gets no ids."""
        if self._behind is None or not data.startswith(self._begin):
            return None
        found = _last(data, self._length)
        if found is None:
            return None
        delta, name, text, logprobs, reason, ids = found.groups()
        try:
            said = "" if text is None else read_text(text)
        except ValueError:
            # No UTF-8.
            return None
        shown = self._shown + delta + _LAST_NULLS % reason
        return Last(shown, "" if name is None else name.decode(), said, logprobs, ids, reason.decode())

    def maybe_usage(self, data: bytes) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Read a chunk that brings usage, with the head of those before it: that, and what it has beside, raw."""
        at = self._length - self._n_choice
        if not (data.startswith(_USAGE, at) and data.endswith(b"}") and self._begin.startswith(data[:at])):
            return None
        found = _fingerprint(data, at + len(_USAGE))
        end, beside = (len(data) - 1, {}) if found is None else (found.start(), {"system_fingerprint": found[1]})
        try:
            return _usage(data[at + len(_USAGE) - 1 : end]), beside
        except (ValueError, RecursionError):
            return None

    def maybe_read(self, data: bytes, lead: int = 0, tail: int = 0) -> Piece | None:
        """Read a chunk, `lead` and `tail` bytes of something else around it; None if only the full reader can.

        One function, for each call made here would show in the price of a token.
        """
        stop = len(data) - tail
        if not (data.startswith(self._begin, lead) and data.endswith(_END, lead, stop)):
            return None
        start = lead + self._length
        at_ids = data.rfind(_IDS, start, stop)
        at_logprobs = data.find(_ENTRIES, start, at_ids) if at_ids > 0 else -1
        if at_logprobs < 0:
            return None
        raw_delta = data[start:at_logprobs]
        raw_logprobs = data[at_logprobs + _N_LOGPROBS : at_ids]
        raw_ids = data[at_ids + _N_IDS : stop - _N_END]
        # A space around a value is not part of it, and the full reader leaves it out.
        if not (raw_delta[:1] == b"{" and raw_delta[-1:] == b"}" == raw_logprobs[-1:] and raw_ids[:1] == b"["):
            return None
        try:
            delta = _delta(raw_delta)
            logprobs = decode_logprobs(raw_logprobs)
            ids = decode_ids(raw_ids)
        except (ValueError, RecursionError):
            return None
        if logprobs is None or len(logprobs) != len(ids) or raw_ids[-1:] != b"]":
            return None
        return raw_delta, delta, raw_logprobs, logprobs, raw_ids, ids

    def shown(self, data: bytes, piece: Piece) -> bytes:
        """Return what the client gets of a chunk."""
        if self._same:
            return data
        raw_delta, _, raw_logprobs, _, raw_ids, _ = piece
        if not (self._logprobs or self._ids):
            return self._shown + raw_delta + self._nulls
        logprobs = raw_logprobs if self._logprobs else b"null"
        ids = raw_ids if self._ids else b"null"
        return b"".join((self._shown, raw_delta, _LOGPROBS, logprobs, _IDS, ids, _END))


def read_text(text: bytes) -> str:
    """Return what plain text reads, between its quotes. Raises ValueError for what is no UTF-8."""
    said = text.decode()
    # Not looked for in bytes: that takes five times as long (CPython 3.11 tries a number first).
    return said if "\\" not in said else _text(b'"%b"' % text)


def maybe_begin(data: bytes, top: dict[str, bytes], choices: Sequence[dict[str, bytes]]) -> bytes | None:
    """Return the bytes of a chunk up to the value of `delta`, None if it is none from which to make a stamp.

    `top` and `choices` are its fields as they came.
    """
    if len(choices) != 1:
        return None
    names, fields = list(top), list(choices[0])
    at = names.index("choices")
    if not _TELLING.isdisjoint(names[:at]):
        return None
    # What is read of a chunk by its stamp stands behind these bytes, so the first one's are as good.
    if names[at + 1 :] if fields == _CHOICE else fields != FIRST or not _BESIDE_FIRST.issuperset(names[at + 1 :]):
        return None
    begin = begin_of(top, choices[0])
    return begin if data.startswith(begin) else None


def renamed(top: dict[str, bytes], model: bytes | None) -> dict[str, bytes]:
    """Return the fields of a chunk as the client is to see its model, raw; None: as it comes."""
    return top if model is None or "model" not in top else top | {"model": model}


def begin_of(top: dict[str, bytes], fields: dict[str, bytes], *, value: bytes = b"delta") -> bytes:
    """Return what a chunk of one choice begins with, written without spaces, up to the field that brings text.

    `value` is that field's name: `text` in a completion's.
    """
    before = dict(takewhile(lambda field: field[0] != "choices", top.items()))
    opened = rawjson.join(before)[:-1] + (b"," if before else b"")
    return opened + b'"choices":[{"index":' + fields["index"] + b',"' + value + b'":'
