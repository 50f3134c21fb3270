"""What is kept of a rollout beside its record, so that a list of ten thousand needs no graph; and how it is asked for.

Rules
1. A summary is what its rollout's graph said at one version of the rollout. It counts while the rollout has that very
   version; after that it is stale, and whoever shows the rollout reads the graph anew. So it may be lost, late or
   missing, and nothing that is shown is wrong for it.
2. It belongs to one registration: a rollout that was deleted and registered again under its id has another secret.
3. Sums over many rollouts (`Overview`) take stale summaries as they are, and say how many there are.

The SQL of both stores is put together here, since it is nearly the same; what differs is in `Dialect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from capture.store import cursor

Order = Literal["created", "closed", "-created"]

MOST_GROUPS = 200
"""Groups in an overview: a run of weeks has thousands, and nobody looks further back than this in one list."""

MOST_VALUES = 50
"""Values of one label in an overview: a label with more is an id, and no use as a choice."""

MOST_STALE = 16
"""Rollouts with stale summaries that an overview names, so that they can be read anew."""

FIRST, LAST = 0, 2**63 - 1
"""Before the first place of an order, and behind its last."""


class Found(msgspec.Struct, frozen=True, array_like=True):
    """A finding's code with the number of its worst level (`graph.health.LEVELS`) and of the calls that it names."""

    code: str
    level: int
    n: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout's graph said at one version of the rollout."""

    version: int
    # The list's row, JSON.
    row: bytes
    # What a search looks in, in lower case, a part a line: id, group, model, values of labels.
    words: str
    # When an open rollout expires, as far as this version knows (ISO 8601); None of a closed one.
    until: str | None = None
    # An open rollout's limit in seconds, of which the row says what is left; None where it has none.
    deadline_s: float | None = None
    trouble: bool = False
    incomplete: bool = False
    stopped: bool = False
    # Calls of main that drifted.
    drifted: int = 0
    calls: int = 0
    sampled_tokens: int = 0
    reward: float | None = None
    findings: tuple[Found, ...] = ()


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list, or what an overview is of: filters, order, and where the last page ended."""

    state: Literal["open", "closed"] | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    # A finding's code.
    finding: str | None = None
    # Looked for in `Summary.words`.
    text: str | None = None
    trouble: bool = False
    # True: those with a reward; False: closed ones without.
    graded: bool | None = None
    # Only those without a summary of their present version.
    behind: bool = False
    order: Order = "created"
    # Opaque; the cursor of the line before.
    after: str | None = None
    limit: int = 100


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a sheet."""

    id: str
    # The `after` of the line behind it.
    cursor: str
    # None: there is no summary of its present version, and whether it is what was looked for is not known.
    row: bytes | None = None
    until: str | None = None
    deadline_s: float | None = None


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines, and the cursor for more (None at the end; for `order=closed` never None, so that it can tail)."""

    lines: tuple[Line, ...]
    next: str | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group's rollouts in numbers; the mean of those that have a reward."""

    group: str
    rollouts: int
    open: int
    trouble: int
    reward_mean: float | None


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A label's name and its values, at most `MOST_VALUES`."""

    name: str
    values: tuple[str, ...]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over rollouts: their own columns as they are, all else as their summaries say."""

    rollouts: int
    open: int
    # Calls that run.
    running: int
    # Closed ones without a call.
    no_calls: int
    incomplete: int
    stopped: int
    graded: int
    # Closed ones without a reward.
    ungraded: int
    drifted: int
    trouble: int
    # Of the reward; None without any.
    mean: float | None
    least: float | None
    most: float | None
    calls: int
    sampled_tokens: int
    # Code, worst level, rollouts, calls named.
    findings: tuple[tuple[str, int, int, int], ...]
    # The newest first.
    groups: tuple[Group, ...]
    # Of all rollouts, whatever was looked for.
    labels: tuple[Label, ...]
    # Rollouts whose summary is missing or behind, and the ids of some.
    stale: int
    behind: tuple[str, ...]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """Where the two databases differ."""

    # The nth value's place in a statement, from 1.
    holder: Callable[[int], str]
    # Text as a column of groups and labels has it, and back.
    spelt: Callable[[str], str]
    told: Callable[[str], str]
    # A condition on a key: it is one of many, which are one value.
    among: str
    # A subquery with a row `rollout` for each call that runs.
    running: str


STALE = "summary.version IS DISTINCT FROM rollout.version"
"""Of a row of `_FROM`: there is no summary of its rollout's present version."""

# What stands in braces is put in below: column names, conditions of `Asked`, and the holders of bound values.
_FROM = " FROM rollout LEFT JOIN summary ON summary.rollout = rollout.key"
_TEXT = " LEFT JOIN summary_text ON summary_text.rollout = rollout.key"
_LABELLED = (
    "EXISTS (SELECT 1 FROM label WHERE label.rollout = rollout.key AND label.name = {name} AND label.value = {value})"
)
_FOUND = "EXISTS (SELECT 1 FROM summary_finding AS one WHERE one.rollout = rollout.key AND one.code = {code})"
_SHEET = (
    "SELECT rollout.{column}, rollout.id, "
    + STALE
    + ", summary_text.data, summary_text.until, summary_text.deadline_s"
    + _FROM
    + _TEXT
    + " WHERE {where} ORDER BY rollout.{column} {way} LIMIT {limit}"
)
_WANTED = "SELECT rollout.key" + _FROM + "{text} WHERE {where}"
_SUMS = (
    "SELECT count(*), count(*) FILTER (WHERE rollout.state = 'open'),"
    " count(*) FILTER (WHERE rollout.state = 'closed' AND summary.calls = 0),"
    " count(*) FILTER (WHERE rollout.state = 'closed' AND summary.reward IS NULL),"
    " count(*) FILTER (WHERE summary.incomplete), count(*) FILTER (WHERE summary.stopped), count(summary.reward),"
    " count(*) FILTER (WHERE summary.drifted > 0), count(*) FILTER (WHERE summary.trouble),"
    " avg(summary.reward), min(summary.reward), max(summary.reward),"
    " CAST(coalesce(sum(summary.calls), 0) AS bigint), CAST(coalesce(sum(summary.sampled_tokens), 0) AS bigint),"
    " count(*) FILTER (WHERE rollout.state = 'closed' AND summary.current IS NOT TRUE)" + _FROM + "{where}"
)
_RUNNING = "SELECT count(*) FROM ({running}) AS runs{where}"
_FINDINGS = (
    "SELECT code, max(level), count(*), CAST(sum(n) AS bigint) FROM summary_finding{where}"
    " GROUP BY code ORDER BY 2 DESC, 3 DESC, 1"
)
_GROUPS = (
    "SELECT rollout.\"group\", count(*), count(*) FILTER (WHERE rollout.state = 'open'),"
    " count(*) FILTER (WHERE summary.trouble), avg(summary.reward)"
    + _FROM
    + '{where} GROUP BY rollout."group" ORDER BY max(rollout.created) DESC LIMIT {limit}'
)
# Closed ones say so themselves; of the others there are few, and their versions are compared.
_CLOSED_BEHIND = (
    "SELECT rollout.id"
    + _FROM
    + " WHERE rollout.state = 'closed' AND summary.current IS NOT TRUE ORDER BY rollout.created DESC LIMIT {limit}"
)
_OPEN_BEHIND = "SELECT rollout.id" + _FROM + "{where} ORDER BY rollout.created DESC"
_LABELS = (
    "SELECT name, value FROM (SELECT name, value, row_number() OVER (PARTITION BY name ORDER BY value) AS at"
    " FROM (SELECT DISTINCT name, value FROM label) AS known) AS counted WHERE at <= {limit} ORDER BY name, value"
)


class Asked:
    """One statement's conditions and values."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.values: list[Any] = []

    def __repr__(self) -> str:
        return f"<Asked {len(self.values)} values>"

    def bound(self, value: Any) -> str:
        """Take a value; return what stands for it."""
        self.values.append(value)
        return self._dialect.holder(len(self.values))

    def own(self, look: Look) -> list[str]:
        """Return the conditions on what a rollout says of itself."""
        spelt = self._dialect.spelt
        out = []
        if look.state is not None:
            out.append(f"rollout.state = {self.bound(look.state)}")
        if look.group is not None:
            out.append(f'rollout."group" = {self.bound(spelt(look.group))}')
        for name, value in look.labels.items():
            out.append(_LABELLED.format(name=self.bound(spelt(name)), value=self.bound(spelt(value))))
        if look.behind:
            out.append(STALE)
        return out

    def read(self, look: Look) -> list[str]:
        """Return the conditions on what its summary says."""
        out = []
        if look.trouble:
            out.append("summary.trouble")
        if look.graded is not None:
            out.append(
                "summary.reward IS NOT NULL" if look.graded else "rollout.state = 'closed' AND summary.reward IS NULL"
            )
        if look.text is not None:
            wanted = plain(look.text).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            out.append(f"summary_text.words LIKE {self.bound(f'%{wanted}%')} ESCAPE '\\'")
        if look.finding is not None:
            out.append(_FOUND.format(code=self.bound(plain(look.finding))))
        return out


def sheet(look: Look, dialect: Dialect) -> tuple[str, list[Any]]:
    """Return the statement for a page and its values; a row is what `lines` takes. Raises `ClientError` `bad_cursor`.

    One with a stale summary is on it if all else is as asked: only its graph can say.
    """
    asked = Asked(dialect)
    column, down = look.order.removeprefix("-"), look.order.startswith("-")
    # `column` is one of two literals; all else is bound.
    where = [f"rollout.{column} {'<' if down else '>'} {asked.bound(place(look))}", *asked.own(look)]
    if read := asked.read(look):
        where.append(f"({STALE} OR ({' AND '.join(read)}))")
    text = _SHEET.format(
        column=column, where=" AND ".join(where), way="DESC" if down else "ASC", limit=asked.bound(look.limit + 1)
    )
    return text, asked.values


def lines(look: Look, found: list[tuple[Any, ...]]) -> Sheet:
    """Return a page from the rows of its statement."""
    start = look.order[:2]
    shown = tuple(
        Line(id=name, cursor=f"{start}{at}")
        if stale
        else Line(id=name, cursor=f"{start}{at}", row=bytes(data), until=until, deadline_s=deadline_s)
        for at, name, stale, data, until, deadline_s in found[: look.limit]
    )
    more = len(found) > len(shown)
    last = shown[-1].cursor if shown else f"{start}{place(look)}"
    return Sheet(lines=shown, next=last if more or look.order == "closed" else None)


def place(look: Look) -> int:
    """Return the place that a page starts behind. Raises `ClientError` `bad_cursor`."""
    first = LAST if look.order.startswith("-") else FIRST
    return cursor.place(look.after, look.order, first=first, most=LAST)


def wanted(look: Look, dialect: Dialect) -> tuple[str, list[Any]] | None:
    """Return the statement, with its values, for the keys of what an overview is of; None if that is all there is."""
    asked = Asked(dialect)
    where = [*asked.own(look), *asked.read(look)]
    if not where:
        return None
    return _WANTED.format(text=_TEXT if look.text is not None else "", where=" AND ".join(where)), asked.values


def overview(keys: Any, dialect: Dialect) -> dict[str, tuple[str, list[Any]]]:
    """Return the statements of an overview, with their values, by what they give; `summed` takes their rows.

    `keys` are those of the rollouts that it is of, as the dialect binds many values; None: it is of all.
    """
    out: dict[str, tuple[str, list[Any]]] = {}

    def ask(name: str, text: str, key: str, *conditions: str, limit: int = 0, **parts: str) -> None:
        asked = Asked(dialect)
        where = (
            [*conditions] if keys is None else [f"{key} {dialect.among.format(keys=asked.bound(keys))}", *conditions]
        )
        parts["where"] = f" WHERE {' AND '.join(where)}" if where else ""
        if limit:
            parts["limit"] = asked.bound(limit)
        out[name] = text.format(**parts), asked.values

    ask("sums", _SUMS, "rollout.key")
    ask("running", _RUNNING, "runs.rollout", running=dialect.running)
    ask("findings", _FINDINGS, "summary_finding.rollout")
    ask("groups", _GROUPS, "rollout.key", 'rollout."group" IS NOT NULL', limit=MOST_GROUPS)
    ask("open", _OPEN_BEHIND, "rollout.key", "rollout.state = 'open'", STALE)
    for name, text, limit in (("closed", _CLOSED_BEHIND, MOST_STALE), ("labels", _LABELS, MOST_VALUES)):
        asked = Asked(dialect)
        out[name] = text.format(limit=asked.bound(limit)), asked.values
    return out


def is_needed(name: str, rows: Mapping[str, Any]) -> bool:
    """Say whether a statement has anything to give, by the rows of those before it: mostly no summary is behind."""
    return name != "closed" or bool(rows["sums"][0][-1])


def summed(rows: dict[str, list[tuple[Any, ...]]], dialect: Dialect) -> Overview:
    """Return an overview from the rows of its statements."""
    total, opened, none, ungraded, incomplete, stopped, graded, drifted, trouble, *rest = rows["sums"][0]
    mean, least, most, calls, tokens, stale = rest
    labels: dict[str, list[str]] = {}
    for name, value in rows["labels"]:
        labels.setdefault(dialect.told(name), []).append(dialect.told(value))
    return Overview(
        rollouts=total,
        open=opened,
        running=rows["running"][0][0],
        no_calls=none,
        incomplete=incomplete,
        stopped=stopped,
        graded=graded,
        ungraded=ungraded,
        drifted=drifted,
        trouble=trouble,
        mean=mean,
        least=least,
        most=most,
        calls=calls,
        sampled_tokens=tokens,
        findings=tuple((code, level, rollouts, n) for code, level, rollouts, n in rows["findings"]),
        groups=tuple(
            Group(group=dialect.told(name), rollouts=count, open=some, trouble=ill, reward_mean=reward)
            for name, count, some, ill, reward in rows["groups"]
        ),
        labels=tuple(Label(name=name, values=tuple(values)) for name, values in labels.items()),
        stale=stale + len(rows["open"]),
        behind=tuple(name for (name,) in [*rows["closed"], *rows["open"]][:MOST_STALE]),
    )


def plain(text: str) -> str:
    """Return text as it is searched: in lower case, and without what a database's text can't hold."""
    return text.casefold().encode("utf-8", "replace").decode().replace("\0", "\ufffd")
