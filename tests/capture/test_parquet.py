"""Parquet files, read back by pyarrow itself."""

import importlib
import importlib.util
import io
import json

import numpy as np
import pytest

from capture import parquet
from capture.errors import ClientError
from graph.formats.parquet import COLUMNS, refusal, to_json
from graph.sequences import cut
from tests.graph.tape import Tape, assistant, user

pq = importlib.import_module("pyarrow.parquet")


def rows(name="r", reward=None):
    tape = Tape(id=name, reward=reward)
    tape.say([user("Go")], assistant("Gone."))
    graph = tape.graph()
    return to_json(graph, cut(graph))


def test_a_file_has_the_rows_and_its_footer_the_end():
    writer = parquet.Writer()
    told = {"end": True, "rollouts": 3, "refused": 1, "next": None}
    body = writer.add(rows("a", 1.0)) + writer.add([refusal("b", {"code": "ungraded"})]) + writer.add(rows("c"))
    body += writer.end(told)
    file = pq.ParquetFile(io.BytesIO(body))
    assert json.loads(file.metadata.metadata[b"treering"]) == told
    assert file.schema_arrow.names == [column.name for column in COLUMNS]
    table = file.read().to_pylist()
    assert [row["rollout"] for row in table] == ["a", "b", "c"]
    assert [row["reward"] for row in table] == [1.0, None, None]
    first, refused, _ = table
    (made,) = rows("a")
    assert first["input_ids"] == made["input_ids"].tolist()
    assert first["loss_mask"] == made["loss_mask"].tolist()
    # Null where nothing was sampled, and every bit of what was.
    assert [value is None for value in first["logprobs"]] == [not trained for trained in first["loss_mask"]]
    kept = [value for value in first["logprobs"] if value is not None]
    assert np.array(kept, np.float32).tobytes() == made["logprobs"][made["loss_mask"] == 1].tobytes()
    assert first["spans"] == made["spans"]
    assert {name for name, value in refused.items() if value is not None} == {"rollout", "refused"}


def test_row_groups_go_out_as_they_fill(monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 2)
    writer = parquet.Writer()
    sent = [writer.add(rows(str(n))) for n in range(5)]
    # The magic number goes at once; then nothing until a group is full.
    assert [len(piece) > 4 for piece in sent] == [False, True, False, True, False]
    assert "1 rows" in repr(writer)
    file = pq.ParquetFile(io.BytesIO(b"".join(sent) + writer.end({})))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2, 2, 1]


def test_a_file_cut_short_is_no_file():
    body = parquet.whole(rows())
    with pytest.raises(Exception, match=r"(?i)parquet"):
        pq.ParquetFile(io.BytesIO(body[:-20]))


def test_without_pyarrow_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClientError, match="pyarrow") as caught:
        parquet.Writer()
    assert (caught.value.code, caught.value.status) == ("extra_missing", 501)
    assert "treering[parquet]" in caught.value.hint
