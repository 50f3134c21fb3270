"""Saved rollouts to resume from: a folder of JSON lines, read lazily, and one seed for each group.

Rules
1. A candidate is a line, known by its file and offset. Scanning reads a file's new bytes once, for line ends alone; a
   rollout is decoded when it is drawn, and is not kept.
2. Newest first: the later step, then the later file, then the later line. Of those in play, the ones drawn least often
   come first, so new rollouts are drawn before old ones again.
3. In play are the newest `window` files that have candidates. When one of them goes, the next older one comes in.
4. A file that vanished, or that another took the place of, takes all of its candidates with it, at the next draw or
   scan. A candidate that was dropped stays dropped, whatever a scan finds at its place.
5. `step_N` folders are read when they are complete: they hold a file named `STABLE`. A line is complete with its line
   end. Hidden files are not read.
6. A group draws once: every rollout of it gets the same seed. Which point of a rollout that is follows from the group's
   name alone.
7. A filter without words takes anything; one with an empty list takes nothing. What began with a replay is no source,
   unless the filter names the rollout.
8. Where nothing is left, a draw fails at once, with the filter named; it never waits.

Costs: a small object a candidate, and a look at the candidates in play for each draw, which reads one line.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from capture.errors import ClientError
from graph import saved
from graph.surgery import KINDS, WHOLE, Seed

SUFFIX = ".jsonl"
STABLE = "STABLE"
"""A step's folder holds a file of this name when all of its files are complete."""

WINDOW = 64
"""Files in play: a training run writes one or a few a step, and older policies make poorer sources."""

CHUNK = 1 << 20
"""Bytes read at a time when looking for line ends."""

_STEP = re.compile(r"step_(\d+)")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rollouts and points are drawn from. None takes any; an empty tuple none."""

    rollouts: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    labels: tuple[tuple[str, str], ...] | None = None
    # Of points; "whole" is drawn only where it is named.
    kinds: tuple[str, ...] | None = None
    # Bounds of the reward, both included; a rollout without one passes neither.
    least_reward: float | None = None
    most_reward: float | None = None

    def __post_init__(self) -> None:
        """Look at the kinds. Raises ValueError, naming the accepted words, for one that is none."""
        for kind in self.kinds or ():
            if kind not in KINDS:
                raise ValueError(f"a kind is one of {', '.join(KINDS)}; not {kind!r}")

    def __str__(self) -> str:
        """Name what was asked for, for a person."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return ", ".join(f"{name}={_words(value)}" for name, value in given.items()) or "any rollout"

    @property
    def nothing(self) -> bool:
        """Whether it takes nothing, whatever there is."""
        return () in (self.rollouts, self.groups, self.labels, self.kinds)

    def takes(self, one: saved.Saved) -> bool:
        """Say if a rollout may be drawn from."""
        if self.nothing or (one.replay_of is not None and one.rollout not in (self.rollouts or ())):
            return False
        if self.rollouts is not None and one.rollout not in self.rollouts:
            return False
        if self.groups is not None and one.group not in self.groups:
            return False
        if any(one.labels.get(name) != value for name, value in self.labels or ()):
            return False
        bounds = (self.least_reward, self.most_reward)
        if bounds == (None, None):
            return True
        low, high = (float("-inf") if bounds[0] is None else bounds[0]), bounds[1]
        return one.reward is not None and low <= one.reward and (high is None or one.reward <= high)

    def places(self, one: saved.Saved) -> list[saved.Place]:
        """Return the points of a rollout that may be drawn."""
        if self.kinds is None:
            return list(one.points)
        ends = [] if one.whole is None or WHOLE not in self.kinds else [one.whole]
        return [place for place in one.points if set(self.kinds) & set(place.kinds)] + ends


class Candidate(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A line of a file: its offset and length in bytes, without the line end."""

    file: Path
    offset: int
    length: int


class _File:
    """A file as far as it was read."""

    __slots__ = ("candidates", "inode", "read", "started")

    def __init__(self, inode: tuple[int, int]) -> None:
        self.inode = inode
        self.candidates: list[Candidate] = []
        # The offset behind the last complete line, and how far line ends were looked for.
        self.started = 0
        self.read = 0


class Buffer:
    """The saved rollouts of a folder, as sources of seeds."""

    def __init__(self, folder: Path, *, filter: Filter | None = None, window: int = WINDOW) -> None:  # noqa: A002 -- the word for it
        self.folder = folder
        self.filter = filter or Filter()
        self.window = window
        self._files: dict[Path, _File] = {}
        self._dropped: set[tuple[Path, int]] = set()
        # How often a candidate was drawn.
        self._drawn: dict[tuple[Path, int], int] = {}
        self._seeds: dict[str, Seed] = {}
        self._from: dict[str, Candidate] = {}
        self.rescan()

    def __repr__(self) -> str:
        return f"<Buffer of {self.folder}: {len(self.candidates())} candidates in {len(self._files)} files>"

    def rescan(self) -> None:
        """Look for new files, new lines, and files that have gone."""
        found: dict[Path, _File] = {}
        for path in self._listed():
            known = self._files.get(path)
            try:
                inode = _inode(path)
                if known is None or known.inode != inode or path.stat().st_size < known.started:
                    known = _File(inode)
                _read_on(path, known)
            except FileNotFoundError:
                continue
            found[path] = known
        self._files = found

    def candidates(self) -> list[Candidate]:
        """Return the candidates in play, newest first."""
        chosen: list[Candidate] = []
        files = 0
        for path in sorted(self._files, key=self._age, reverse=True):
            own = [each for each in self._files[path].candidates if (path, each.offset) not in self._dropped]
            if own and files < self.window:
                files += 1
                chosen += reversed(own)
        return chosen

    def draw(self, group: str, *, instruction: str | None = None) -> Seed:
        """Return the group's seed; the first call for a group draws it.

        `instruction` is a user message behind it. Raises `ClientError` 409 `replay_empty` when nothing that the filter
        takes is left.
        """
        drawn = self._seeds.get(group)
        if drawn is not None:
            return drawn
        while not self.filter.nothing:
            candidate = min(
                self.candidates(), key=lambda each: self._drawn.get((each.file, each.offset), 0), default=None
            )
            if candidate is None:
                break
            place = None
            if (one := self._open(candidate)) is not None and self.filter.takes(one):
                places = self.filter.places(one)
                place = random.Random(f"{group} {one.rollout}").choice(places) if places else None
            if one is None or place is None:
                # Of a file that has gone, nothing is in play any more; should it come back, so do they.
                if candidate.file in self._files:
                    self.drop(candidate)
                continue
            key = candidate.file, candidate.offset
            self._drawn[key] = self._drawn.get(key, 0) + 1
            self._from[group] = candidate
            seed = one.seed(place, instruction=instruction)
            self._seeds[group] = seed
            return seed
        raise ClientError(
            "replay_empty",
            f"No saved rollout in {self.folder} is left for the filter: {self.filter}.",
            hint="Ask for less, or save rollouts there first (treering replay ID --save FILE).",
            status=409,
        )

    def source(self, group: str) -> Candidate:
        """Return the line that a group's seed was cut from. Raises KeyError for a group that drew none."""
        return self._from[group]

    def drop(self, candidate: Candidate) -> None:
        """Take a candidate out for good (its rewards no longer tell anything, or it can't be read)."""
        self._dropped.add((candidate.file, candidate.offset))

    def forget(self, group: str) -> None:
        """Forget a group's seed, once all of its rollouts have it."""
        self._seeds.pop(group, None)
        self._from.pop(group, None)

    def _open(self, candidate: Candidate) -> saved.Saved | None:
        """Read a candidate; None where it is no rollout, or has gone, and then all of its file with it."""
        try:
            with candidate.file.open("rb") as file:
                if _inode(candidate.file) != self._files[candidate.file].inode:
                    raise FileNotFoundError(candidate.file)
                file.seek(candidate.offset)
                text = file.read(candidate.length)
        except FileNotFoundError:
            self._files.pop(candidate.file, None)
            return None
        try:
            return saved.read(text)
        except ValueError:
            return None

    def _listed(self) -> Iterator[Path]:
        """Yield the files that may be read."""
        try:
            entries = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.suffix == SUFFIX and entry.is_file():
                yield entry
            elif _STEP.fullmatch(entry.name) and (entry / STABLE).exists():
                yield from (each for each in sorted(entry.glob(f"*{SUFFIX}")) if not each.name.startswith("."))

    def _age(self, path: Path) -> tuple[int, int, str]:
        """Return what sorts files by age: files outside steps are older than any step."""
        step = _STEP.fullmatch(path.parent.name) if path.parent != self.folder else None
        try:
            written = path.stat().st_mtime_ns
        except FileNotFoundError:
            written = 0
        return (int(step[1]) if step else -1), written, path.name


def append(path: Path, one: saved.Saved) -> None:
    """Add a rollout to a file as a line of its own; a file that a writer left in the middle of one is closed first."""
    with path.open("ab+") as file:
        file.seek(0, 2)
        broken = False
        if file.tell():
            file.seek(-1, 2)
            broken = file.read(1) != b"\n"
        file.write((b"\n" if broken else b"") + msgspec.json.encode(one) + b"\n")


def _read_on(path: Path, known: _File) -> None:
    """Find the lines that were completed since the file was last read."""
    with path.open("rb") as file:
        file.seek(known.read)
        while chunk := file.read(CHUNK):
            at = chunk.find(b"\n")
            while at >= 0:
                end = known.read + at
                if end > known.started:
                    known.candidates.append(Candidate(file=path, offset=known.started, length=end - known.started))
                known.started = end + 1
                at = chunk.find(b"\n", at + 1)
            known.read += len(chunk)


def _inode(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _words(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return ",".join(":".join(each) if isinstance(each, tuple) else str(each) for each in value) or "(nothing)"
