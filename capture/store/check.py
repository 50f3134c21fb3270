"""Is all of a store there, and does it agree with itself? What `treering doctor --store` looks at.

Rules.
1. Nothing is changed: the connection is read-only, and all is read from one snapshot, so a running Treering may write
   on meanwhile.
2. What can be read is read by the functions that readers use (`reads`), so that what passes here is what a trainer
   gets; what they don't look at is looked at beside them.
3. One fault ends nothing: each names its rollout and its call, and the look goes on. Only a file that SQLite can't read
   at all has nothing to go on with.

Theory. SQLite's own check sees pages and indexes, not meaning: a flipped bit inside a blob passes it. So every content
is unpacked and digested again, every chain's digest worked out from its parent's, every prompt put together and held
against its CRC, and every reference followed, both to what it names and to the note in `use` that keeps that from being
swept. Sampled ids and logprobs carry no sum of their own; of them only the lengths are known.

Costs. One pass over the file for SQLite, one over the contents, and each call's prompt and bodies once: half a
millisecond of CPU a call, some 10 MB of the file a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from capture.digests import digest, digests
from capture.errors import StoreError, TreeringError
from capture.store import chains, contents, exchanges, migrations, query, reads, rows
from capture.store.base import FORMAT_VERSION
from capture.store.canonical import Canonical
from capture.store.faults import Fault, Report

PAGE_CALLS = 32
"""Calls whose prompts are held at one time: of the longest known, some 80 MB."""

MOST_LINES = 100
"""Of SQLite's own report, where it is that long."""


def check(path: Path) -> Report:
    """Look at all of a store's file, which may be in use.

    Raises `StoreError`: `store_newer`; `store_failed` where there is no such file, it is no store, or it can't be read
    at all.
    """
    if not path.is_file():
        raise StoreError("store_failed", f"there is no store at {path}", hint="name another with --store")
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return _check(db, path)
        finally:
            db.close()
    except apsw.Error as error:
        raise StoreError(
            "store_failed", f"{path} can't be read: {error}", hint="is it a store? bring a backup back if it was"
        ) from error


def _check(db: apsw.Connection, path: Path) -> Report:
    db.set_busy_timeout(5_000)
    db.execute("PRAGMA query_only = ON")
    version = migrations.version(db)
    if version != FORMAT_VERSION:
        raise StoreError(
            "store_failed",
            f"{path} is of version {version}; {FORMAT_VERSION} can be checked",
            hint="treering migrate brings it up, after a backup",
        )
    db.execute("BEGIN")
    faults = list(_file(db))
    names = _names(db)
    look = _Look(db)
    for one in (look.contents, look.order):
        faults += _guarded(one())
    for key, name in names:
        faults += _guarded(look.rollout(key, name), rollout=name)
    count = "SELECT count(*), sum(status = 'running') FROM call"
    calls, running = _first(db, count) or (0, 0)
    found = Report(
        version=version,
        rollouts=len(names),
        calls=calls,
        running=running or 0,
        contents=look.n_contents,
        size_bytes=path.stat().st_size,
        faults=tuple(faults),
    )
    db.execute("ROLLBACK")
    return found


def _guarded(faults: Iterator[Fault], *, rollout: str | None = None) -> Iterator[Fault]:
    """Yield faults, and make one of a damaged page, which ends this part of the look."""
    try:
        yield from faults
    except (apsw.Error, LookupError) as error:
        yield Fault(code="file_damaged", message=f"the look ended here: {error}", rollout=rollout)


def _first(db: apsw.Connection, sql: str) -> query.Row | None:
    try:
        return query.first(db, sql)
    except apsw.Error:
        return None


def _names(db: apsw.Connection) -> list[tuple[int, str]]:
    try:
        return [(key, name) for key, name in query.every(db, "SELECT key, id FROM rollout ORDER BY key")]
    except apsw.Error:
        return []


def _file(db: apsw.Connection) -> Iterator[Fault]:
    """Yield what SQLite itself finds."""
    try:
        for (line,) in query.every(db, f"PRAGMA integrity_check({MOST_LINES})"):
            if line != "ok":
                yield Fault(code="file_damaged", message=str(line))
        for table, row, parent, _ in query.every(db, "PRAGMA foreign_key_check"):
            yield Fault(code="reference_broken", message=f"row {row} of {table} names a {parent} that isn't there")
    except apsw.CorruptError as error:
        yield Fault(code="file_damaged", message=str(error))


# A rollout's highest number and reading of the counter, and what its ended calls come to (see `tally`).
_COUNTED = """
SELECT coalesce(max(n), -1), coalesce(max(max(arrived, coalesce(ended, 0))), -1),
  coalesce(sum(status IN ('complete', 'aborted') AND json_extract(record, '$.choice') IS NULL), 0),
  coalesce(sum(iif(status = 'running', 0,
    coalesce(n_sampled, json_extract(record, '$.usage_sampled'), 0)
    + iif(json_extract(record, '$.choice') IS NULL, coalesce(n_prompt, 0) - coalesce(shared, 0), 0))), 0)
FROM call WHERE rollout = ?
"""


class _Columns(NamedTuple):
    """Of a call, what its record isn't read for."""

    n: int
    status: str
    n_prompt: int | None
    n_sampled: int | None
    shared: int | None
    messages: int | None
    sampled_bytes: int | None
    logprob_bytes: int | None
    tail_bytes: int | None


class _Look:
    """The parts of the look that need to know of each other."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._canonical = Canonical()
        self.n_contents = 0

    def contents(self) -> Iterator[Fault]:
        """Yield contents whose bytes aren't those of their digest, or that nobody uses."""
        for key, name, packed, data in self._db.execute("SELECT key, digest, packed, data FROM content"):
            self.n_contents += 1
            try:
                if packed == "list":
                    whole = digests(chains.added(packed, data))
                else:
                    whole = contents.unpack(packed, data)
            except Exception as error:  # noqa: BLE001 - damaged bytes make zlib raise what it likes
                yield Fault(code="content_damaged", message=f"content {key} can't be unpacked: {error}")
                continue
            if digest(whole) != name:
                yield Fault(code="content_damaged", message=f"content {key} is not what its digest says")
        unused = "SELECT count(*) FROM content WHERE NOT EXISTS (SELECT 1 FROM use WHERE use.content = content.key)"
        if count := query.value(self._db, unused):
            yield Fault(code="content_unused", message=f"{count} contents are used by no rollout")

    def order(self) -> Iterator[Fault]:
        """Yield orders whose counter lies behind what was given out: the next place would be given twice."""
        lasts = query.first(self._db, "SELECT coalesce(max(created), 0), coalesce(max(closed), 0) FROM rollout")
        for name, last in zip(("created", "closed"), lasts or (0, 0), strict=True):
            row = query.first(self._db, "SELECT value FROM counter WHERE name = ?", (name,))
            if row is None or row[0] < last:
                yield Fault(code="order_broken", message=f"the counter {name} lies behind place {last}")

    def rollout(self, key: int, name: str) -> Iterator[Fault]:
        """Yield all that is wrong with one rollout."""
        yield from self._record(key, name)
        claimed = {content for (content,) in query.every(self._db, "SELECT content FROM use WHERE rollout = ?", (key,))}
        yield from self._chains(key, name, claimed)
        columns = [
            _Columns(*row)
            for row in query.every(
                self._db,
                "SELECT n, status, n_prompt, n_sampled, shared, messages, length(sampled), length(logprobs),"
                " length(tail) FROM call WHERE rollout = ? ORDER BY n",
                (key,),
            )
        ]
        for call in columns:
            yield from self._lengths(call, name)
            if call.messages is not None and call.messages not in claimed:
                yield _unclaimed(name, call.n, call.messages)
        yield from self._counts(key, name)
        yield from self._summary(key, name)
        yield from self._calls(name, [call.n for call in columns])
        yield from self._exchanges(key, name, {call.n for call in columns}, claimed)
        spooled = query.every(self._db, "SELECT n FROM spool WHERE rollout = ? ORDER BY n", (key,))
        running = {call.n for call in columns if call.status == "running"}
        for (n,) in spooled:
            if n not in running:
                yield Fault(code="spool_left", message="its spool is left", rollout=name, call=n)

    def _record(self, key: int, name: str) -> Iterator[Fault]:
        row = query.first(self._db, rows.SELECT_ENTRY + " WHERE key = ?", (key,))
        state, group, closed = query.first(
            self._db, 'SELECT state, "group", closed FROM rollout WHERE key = ?', (key,)
        ) or (None, None, None)
        labels: dict[str, str] = dict(query.every(self._db, "SELECT name, value FROM label WHERE rollout = ?", (key,)))
        try:
            assert row is not None
            told = rows.entry(row).rollout
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the record, it is the fault that is looked for
            yield Fault(code="rollout_damaged", message=f"its record can't be read: {error}", rollout=name)
            return
        pairs = {
            "id": (told.id, name),
            "state": (told.state, state),
            "group": (told.group, group),
            "labels": (told.labels, labels),
            "closed": (told.state == "closed", closed is not None),
        }
        for field, (one, other) in pairs.items():
            if one != other:
                message = f"its record says {field} {one!r}, its columns say {other!r}"
                yield Fault(code="rollout_damaged", message=message, rollout=name)

    def _counts(self, key: int, name: str) -> Iterator[Fault]:
        """Yield counters that disagree with the calls: limits are judged by them."""
        row = query.first(self._db, "SELECT next, tick, sampled, new_tokens FROM rollout WHERE key = ?", (key,))
        try:
            found = query.first(self._db, _COUNTED, (key,))
        except apsw.SQLError:
            # A record that is no JSON; its call is named where it is read.
            return
        assert row is not None
        assert found is not None
        (number, tick, sampled, tokens), (last, late, ended, taken) = row, found
        if number <= last or tick <= late:
            message = (
                f"its next number is {number} and its counter {tick}; call {last} and the counter's {late} are taken"
            )
            yield Fault(code="order_broken", message=message, rollout=name)
        if (sampled, tokens) != (ended, taken):
            message = (
                f"it is said to have spent {sampled} calls and {tokens} tokens; its calls come to {ended} and {taken}"
            )
            yield Fault(code="count_wrong", message=message, rollout=name)

    def _summary(self, key: int, name: str) -> Iterator[Fault]:
        """Yield what is kept of a rollout for lists, where that is not what the rollout says.

        One that is behind only has to be behind. What is said of the graph is not worked out again.
        """
        row = query.first(
            self._db,
            "SELECT summary.version, rollout.version, rollout.state, summary.reward, record, calls, data, current,"
            " (SELECT count(*) FROM call WHERE call.rollout = rollout.key)"
            " FROM summary JOIN rollout ON rollout.key = summary.rollout"
            " LEFT JOIN summary_text ON summary_text.rollout = rollout.key WHERE rollout.key = ?",
            (key,),
        )
        found: dict[str, int] = dict(
            query.every(self._db, "SELECT code, n FROM summary_finding WHERE rollout = ?", (key,))
        )
        if row is None:
            if found:
                yield Fault(code="summary_wrong", message="it has findings and no summary", rollout=name)
            return
        version, present, state, reward, record, calls, data, current, n_calls = row
        try:
            told = json.loads(data)
            of = (told["id"], told["health"]["findings"], told["n_calls"], told["reward"])
            now = (told["state"], told["n_calls"], told["reward"]), (state, n_calls, json.loads(record).get("reward"))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            yield Fault(code="summary_wrong", message=f"its summary can't be read: {_said(error)}", rollout=name)
            return
        if state == "closed" and current != (version == present):
            yield Fault(code="summary_wrong", message=f"its summary says current {current}", rollout=name)
        elif version > present or of != (name, found, calls, reward):
            yield Fault(code="summary_wrong", message="its summary disagrees with its own columns", rollout=name)
        elif version == present and now[0] != now[1]:
            yield Fault(code="summary_wrong", message=f"its summary says {now[0]}, it says {now[1]}", rollout=name)

    def _chains(self, key: int, name: str, claimed: set[int]) -> Iterator[Fault]:
        links: dict[int, bytes] = {}
        for link, parent, content, own, of in self._db.execute(
            "SELECT chain.key, parent, chain.content, chain.digest, content.digest FROM chain"
            " LEFT JOIN content ON content.key = chain.content WHERE chain.rollout = ? ORDER BY chain.key",
            (key,),
        ):
            links[link] = own
            if of is None or (parent is not None and parent not in links):
                lost = f"content {content}" if of is None else f"link {parent}"
                message = f"link {link} of its messages names {lost}, which isn't there"
                yield Fault(code="reference_broken", message=message, rollout=name)
                continue
            if digest((b"" if parent is None else links[parent]) + of) != own:
                message = f"link {link} of its messages is not what its digest says"
                yield Fault(code="chain_damaged", message=message, rollout=name)
            if content not in claimed:
                yield _unclaimed(name, None, content)
        lost_ends = (
            "SELECT n, chain FROM call WHERE rollout = ?1 AND chain IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM chain WHERE chain.key = call.chain AND chain.rollout = ?1)"
        )
        for n, link in query.every(self._db, lost_ends, (key,)):
            message = f"its messages end with link {link}, which isn't there"
            yield Fault(code="reference_broken", message=message, rollout=name, call=n)

    def _lengths(self, call: _Columns, name: str) -> Iterator[Fault]:
        tail = None if call.n_prompt is None else 4 * (call.n_prompt - (call.shared or 0))
        said = {
            "sampled ids": (call.sampled_bytes, None if call.n_sampled is None else 4 * call.n_sampled),
            "the prompt's tail": (call.tail_bytes, tail),
        }
        for what, (found, wanted) in said.items():
            if found != wanted:
                message = f"{what} take {found} bytes and should take {wanted}"
                yield Fault(code="call_damaged", message=message, rollout=name, call=call.n)
        if call.logprob_bytes is not None and call.logprob_bytes % 4:
            yield Fault(code="call_damaged", message="its logprobs are cut", rollout=name, call=call.n)

    def _calls(self, name: str, numbers: list[int]) -> Iterator[Fault]:
        for at in range(0, len(numbers), PAGE_CALLS):
            page = numbers[at : at + PAGE_CALLS]
            faults = list(self._read(name, page))
            if faults and len(page) > 1:
                # A call that can't be read takes its page with it, so each is read alone to find which.
                faults = [fault for n in page for fault in self._read(name, [n])]
            yield from faults

    def _read(self, name: str, page: list[int]) -> Iterator[Fault]:
        try:
            found = reads.calls(self._db, name, after=page[0] - 1, limit=len(page), canonical=self._canonical)
        except apsw.Error as error:
            yield Fault(code="file_damaged", message=str(error), rollout=name, call=page[0])
        except Exception as error:  # noqa: BLE001 - whatever a damaged record makes a reader raise
            yield Fault(code="call_damaged", message=f"it can't be read: {_said(error)}", rollout=name, call=page[0])
        else:
            for n in found.broken:
                message = "its prompt can't be put together, or is not what its check sum says"
                yield Fault(code="prompt_lost", message=message, rollout=name, call=n)

    def _exchanges(self, key: int, name: str, numbers: set[int], claimed: set[int]) -> Iterator[Fault]:
        seen = set()
        for n, top, undecoded, request, sent, reply in query.every(
            self._db,
            "SELECT n, top_logprobs, undecoded, request, sent, reply FROM exchange WHERE rollout = ? ORDER BY n",
            (key,),
        ):
            seen.add(n)
            try:
                reads.exchange(self._db, name, n)
                used = {top, undecoded} | {
                    content for body in (request, sent, reply) for content in exchanges.used(body)
                }
            except apsw.Error:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a damaged body makes a reader raise
                message = f"what passed can't be put together: {_said(error)}"
                yield Fault(code="exchange_lost", message=message, rollout=name, call=n)
                continue
            for content in sorted(used - claimed - {None}):
                yield _unclaimed(name, n, content)
        for n in sorted(numbers ^ seen):
            message = "what passed in it is missing" if n in numbers else "what passed in a call that isn't there"
            yield Fault(code="exchange_lost", message=message, rollout=name, call=n)


def _unclaimed(name: str, n: int | None, content: int) -> Fault:
    return Fault(code="content_unclaimed", message=f"it uses content {content} unclaimed", rollout=name, call=n)


def _said(error: Exception) -> str:
    return error.message if isinstance(error, TreeringError) else f"{type(error).__name__}: {error}"
