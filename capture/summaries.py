"""Rollouts by the hundred: a list's rows and sums over all, from summaries that the store keeps.

Rules
1. What a row says is what the rollout's graph says. A summary of the rollout's present version is such a row; for one
   that is missing or behind the graph is read, off the loop, and what it says is kept for the next who asks.
2. A request reads `MOST_READ` graphs at most. A page that needs more ends early, with its cursor: short, and true.
3. What a summary can't know is looked at with the clock: an open rollout that is past its time, what is left of its
   deadline. What the store doesn't know yet (a call that it lost) is never kept.

Costs: a row with a summary is a few microseconds, of 1.3 KB; a graph some milliseconds, and tens for a long rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from capture import answers, clock
from capture.errors import ClientError, StoreError
from capture.rollouts import Rollouts
from capture.store.base import Entry, Store
from capture.store.summary import Found, Line, Look, Overview, Summary, plain
from graph import view
from graph.budget import deadline_left
from graph.graph import Graph
from graph.health import LEVELS, found, health_json, is_troubled

MOST_READ = 200
"""Graphs read for one page: a screenful of rollouts that all run, some two seconds on a busy machine."""

MOST_FIRST = 8
"""Summaries that are made anew before rollouts are summed up; of more, the sums are told as they are, and say so."""

Row = dict[str, Any] | answers.Passed | None
"""A row of the list: as a form, or as the JSON that was kept."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A page of rows, and the cursor for more."""

    rows: tuple[Row, ...]
    next: str | None


def row(graph: Graph, *, now: str | None = None) -> dict[str, Any]:
    """Return a rollout's row: its summary, what it was given, its health; `now` is as in `graph.view.rollout_json`."""
    shown = view.rollout_json(graph.rollout, graph, now=now)
    return {**shown, **view.given_json(graph), "health": health_json(graph)}


def summary(entry: Entry, graph: Graph, shown: dict[str, Any]) -> Summary:
    """Return what to keep of a rollout whose graph was read as of `entry`; `shown` is its row."""
    rollout = entry.rollout
    opened = rollout.state == "open"
    since = clock.parse(rollout.last_call_at or rollout.created_at)
    until = clock.text(since + timedelta(seconds=entry.registration.ttl_s)) if opened else None
    words = (rollout.id, rollout.group, rollout.model, *rollout.labels.values(), shown["task"])
    return Summary(
        version=entry.version,
        row=answers.encode(shown, packed=False),
        words="\n".join(plain(word) for word in words if word),
        until=until,
        deadline_s=rollout.limits.get("deadline_s") if opened else None,
        trouble=is_troubled(shown),
        incomplete=shown["incomplete"],
        stopped=shown["stopped"] is not None,
        drifted=shown["health"]["drift"]["drifted"],
        calls=shown["n_calls"],
        sampled_tokens=shown["n_sampled_tokens"],
        reward=shown["reward"],
        findings=tuple(Found(code, level, n) for code, (level, n) in found(graph.findings).items()),
    )


async def refresh(rollouts: Rollouts, store: Store, name: str) -> None:
    """Read a rollout's graph and keep its summary. Raises `ClientError` 404, and `StoreError`."""
    made = await _read(rollouts, name)
    if not rollouts.owes(name):
        await store.summarise([made[:2]])


async def keep(store: Store, entry: Entry, graph: Graph) -> None:
    """Keep the summary of a rollout whose graph was read as of `entry`. Raises `StoreError`."""
    made = await asyncio.to_thread(lambda: summary(entry, graph, row(graph, now=clock.now())))
    await store.summarise([(entry, made)])


async def page(rollouts: Rollouts, store: Store, look: Look) -> Listed:
    """Return a page of the list. Raises `ClientError` `bad_cursor`, and `StoreError`."""
    rows: list[Row] = []
    made: list[tuple[Entry, Summary]] = []
    after, left = look.after, MOST_READ
    try:
        while True:
            sheet = await store.sheet(msgspec.structs.replace(look, after=after, limit=look.limit - len(rows)))
            now = clock.now()
            for line in sheet.lines:
                if (kept := None if rollouts.owes(line.id) else _kept(line, now)) is not None:
                    rows.append(kept)
                elif left == 0:
                    return Listed(rows=tuple(rows), next=after)
                else:
                    left -= 1
                    try:
                        entry, read, shown = await _read(rollouts, line.id)
                    except ClientError as error:
                        # Deleted since the page was read.
                        if error.status != 404:
                            raise
                    else:
                        if not rollouts.owes(line.id):
                            made.append((entry, read))
                        if _is_wanted(entry, read, look):
                            rows.append(shown)
                after = line.cursor
            if len(rows) == look.limit or sheet.next is None or (look.order == "closed" and not sheet.lines):
                return Listed(rows=tuple(rows), next=sheet.next)
    finally:
        await _keep(store, made)


async def overview(rollouts: Rollouts, store: Store, look: Look) -> Overview:
    """Return sums over the rollouts that are looked for. Raises `StoreError`.

    Where few summaries are behind, their graphs are read first: in a small house the sums are of this moment.
    """
    found = await store.overview(look)
    if not 0 < found.stale <= MOST_FIRST:
        return found
    made: list[tuple[Entry, Summary]] = []
    for name in found.behind:
        with contextlib.suppress(ClientError):
            entry, read, _ = await _read(rollouts, name)
            if not rollouts.owes(name):
                made.append((entry, read))
    await _keep(store, made)
    return await store.overview(look)


def overview_json(of: Overview) -> dict[str, Any]:
    """Return an overview's form, as of now."""
    return {
        "rollouts": of.rollouts,
        "open": of.open,
        "closed": of.rollouts - of.open,
        "running": of.running,
        "no_calls": of.no_calls,
        "incomplete": of.incomplete,
        "stopped": of.stopped,
        "graded": of.graded,
        "ungraded": of.ungraded,
        "drifted": of.drifted,
        "trouble": of.trouble,
        "findings": [
            {"code": code, "severity": LEVELS[level], "rollouts": rollouts, "n": n}
            for code, level, rollouts, n in of.findings
        ],
        "reward": {"n": of.graded, "mean": of.mean, "min": of.least, "max": of.most},
        "calls": of.calls,
        "sampled_tokens": of.sampled_tokens,
        "groups": [msgspec.to_builtins(group) for group in of.groups],
        "labels": [{"name": label.name, "values": list(label.values)} for label in of.labels],
        "stale": of.stale,
        "as_of": clock.now(),
    }


async def _read(rollouts: Rollouts, name: str) -> tuple[Entry, Summary, dict[str, Any]]:
    """Read a rollout's graph; return its entry, its summary and its row."""
    entry, graph = await rollouts.seen(name, passing=True)

    def make() -> tuple[Entry, Summary, dict[str, Any]]:
        shown = row(graph, now=clock.now())
        return entry, summary(entry, graph, shown), shown

    return await asyncio.to_thread(make)


def _kept(line: Line, now: str) -> Row:
    """Return the row that was kept, None where it doesn't hold any more."""
    if line.row is None:
        return None
    if line.until is None:
        return answers.Passed(line.row)
    if now > line.until:
        # Past its time, unless a call came that no version shows yet; reading it closes it.
        return None
    if line.deadline_s is None:
        return answers.Passed(line.row)
    shown: dict[str, Any] = json.loads(line.row)
    shown["budget_left"]["deadline_s"] = deadline_left(line.deadline_s, shown["first_call_at"], now)
    return shown


def _is_wanted(entry: Entry, read: Summary, look: Look) -> bool:
    """Say whether a rollout is what was looked for; the store could not, since its summary was behind."""
    rollout = entry.rollout
    return (
        (look.state is None or rollout.state == look.state)
        and (look.group is None or rollout.group == look.group)
        and look.labels.items() <= rollout.labels.items()
        and (look.trouble is False or read.trouble)
        and (look.graded is None or look.graded is (read.reward is not None))
        and (look.graded is not False or rollout.state == "closed")
        and (look.text is None or plain(look.text) in read.words)
        and (look.finding is None or any(one.code == look.finding for one in read.findings))
    )


async def _keep(store: Store, made: Sequence[tuple[Entry, Summary]]) -> None:
    if made:
        try:
            await store.summarise(made)
        except StoreError:
            # Said elsewhere. They are read anew for whoever asks next.
            return
