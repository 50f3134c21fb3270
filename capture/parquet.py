"""Rows as a Parquet file, written as they come. The one file that knows pyarrow (the extra `parquet`).

What the columns are is `graph.formats.parquet`'s to say. A rollout that can't be exported is a row too: `refused` says
why, and what only rows have is null.

A file is whole or unreadable: its footer is written last, and holds under the key `treering` what the last line of
JSON would be (`{"end": true, "rollouts", "refused", "next"}`).

Costs: one row group is held at a time; the footer grows by some kilobytes for each.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from capture.errors import ClientError
from graph.formats.parquet import COLUMNS

ROW_GROUP_TOKENS = 1_000_000
"""Ids in a row group: with masks and logprobs some 10 MB before compression, and several times that in the making."""

ROW_GROUP_ROWS = 2_000
"""Short rows: a footer's entry costs as much as some of them."""

JOINED_BYTES = 64 * 2**20
"""Of a row group that is put together from several."""

KEY = b"treering"
"""Of the footer's metadata."""


class Writer:
    """A Parquet file in the making: rows in, bytes out. Blocking work; call it in a thread."""

    def __init__(self) -> None:
        """Raise `ClientError` 501 `extra_missing` where pyarrow isn't installed."""
        needed()
        self._pa: Any = importlib.import_module("pyarrow")
        self._schema = self._schema_of()
        self._sink = _Sink()
        self._file = importlib.import_module("pyarrow.parquet").ParquetWriter(
            self._pa.PythonFile(self._sink, mode="w"), self._schema, compression="zstd"
        )
        self._waiting: list[Mapping[str, Any]] = []
        self._tokens = 0

    def __repr__(self) -> str:
        return f"<Writer: {len(self._waiting)} rows of {self._tokens} ids waiting>"

    def add(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        """Take in rows; return the bytes that are ready, often none."""
        self._waiting += rows
        self._tokens += sum(0 if row["input_ids"] is None else len(row["input_ids"]) for row in rows)
        if self._tokens >= ROW_GROUP_TOKENS or len(self._waiting) >= ROW_GROUP_ROWS:
            self._flush()
        return self._sink.take()

    def end(self, told: Mapping[str, Any]) -> bytes:
        """Return the rest of the file; its footer says `told`."""
        self._flush()
        self._file.add_key_value_metadata({KEY: json.dumps(told).encode()})
        self._file.close()
        return self._sink.take()

    def _flush(self) -> None:
        if self._waiting:
            columns = [self._column(column.name, column.type) for column in COLUMNS]
            self._file.write_batch(self._pa.record_batch(columns, schema=self._schema))
            self._waiting, self._tokens = [], 0

    def _column(self, name: str, kind: str) -> Any:
        """Return a column of what waits. Lists of numbers go in as one array with offsets: no number is a Python's."""
        values = [row[name] for row in self._waiting]
        if kind in _NUMBERS:
            number = _NUMBERS[kind]
            arrays = [np.asarray(() if value is None else value, dtype=number) for value in values]
            offsets = self._pa.array(np.cumsum([0, *map(len, arrays)]), self._pa.int32())
            flat = np.concatenate(arrays)
            return self._pa.ListArray.from_arrays(
                offsets,
                # NaN is no number here, but none.
                self._pa.array(flat, from_pandas=True),
                mask=self._pa.array([value is None for value in values]),
            )
        return self._pa.array(values, self._schema.field(name).type)

    def _schema_of(self) -> Any:
        pa = self._pa
        types = {
            "string": pa.string(),
            "int32": pa.int32(),
            "int64": pa.int64(),
            "float64": pa.float64(),
            "bool": pa.bool_(),
            "list<int32>": pa.list_(pa.int32()),
            "list<uint8>": pa.list_(pa.uint8()),
            "list<float32>": pa.list_(pa.float32()),
            "list<string>": pa.list_(pa.string()),
            "spans": pa.list_(
                pa.struct(
                    {
                        "call": pa.int32(),
                        "kind": pa.string(),
                        "start": pa.int32(),
                        "end": pa.int32(),
                        "weights": pa.string(),
                    }
                )
            ),
        }
        return pa.schema([pa.field(column.name, types[column.type]) for column in COLUMNS])


def needed() -> None:
    """Raise `ClientError` 501 `extra_missing` where pyarrow isn't installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ClientError(
            "extra_missing",
            "Parquet needs pyarrow, which isn't installed here.",
            hint="Install Treering with the extra `parquet`: pip install 'treering[parquet]'.",
            status=501,
        )


def footer(path: Path) -> dict[str, Any] | None:
    """Return what a file's footer says (see `Writer.end`); None for a file that was cut."""
    arrow, files = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        with files.ParquetFile(path) as file:
            told: dict[str, Any] = json.loads(file.metadata.metadata[KEY])
            return told
    except arrow.ArrowInvalid:
        return None


def join(paths: Sequence[Path], out: BinaryIO, told: Mapping[str, Any]) -> None:
    """Write the rows of several files as one whose footer says `told`; a few row groups are held at a time."""
    arrow, files = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    schema = files.read_schema(paths[0]).remove_metadata()
    with files.ParquetWriter(out, schema, compression="zstd") as writer:
        waiting: list[Any] = []
        for path in paths:
            with files.ParquetFile(path) as file:
                for n in range(file.num_row_groups):
                    waiting.append(file.read_row_group(n))
                    if sum(table.nbytes for table in waiting) >= JOINED_BYTES:
                        writer.write_table(arrow.concat_tables(waiting))
                        waiting = []
        if waiting:
            writer.write_table(arrow.concat_tables(waiting))
        writer.add_key_value_metadata({KEY: json.dumps(told).encode()})


def whole(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the file of one rollout's rows."""
    writer = Writer()
    begun = writer.add(rows)
    return begun + writer.end({"end": True, "rollouts": 1, "refused": 0, "next": None})


_NUMBERS: dict[str, Any] = {"list<int32>": np.int32, "list<uint8>": np.uint8, "list<float32>": np.float32}


class _Sink(io.RawIOBase):
    """What pyarrow writes to: holds the bytes until they are taken, and knows how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[bytes] = []
        self._place = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def write(self, data: Any) -> int:
        self._held.append(bytes(data))
        self._place += len(self._held[-1])
        return len(self._held[-1])

    def take(self) -> bytes:
        """Return what was written since the last time."""
        held = b"".join(self._held)
        self._held.clear()
        return held
