"""`treering export`: training sequences of many rollouts into one file, page by page.

A page is one answer of `GET /sequences` with a limit, written through as it comes, so what is held at once is one line.
Without an appliance (`--offline`) pages come from the store itself, by the code that answers the route.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from capture import parquet, terminal
from capture.cli import Given
from capture.client import Client, client
from capture.errors import TreeringError, UsageError
from capture.offline import Offline
from capture.outputs import Output, Parquet, Stdout

PAGE = 50
"""Rollouts: what is asked for again, at most, after an interruption."""

WAIT_S = 600.0
"""For one line: a rollout of millions of tokens takes seconds to read and shape."""

TOLD_EVERY_S = 0.2
"""Between two lines of progress on a terminal."""

BAR = 24
"""Columns of the bar."""

FILTERS = ("group", "label", "state")
OPTIONS = ("format", "roles", "drift", "threshold", "constrained", "aborted", "group", "label", "state")


class Source(Protocol):
    """Where pages come from."""

    def page(self, query: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
        """Open the answer to `GET /sequences` with a query: what `outputs` reads."""

    def count(self, query: Mapping[str, Any]) -> int | None:
        """Return how many rollouts a query is about, None where that can't be told."""


def export(given: Given) -> int:
    """Write the sequences of many rollouts; 1 if none could be exported, or with `--strict` if one could not."""
    asked = given.arguments
    query = {name: asked[name] for name in OPTIONS if asked[name] not in (None, [])}
    query["format"] = asked["format"] or ("tree" if asked["drift"] == "tree" else "native")
    if asked["open"]:
        query["open"] = 1
    with contextlib.ExitStack() as stack:
        source = _source(given, stack)
        output = _output(asked, query)
        if isinstance(output, Output):
            stack.callback(output.close)
        progress = _Progress(output)
        if progress.shown and query.get("after") is None and asked["after"] is None:
            progress.total = source.count({name: query.get(name) for name in FILTERS})
        try:
            while not output.whole:
                with source.page({**query, "limit": PAGE, "after": output.end.next}) as answer:
                    output.commit(output.end + output.take(progress.watched(answer)))
            output.finish()
        except (KeyboardInterrupt, TreeringError):
            progress.stopped()
            raise
        progress.done(asked["out"])
    end = output.end
    if end.rollouts == end.refused:
        sys.stderr.write("treering: no rollout could be exported\n")
        return 1
    return int(asked["strict"] and end.refused > 0)


def _source(given: Given, stack: contextlib.ExitStack) -> Source:
    if not given.arguments["offline"]:
        return _Plane(client(given.settings, given.arguments["url"]))
    if given.arguments["url"] is not None:
        raise UsageError("--offline reads the store, and --url names a control plane", hint="leave one of them out")
    return stack.enter_context(Offline(given.settings))


def _output(asked: Mapping[str, Any], query: Mapping[str, Any]) -> Output | Stdout:
    if query["format"] == "parquet":
        parquet.needed()
        if asked["plain"]:
            raise UsageError(
                "--plain is about lines, and Parquet has none", hint="its column `refused` tells them apart"
            )
        if asked["out"] == "-":
            raise UsageError("--out -: Parquet is written to a file", hint="--out FILE.parquet")
    if asked["out"] == "-":
        if asked["overwrite"] or asked["restart"]:
            raise UsageError("--overwrite and --restart are about files", hint="leave them out with --out -")
        return Stdout(after=asked["after"], plain=asked["plain"])
    if asked["after"] is not None:
        raise UsageError("--after goes with --out -: a file goes on by itself", hint="run the same command again")
    kind = Parquet if query["format"] == "parquet" else Output
    begun = {**query, "plain": True} if asked["plain"] else query
    return kind(asked["out"], asked=begun, plain=asked["plain"], overwrite=asked["overwrite"], restart=asked["restart"])


class _Plane:
    """Pages of a running appliance."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def page(self, query: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
        return self._client.stream("/sequences", query=query, wait_s=WAIT_S)

    def count(self, query: Mapping[str, Any]) -> int | None:
        try:
            return int(self._client.json("GET", "/overview", query=query)["rollouts"])
        except TreeringError:
            # What is wrong is said by the export itself.
            return None


class _Progress:
    """What is said on stderr: a line that changes, on a terminal alone; and where something is amiss."""

    def __init__(self, output: Output | Stdout) -> None:
        self._output = output
        self.shown = sys.stderr.isatty()
        # Of rollouts; None while it isn't known.
        self.total: int | None = None
        self._begun, self._before = time.monotonic(), output.end.rollouts
        self._next = 0.0
        if isinstance(output, Output) and output.end.rollouts:
            sys.stderr.write(f"going on behind {output.end.rollouts:,} rollouts\n")

    def watched(self, answer: Any) -> Any:
        """Return what reads an answer and tells of it."""
        return _Watched(answer, self._tick) if self.shown else answer

    def stopped(self) -> None:
        """Say how to go on."""
        end = self._output.end
        self._clear()
        if isinstance(self._output, Output):
            sys.stderr.write(f"stopped behind {end.rollouts:,} rollouts; the same command goes on from there\n")
        elif end.next is not None:
            sys.stderr.write(f"stopped behind {end.rollouts:,} rollouts; --after {end.next} goes on from there\n")

    def done(self, out: str) -> None:
        """Say what there is, and what there is not."""
        end = self._output.end
        self._clear()
        if self.shown:
            where = "" if out == "-" else f" to {out}"
            sys.stderr.write(f"exported {end.rollouts - end.refused:,} rollouts{where}\n")
        if end.refused:
            why = ", ".join(f"{count:,} {code}" for code, count in end.reasons.items())
            sys.stderr.write(f"refused {end.refused:,} rollouts: {why}\n")

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TOLD_EVERY_S
            mib, took = self._output.written / 2**20, max(now - self._begun, 1e-3)
            told = drawn(self._output.end.rollouts, self.total, before=self._before, took_s=took)
            line = f"{told}, {mib:,.1f} MiB, {mib / took:,.1f} MiB/s"
            sys.stderr.write(f"\r\x1b[K{line[: terminal.columns() - 1]}")
            sys.stderr.flush()

    def _clear(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")


def drawn(done: int, total: int | None, *, before: int, took_s: float) -> str:
    """Return how far an export is, as a bar where the end is known.

    `before` of those that are done were there when it began, `took_s` seconds ago.
    """
    if not total:
        return f"{done:,} rollouts"
    # More may have come meanwhile.
    full = min(BAR, BAR * done // total)
    line = f"[{'#' * full}{'.' * (BAR - full)}] {done:,} of {total:,} rollouts"
    if done > before and done < total:
        left_s = took_s * (total - done) / (done - before)
        line += f", {left_s / 60:,.0f} min left" if left_s >= 90 else f", {left_s:,.0f} s left"
    return line


class _Watched:
    def __init__(self, answer: Any, tick: Any) -> None:
        self._answer = answer
        self._tick = tick

    def __iter__(self) -> Iterator[bytes]:
        for line in self._answer:
            yield line
            self._tick()

    def read(self, amount: int, /) -> bytes:
        piece: bytes = self._answer.read(amount)
        self._tick()
        return piece
