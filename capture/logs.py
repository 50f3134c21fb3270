"""Logs: one line a call on stderr, text or JSON.

Rules:
- The event loop never writes to stderr. A terminal in copy mode, or a pipe whose reader sleeps, blocks a writer for as
  long as it likes; here that stops one thread, and the lines that no longer fit its queue are counted and named.
- Never a body and never a secret: a call's line is made of scalars that its caller names, each shortened, and of
  nothing that passed on the wire.
- What others put into a line (an exception's text, a path) passes through `keys.masked`: no rollout's secret gets out.
- A line is a line: control characters are escaped, so no name that an agent chose can forge a second one.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from capture import clock
from capture.keys import masked

QUEUE_LINES = 10_000
"""About 2 MB of lines: some seconds of a busy server. Beyond it stderr is stuck; waiting would only move the block."""

VALUE_LIMIT = 200
"""Characters of one value; ids and model names are far shorter, and a longer text is content."""

REST_S = 0.05
"""Between two bouts of writing: lines that come meanwhile are written together, and nobody reads faster."""

STOP_S = 2.0
"""How long to wait at the end for lines still to be written."""

_SCALARS = (str, int, float)

_own = logging.getLogger("treering")
_calls = logging.getLogger("treering.calls")
_END = None


def setup(form: Literal["text", "json"], level: str, *, stream: TextIO | None = None) -> Callable[[], None]:
    """Send the process's logs to `stream` (default: stderr), and return the function that ends it.

    `level` (debug, info, warning, error) is that of Treering's own loggers; others are logged from warning on.
    """
    writer = _Writer(stream or sys.stderr)
    handler = _Handler(writer.lines, _Json() if form == "json" else _Text())
    root, own = logging.getLogger(), logging.getLogger("treering")
    before = own.level
    root.addHandler(handler)
    own.setLevel(level.upper())

    def stop() -> None:
        root.removeHandler(handler)
        own.setLevel(before)
        writer.stop(handler.dropped)
        handler.close()

    return stop


def call_line(fields: Mapping[str, Any]) -> None:
    """Log one call. `fields` are scalars by name, in the order in which to print them; anything else is left out."""
    if not _calls.isEnabledFor(logging.INFO):
        return
    (alone,) = logging.root.handlers if len(logging.root.handlers) == 1 else (None,)
    if type(alone) is _Handler and not (_calls.handlers or _calls.filters or _own.handlers):
        # Nobody else hears of it: a record would cost five times the line.
        alone.call(fields)
        return
    kept = {name: value for name, value in fields.items() if isinstance(value, _SCALARS)}
    # As `Logger.info`, but for the search of the stack for the caller, which no line of ours names.
    record = _calls.makeRecord(_calls.name, logging.INFO, "", 0, "call", (), None, extra={"fields": kept})
    _calls.handle(record)


class _Handler(logging.handlers.QueueHandler):
    """Formats on the spot (microseconds) and queues the line; a full queue costs the line, never a wait."""

    def __init__(self, lines: queue.SimpleQueue[Any], form: _Text | _Json) -> None:
        super().__init__(lines)
        self._lines = lines
        self.setFormatter(form)
        self.dropped = 0
        self._form = form

    def call(self, fields: Mapping[str, Any]) -> None:
        """Queue a call's line."""
        self.enqueue(masked(self._form.call(clock.now(), fields)))

    def prepare(self, record: logging.LogRecord) -> Any:
        return masked(self.format(record))

    def enqueue(self, record: Any) -> None:
        # The queue has no bound of its own: one that has takes longer than the line. Threads that log at once may go
        # a line or two beyond.
        if self._lines.qsize() >= QUEUE_LINES:
            self.dropped += 1
            return
        if self.dropped:
            self._lines.put(_dropped(self.dropped))
            self.dropped = 0
        self._lines.put(record)


class _Writer:
    """The one thread that writes."""

    def __init__(self, stream: TextIO) -> None:
        self.lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stream = stream
        self._ending = threading.Event()
        # A daemon, since a stuck stderr must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (line := self.lines.get()) is not _END:
            try:
                self._stream.write(line + "\n")
                if self.lines.empty():
                    self._stream.flush()
                    # So that a busy loop doesn't wake this thread for each line.
                    self._ending.wait(REST_S)
            except (OSError, ValueError):
                # Closed or broken: there is nowhere left to say so.
                continue

    def stop(self, dropped: int) -> None:
        self._ending.set()
        if dropped:
            self.lines.put(_dropped(dropped))
        self.lines.put(_END)
        self._thread.join(STOP_S)


def _dropped(n: int) -> str:
    return f"{n} log lines were dropped: stderr did not take them"


class _Text(logging.Formatter):
    def call(self, at: str, fields: Mapping[str, Any]) -> str:
        """Return a call's line, of those fields that are scalars; `at` as `clock.now` has it."""
        line = f"{at[11:-1]} call"
        for name, value in fields.items():
            if type(value) is int:
                line += f" {name}={value}"
            elif type(value) is float:
                line += f" {name}={value:.1f}"
            elif isinstance(value, _SCALARS):
                line += f" {name}={_shown(value)}"
        return line

    def format(self, record: logging.LogRecord) -> str:
        at = _moment(record).strftime("%H:%M:%S.%f")[:-3]
        fields = getattr(record, "fields", None)
        if fields is not None:
            return " ".join([at, record.getMessage(), *(f"{name}={_shown(value)}" for name, value in fields.items())])
        return f"{at} {record.levelname.lower()} {_escaped(record.getMessage())}{_trace(self, record)}"


class _Json(logging.Formatter):
    def call(self, at: str, fields: Mapping[str, Any]) -> str:
        """Return a call's line, of those fields that are scalars; `at` as `clock.now` has it."""
        line = {"at": at, "level": "info", "logger": _calls.name, "message": "call"}
        line |= {name: _short(value) for name, value in fields.items() if isinstance(value, _SCALARS)}
        return msgspec.json.encode(line).decode()

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage().encode("utf-8", "backslashreplace").decode(),
        }
        fields = getattr(record, "fields", None)
        if fields is not None:
            line |= {name: _short(value) for name, value in fields.items()}
        if trace := _trace(self, record):
            line["trace"] = trace.strip().encode("utf-8", "backslashreplace").decode()
        return msgspec.json.encode(line).decode()


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _short(value: Any) -> Any:
    if not isinstance(value, str) or (value.isascii() and len(value) <= VALUE_LIMIT):
        return value
    # Header values may hold lone surrogates, which no encoding takes.
    return value[:VALUE_LIMIT].encode("utf-8", "backslashreplace").decode()


def _shown(value: Any) -> str:
    if isinstance(value, str):
        if value.isalnum() and len(value) <= VALUE_LIMIT:
            return value
        text = _escaped(_short(value))
        return f'"{text}"' if " " in text or not text else text
    return f"{value:.1f}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    """Escape what would end the line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
