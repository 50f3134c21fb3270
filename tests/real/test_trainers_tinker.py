"""tinker's own `Datum` takes `format=tinker`: shifted by one, typed, and tiled by its provenance."""

from typing import Any

import pytest

from tests.real import library
from tests.real.captured import Captured
from tests.real.handmade import Made, drawn, native

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

TYPES = {"target_tokens": "int64", "logprobs": "float32", "advantages": "float32"}


def check(rows: list[dict[str, Any]], sequences: dict[str, Any]) -> None:
    """Hold what tinker read to the rollout's own rows."""
    assert drawn(rows) == drawn(native(sequences))
    for row in rows:
        assert row["types"] == TYPES
        assert row["shapes"] == {name: [len(row["ids"]) - 1] for name in TYPES}


def test_it_takes_what_was_made_by_hand(made: list[Made], tmp_path):
    told = library.ask("tinker", "read_tinker.py", [one.form("tinker") for one in made], tmp_path)
    for one, rows in zip(made, told, strict=True):
        check(rows, one.form("native"))


@pytest.mark.parametrize("vllm", ["sharp"], indirect=True)
def test_it_takes_what_was_captured(captured: list[Captured], tmp_path):
    told = library.ask("tinker", "read_tinker.py", [one.forms["tinker"] for one in captured], tmp_path)
    for one, rows in zip(captured, told, strict=True):
        check(rows, one.forms["native"])
        assert [row["runs"] for row in rows] == [len(row["spans"]) for row in one.forms["native"]["sequences"]]
