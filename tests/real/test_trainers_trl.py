"""TRL's own functions read our exports: `format=openenv` by way of its turns, `format=trl` by way of its packing."""

from typing import Any

import pytest

from tests.real import library
from tests.real.captured import Captured
from tests.real.handmade import Made, drawn, native

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

FORMATS = ("trl", "openenv")


def check(told: dict[str, Any], sequences: dict[str, Any], form: dict[str, Any]) -> None:
    """Hold what TRL read to the rollout's own rows."""
    expected = drawn(native(sequences))
    assert drawn(told["turns"]) == expected, "the training trace, through TRL's turns and chaining"
    assert drawn(told["packed"]) == expected, "our rows, through TRL's packing and collator"
    assert [row["ids"] for row in told["packed"]] == [row["input_ids"] for row in sequences["sequences"]]
    assert form["tally"] == told["tally"]


def test_it_reads_what_was_made_by_hand(made: list[Made], tmp_path):
    told = library.ask("trl", "read_trl.py", [{name: one.form(name) for name in FORMATS} for one in made], tmp_path)
    for one, found in zip(made, told, strict=True):
        check(found, one.form("native"), one.form("trl"))
    # Turns come conversation by conversation. In order of arrival, agents side by side would be a row a turn.
    beside = [found for one, found in zip(made, told, strict=True) if "subagent" in one.roles]
    assert sum(len(found["turns"]) for found in beside) < sum(found["rows_by_arrival"] for found in beside)


@pytest.mark.parametrize("vllm", ["sharp"], indirect=True)
def test_it_reads_what_was_captured(captured: list[Captured], tmp_path):
    told = library.ask(
        "trl", "read_trl.py", [{name: one.forms[name] for name in FORMATS} for one in captured], tmp_path
    )
    for one, found in zip(captured, told, strict=True):
        check(found, one.forms["native"], one.forms["trl"])
