"""Server-sent events: bytes to events, and back. Sans-I/O.

Rules (https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6)
- A line ends with CR LF, LF or CR; a blank line ends an event; one space after the colon is not part of the value.
- Nothing is lost: the `raw` of all events and the decoder's `rest`, joined, are the bytes that were fed. Comments,
  `id`, `retry` and stray blank lines come back in the `raw` they stood in, to be relayed as they are.
- Where the network cut the bytes changes nothing: the same bytes give the same events.

Theory of operation
The buffer is searched for the blank line, never split into lines first: an event of many MiB that comes in small
pieces is searched once (`_searched`), so the cost is linear. While no CR has been seen the search is `bytes.find`;
with one it is a regular expression. Text is never decoded here: a character cut by the network is whole again before
anyone looks, and U+2028, at which `str.splitlines` would split, is just three bytes.

The one hard spot is a CR at the end of what has come: the LF may follow. After a line that ended with LF or CR LF the
decoder waits for the next byte. After a line that ended with a bare CR it does not wait (in such a stream the last
event would hang for ever), and an LF that follows all the same is a stray blank line of its own, which means nothing.
Either way the choice depends on the bytes alone.
"""

from __future__ import annotations

import re

import msgspec

# The end of a line, then a blank line. A bare CR may not be the first half of a CR LF that is still to come.
_blank = re.compile(rb"\n(?:\n|\r\n|\r(?=[^\n]))|\r\r")
_line = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
_newline = re.compile(rb"\r\n|\n|\r")
# As many bytes as a match of `_blank`, with what it looks at behind it, can hold before the newest byte.
_OVERLAP = 2
_BOM = b"\xef\xbb\xbf"
_LF = ord("\n")
# Of an event, as engines send them: a name, an id, one of data. One with more is searched in another way.
_FEW_LINES = 8


class Event(msgspec.Struct, frozen=True):
    """One event: its bytes with the blank line, its data (None without a data field), its name.

    A comment or a stray blank line between events is an event with no data.
    """

    raw: bytes
    data: bytes | None = None
    name: str | None = None


class Decoder:
    """Cuts a stream of bytes into events."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._cr = False
        self._first = True

    def __repr__(self) -> str:
        return f"<Decoder {len(self._buffer)} bytes of an unfinished event>"

    @property
    def rest(self) -> bytes:
        """The bytes of an event that has not ended; at the end of a stream, what was cut off."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes and return the events that ended with them."""
        buffer = self._buffer
        if self.at_border and is_plain(data):
            return [Event(data, data[6:-2])]
        self._cr = self._cr or b"\r" in data
        buffer += data
        events: list[Event] = []
        start = 0
        while (end := self._maybe_end(start)) is not None:
            with memoryview(buffer) as view:
                events.append(self._event(bytes(view[start:end])))
            start = end
            self._searched = end
        if start:
            del buffer[:start]
        self._searched = max(0, len(buffer) - _OVERLAP)
        return events

    @property
    def at_border(self) -> bool:
        """Whether what comes next begins an event, and one that comes whole changes nothing here."""
        return not (self._buffer or self._first or self._cr)

    def end(self) -> list[Event]:
        """Take the end of the stream: an event whose blank line was a CR that waited for its LF ends now."""
        # Any byte but LF settles that the CR stood alone; it is taken away again.
        events = self.feed(b" ")
        del self._buffer[-1:]
        return events

    def last(self) -> Event | None:
        """Return the unfinished event as if it had ended, None when nothing is left; whether it counts is not ours."""
        rest = self.rest
        return _parse(rest, rest.removeprefix(_BOM) if self._first else rest) if rest else None

    def _maybe_end(self, start: int) -> int | None:
        """Return where the event that starts at `start` ends, None when its end has not come."""
        buffer = self._buffer
        lead = buffer[start : start + 2]
        if lead[:1] == b"\n":
            return start + 1
        if lead[:1] == b"\r":
            return None if len(lead) < 2 else start + 2 if lead[1:] == b"\n" else start + 1
        search_from = max(start, self._searched)
        if not self._cr:
            return self._maybe_blank(search_from)
        match = _blank.search(buffer, search_from)
        return None if match is None else match.end()

    def _maybe_blank(self, start: int) -> int | None:
        """Return where the first two LF behind `start` end, None where there are none."""
        buffer = self._buffer
        for _ in range(_FEW_LINES):
            # One byte is found some hundred times faster than two (0.01 ms and 1.2 in 630 KB, CPython 3.11).
            start = buffer.find(b"\n", start)
            if start < 0 or start + 1 == len(buffer):
                return None
            if buffer[start + 1] == _LF:
                return start + 2
            start += 1
        at = buffer.find(b"\n\n", start)
        return None if at < 0 else at + 2

    def _event(self, raw: bytes) -> Event:
        body = raw
        if self._first:
            self._first = False
            body = raw.removeprefix(_BOM)
        # The one shape that engines send, taken apart without a loop.
        if is_plain(body):
            return Event(raw, body[6:-2])
        return _parse(raw, body)


def is_plain(body: bytes) -> bool:
    """Say whether this is one whole event of a single line of data, ended by two LF.

    As it is from an engine that writes one event at a time, in the one shape that engines send.
    """
    # One byte is found some hundred times faster than two.
    return body.find(b"\n") == len(body) - 2 and body.startswith(b"data: ") and body[-1] == _LF and b"\r" not in body


def _parse(raw: bytes, body: bytes) -> Event:
    data: list[bytes] = []
    name: str | None = None
    for line in _newline.split(body):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return Event(raw, b"\n".join(data) if data else None, name)


def encode(data: bytes, name: str | None = None) -> bytes:
    """Return an event of `data`, a data line for each of its lines."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"".join(b"data: " + line + b"\n" for line in _newline.split(data)) + b"\n"


def with_data(event: Event, data: bytes | None) -> bytes:
    """Return the event's bytes with `data`, a single line, in place of its own; all other lines stay as they are.

    With None only its comments are left, and no blank line: they pass on their own, and an `id` or a name without
    data would be an event of nothing.
    """
    raw = event.raw
    if data is not None and event.data is not None and raw.startswith(b"data: ") and len(raw) == len(event.data) + 8:
        return raw[:6] + data + raw[-2:]
    out: list[bytes] = []
    placed = False
    for match in _line.finditer(raw):
        line, end = match.groups()
        if line.removeprefix(_BOM).startswith(b":"):
            out.append(line + end)
        elif data is None:
            continue
        elif _is_data(line.removeprefix(_BOM)):
            if not placed:
                placed = True
                at = line.index(b"data") + 4
                out.append((line[: at + 2] if line[at : at + 2] == b": " else line[:at] + b":") + data + end)
        else:
            out.append(line + end)
    return b"".join(out)


def _is_data(line: bytes) -> bool:
    return line == b"data" or line.startswith(b"data:")
