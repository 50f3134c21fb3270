"""pyarrow reads `format=parquet` back: the arrays and the columns of the rows that were captured."""

import importlib
import importlib.util
import io
import json
from typing import Any

import numpy as np
import pytest

from tests.real.captured import VERSION, Captured

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("vllm", ["sharp"], indirect=True),
]


def read(data: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a file's rows and what its footer says."""
    if importlib.util.find_spec("pyarrow") is None:
        pytest.skip("pyarrow: it is not installed: it comes with the extra `parquet`")
    file = importlib.import_module("pyarrow.parquet").ParquetFile(io.BytesIO(data))
    return file.read().to_pylist(), json.loads(file.metadata.metadata[b"treering"])


def test_arrays_come_back_equal(captured: list[Captured]):
    for one in captured:
        rows, told = read(one.parquet)
        wanted = one.forms["native"]["sequences"]
        assert (told["end"], told["rollouts"], told["refused"]) == (True, 1, 0)
        assert [row["input_ids"] for row in rows] == [row["input_ids"] for row in wanted]
        assert [row["loss_mask"] for row in rows] == [row["loss_mask"] for row in wanted]
        for row, other in zip(rows, wanted, strict=True):
            assert as_floats(row["logprobs"]) == as_floats(other["logprobs"]), "null where there is none, not 0.0"
            assert [span["call"] for span in row["spans"]] == [span["call"] for span in other["spans"]]


def test_columns_say_what_is_known(captured: list[Captured]):
    for one in captured:
        rows, _ = read(one.parquet)
        wanted = one.forms["native"]
        assert {row["reward"] for row in rows} == {one.reward}
        assert [row["row"] for row in rows] == list(range(wanted["n_rows"]))
        assert {row["n_rollout_trained_tokens"] for row in rows} == {wanted["n_trained_tokens"]}
        assert sum(row["n_trained_tokens"] for row in rows) == wanted["n_trained_tokens"]
        assert {tuple(row["weight_versions"]) for row in rows} == {(VERSION,)}
        assert {row["temperature"] for row in rows} == {1.0}


def as_floats(values: list[float | None]) -> list[float | None]:
    """Return values as 32-bit floats have them."""
    return [None if value is None else float(np.float32(value)) for value in values]
