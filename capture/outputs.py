"""Where an export goes, and how it goes on where it stopped.

Rules
- What is written lies in `OUT.part` until all of it is there, and only then takes the name OUT: nobody ever reads half
  an export by that name.
- `OUT.part.json` says how far it is: up to which byte, how many rollouts, where the next page begins. It is written
  anew when a page is whole and on the disk. Whatever came behind that is cut off when the export goes on, so no line is
  torn and no rollout is there twice.
- It goes on only with the options that it was begun with, and one at a time.
- Parquet can't be cut: each page is a file in `OUT.parts`, and they become one at the end.
- What is for another's storage is made in the working folder and sent when it is whole (`capture.storage`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from capture import pages, parquet
from capture.errors import CaptureError, UsageError
from capture.pages import End
from capture.storage import Storage

VERSION = 1
"""Of `OUT.part.json`."""


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far an export is, as `OUT.part.json` has it."""

    version: int = VERSION
    # What it was begun with.
    asked: dict[str, Any]
    # Bytes of the `.part`; of Parquet, files in `.parts`.
    size: int = 0
    end: End = End()
    # No page is left: what is missing is its last line, and its name.
    whole: bool = False


class Stdout:
    """Standard output: pages as they come. It can't be cut, so who goes on says where (`after`)."""

    def __init__(self, *, after: str | None, plain: bool) -> None:
        self.end = End(next=after)
        self.whole = False
        self._plain = plain
        # Bytes so far.
        self.written = 0

    def take(self, answer: Any) -> End:
        """Write a page."""
        end = pages.copy_lines(answer, self._write, plain=self._plain)
        sys.stdout.buffer.flush()
        return end

    def commit(self, end: End) -> None:
        """Count what was written."""
        self.end, self.whole = end, end.next is None

    def finish(self) -> None:
        """Write the last line."""
        if not self._plain:
            self._write(msgspec.json.encode(self.end.told()) + b"\n")
        sys.stdout.buffer.flush()

    def _write(self, data: bytes) -> None:
        self.written += len(data)
        sys.stdout.buffer.write(data)


class Output:
    """A file of lines in the making."""

    def __init__(
        self, out: str, *, asked: Mapping[str, Any], plain: bool = False, overwrite: bool = False, restart: bool = False
    ) -> None:
        """Open it, where it stopped if it did; `out` is a path, or the URL of another's storage.

        Raises `UsageError`: OUT exists, or is a folder; its `.part` was begun with other options, or is another's just
        now; or what `Storage` raises. All that is written later raises `CaptureError` `not_written`.
        """
        if not out or out.endswith("/") or Path(out).is_dir():
            raise UsageError(f"--out: {out or 'an empty name'} is no file", hint="name the file itself")
        self._storage = Storage(out) if "://" in out else None
        self._final = Path(self._storage.local if self._storage else out)
        self._part, self._note, self._parts = (self._final.with_name(self._final.name + end) for end in _ENDS)
        self._plain = plain
        self.written = 0
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(self._opened(out))
            fresh = restart or not self._note.exists()
            if fresh and not overwrite and (self._storage.exists() if self._storage else self._final.exists()):
                self._part.unlink()
                raise UsageError(f"--out: {out} exists", hint="--overwrite puts the export in its place")
            self.place = Place(asked=dict(asked)) if fresh else self._read(out, dict(asked))
            self._cut()
            self._open = stack.pop_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._final}: {self.end.rollouts} rollouts>"

    @property
    def end(self) -> End:
        """What it holds, and where the next page begins."""
        return self.place.end

    @property
    def whole(self) -> bool:
        """Whether all pages are there."""
        return self.place.whole

    def take(self, answer: Any) -> End:
        """Write a page; it counts when it is committed. Raises `ClientError` `export_cut`."""
        return pages.copy_lines(answer, self._write, plain=self._plain)

    def commit(self, end: End) -> None:
        """Put what was written on the disk, and say how far it is."""
        with self._failing():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._tell(self._file.tell(), end)

    def finish(self) -> None:
        """Write the last line, and give the whole its name, or send it; nothing else is left of it then."""
        if not self._plain:
            self._write(msgspec.json.encode(self.end.told()) + b"\n")
        with self._failing():
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._storage:
                self._storage.put(self._part)
                self._part.unlink()
            else:
                self._part.replace(self._final)
            self._note.unlink(missing_ok=True)
            shutil.rmtree(self._parts, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Let go of it, to go on another time."""
        self._open.close()

    def _cut(self) -> None:
        """Cut the `.part` to what counts."""
        if self._part.stat().st_size < self.place.size:
            raise _unfit(f"{self._part} is shorter than {self._note} says")
        self._file.truncate(self.place.size)
        self._file.seek(0, os.SEEK_END)

    def _write(self, data: bytes) -> None:
        self.written += len(data)
        with self._failing():
            self._file.write(data)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CaptureError(
                "not_written",
                f"Can't write {self._part}: {error.strerror or error}.",
                hint="What was exported up to the last whole page is kept; the same command goes on from there.",
            ) from error

    def _opened(self, out: str) -> BinaryIO:
        try:
            file = self._part.open("a+b")
        except OSError as error:
            hint = "name a file in a folder that is there and that you may write to"
            raise UsageError(f"--out: can't write {self._part}: {error.strerror}", hint=hint) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            hint = "wait for its end, or name another file"
            raise UsageError(f"--out: another export is writing {out} just now", hint=hint) from error
        return file

    def _read(self, out: str, asked: dict[str, Any]) -> Place:
        try:
            place = msgspec.json.decode(self._note.read_bytes(), type=Place)
        except msgspec.MsgspecError as error:
            raise _unfit(f"{self._note} can't be read: {error}") from error
        if place.version != VERSION:
            raise _unfit(f"{self._note} is of another version of Treering")
        if place.asked != asked:
            changed = sorted(name for name in {*place.asked, *asked} if place.asked.get(name) != asked.get(name))
            raise _unfit(f"{out} was begun with other options ({', '.join(changed)})")
        return place

    def _tell(self, size: int, end: End) -> None:
        place = msgspec.structs.replace(self.place, size=size, end=end, whole=end.next is None)
        fresh = self._note.with_name(self._note.name + ".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(place))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._note)
        self.place = place


class Parquet(Output):
    """A Parquet file in the making: pages are files, put together at the end."""

    def take(self, answer: Any) -> End:
        """Write a page; it counts when it is committed. Raises `ClientError` `export_cut`."""
        path = self._page(self.place.size)
        with self._failing():
            self._parts.mkdir(exist_ok=True)
            with path.open("wb") as file:
                pages.copy_bytes(answer, file.write)
                self.written += file.tell()
                file.flush()
                os.fsync(file.fileno())
        told = parquet.footer(path)
        if told is None:
            raise pages.cut()
        return msgspec.convert(told, End)

    def commit(self, end: End) -> None:
        """Say that one more page is whole."""
        with self._failing():
            self._tell(self.place.size + 1, end)

    def finish(self) -> None:
        """Put the pages together, and give the whole its name, or send it."""
        with self._failing():
            parquet.join([self._page(n) for n in range(self.place.size)], self._file, self.end.told())
        self._plain = True
        super().finish()

    def _cut(self) -> None:
        # What was put together before is put together anew.
        self._file.truncate(0)
        self._file.seek(0)

    def _page(self, n: int) -> Path:
        return self._parts / f"{n:06}.parquet"


_ENDS = (".part", ".part.json", ".parts")


def _unfit(why: str) -> UsageError:
    return UsageError(f"--out: {why}", hint="--restart begins anew")
