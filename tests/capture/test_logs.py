"""Logs: one line a call, no secret, and never a wait for stderr."""

import io
import json
import logging
import threading
from datetime import UTC, datetime

import pytest

from capture import clock, logs

FIELDS = {"rollout": "r-1", "n": 3, "status": "complete", "sampled": 88, "first_token_ms": 12.25, "streamed": True}


@pytest.fixture
def logged():
    """Return a function that logs what it is given and returns the lines."""
    stops = []

    def log(form, what, level="info"):
        stream = io.StringIO()
        stop = logs.setup(form, level, stream=stream)
        stops.append(stop)
        what()
        stop()
        return stream.getvalue().splitlines()

    return log


def test_a_call_is_one_line_of_text(logged):
    (line,) = logged("text", lambda: logs.call_line(FIELDS))
    at, rest = line.split(" ", 1)
    assert len(at) == len("12:00:00.000")
    assert rest == "call rollout=r-1 n=3 status=complete sampled=88 first_token_ms=12.2 streamed=true"


def test_a_call_is_one_line_of_json(logged):
    (line,) = logged("json", lambda: logs.call_line(FIELDS))
    form = json.loads(line)
    assert form.pop("at").endswith("Z")
    assert form == {"level": "info", "logger": "treering.calls", "message": "call", **FIELDS}


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_but_short_scalars_is_logged(form, logged):
    fields = {"model": "m\nfake line \x1b[31m \udcff", "body": {"a": 1}, "long": "x" * 5_000, "none": None}
    (line,) = logged(form, lambda: logs.call_line(fields))
    assert "\x1b" not in line
    assert "body" not in line
    assert "none" not in line
    assert "x" * 200 in line
    assert "x" * 201 not in line


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("fields", [FIELDS, {"model": "m\n \udcff", "long": "é" * 300, "ok": False, "s": "", "f": 1.0}])
def test_a_line_is_the_same_whoever_else_listens(form, fields, logged, monkeypatch):
    """With one more handler the line goes by a record of the standard library's."""
    monkeypatch.setattr(clock, "now", lambda: "2026-01-02T03:04:05.678Z")
    monkeypatch.setattr(logs, "_moment", lambda record: datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC))
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    heard = []
    more = logging.Handler()
    more.emit = heard.append
    try:
        (short,) = logged(form, lambda: logs.call_line(fields))
        assert heard == []
        root.addHandler(more)
        (long,) = logged(form, lambda: logs.call_line(fields))
    finally:
        root.handlers = before
    assert (short, len(heard)) == (long, 1)


def test_a_trace_is_kept_whole(logged):
    def fail():
        try:
            raise ValueError("no such colour")
        except ValueError:
            logging.getLogger("treering").exception("it %s", "broke")

    lines = logged("text", fail)
    assert lines[0].endswith("error it broke")
    assert lines[-1] == "ValueError: no such colour"
    (line,) = logged("json", fail)
    assert json.loads(line)["trace"].endswith("ValueError: no such colour")


def test_the_level_is_that_of_our_own_loggers(logged):
    def say():
        logging.getLogger("treering").info("ours")
        logging.getLogger("elsewhere").info("theirs")
        logging.getLogger("elsewhere").warning("loud")

    assert [line.rsplit(" ", 1)[-1] for line in logged("text", say)] == ["ours", "loud"]
    assert [line.rsplit(" ", 1)[-1] for line in logged("text", say, level="error")] == ["loud"]


class Stuck(io.StringIO):
    """A stderr that takes nothing until it is let go."""

    def __init__(self):
        super().__init__()
        self.free = threading.Event()
        self.entered = threading.Event()

    def write(self, text):
        self.entered.set()
        self.free.wait(30)
        return super().write(text)


def test_a_stuck_stderr_costs_lines_and_no_time(monkeypatch):
    monkeypatch.setattr(logs, "QUEUE_LINES", 3)
    stream = Stuck()
    stop = logs.setup("text", "info", stream=stream)
    logs.call_line({"n": 0})
    assert stream.entered.wait(30)
    # The writer holds the first; three fit the queue; the rest is dropped, and nobody waits.
    for n in range(1, 10):
        logs.call_line({"n": n})
    stream.free.set()
    stop()
    lines = [line.split(" ", 1)[-1] for line in stream.getvalue().splitlines()]
    assert lines[:4] == ["call n=0", "call n=1", "call n=2", "call n=3"]
    assert stream.getvalue().endswith("6 log lines were dropped: stderr did not take them\n")


def test_a_stderr_that_stays_stuck_does_not_keep_the_process(monkeypatch):
    monkeypatch.setattr(logs, "STOP_S", 0.01)
    stream = Stuck()
    stop = logs.setup("text", "info", stream=stream)
    logs.call_line({"n": 0})
    assert stream.entered.wait(30)
    stop()
    assert stream.getvalue() == ""
    stream.free.set()


def test_a_closed_stderr_is_no_error(logged):
    stream = io.StringIO()
    stop = logs.setup("text", "info", stream=stream)
    stream.close()
    logs.call_line({"n": 0})
    stop()


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_rollouts_secret_gets_into_a_line_or_a_trace(form, logged):
    secret = "sk-treering-" + "Ab3_x" * 8 + "xyz"

    def log():
        try:
            raise ValueError(f"with {secret}")
        except ValueError:
            logging.getLogger("treering").exception("at /r/%s/v1", secret)
        logs.call_line({"rollout": secret})

    text = "\n".join(logged(form, log))
    assert secret[12:30] not in text
    assert text.count("sk-treering-…") == 3
