"""Harbor's own models and validator take `format=harbor` and `format=atif`."""

from typing import Any

import pytest

from tests.real import library
from tests.real.captured import Captured
from tests.real.handmade import Made, drawn, native

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

FORMATS = ("harbor", "atif")


def check(found: dict[str, Any], sequences: dict[str, Any]) -> None:
    """Hold what Harbor read to the rollout's own rows."""
    assert (found["valid"], found["errors"]) == (True, [])
    expected = drawn(native(sequences))
    assert drawn(row for chat in found["chats"] for row in chat) == expected
    assert drawn(found["steps"]) == expected
    # What Harbor does not check: references lead somewhere, and everything embedded is referred to.
    for name, references in found["named"].items():
        assert sorted(references) == sorted(found["embedded"][name])
    main = drawn(native({"sequences": [row for row in sequences["sequences"] if row["role"] == "main"]}))
    assert drawn(found["chats"][0]) == main, "the first detail is the agent's own"


def test_it_takes_what_was_made_by_hand(made: list[Made], tmp_path):
    case = [{name: one.form(name) for name in FORMATS} for one in made]
    told = library.ask("harbor", "read_harbor.py", case, tmp_path)
    for one, found in zip(made, told, strict=True):
        check(found, one.form("native"))
    assert any(len(found["named"]) > 1 for found in told), "a trajectory with subagents"


@pytest.mark.parametrize("vllm", ["sharp"], indirect=True)
def test_it_takes_what_was_captured(captured: list[Captured], tmp_path):
    case = [{name: one.forms[name] for name in FORMATS} for one in captured]
    for one, found in zip(captured, library.ask("harbor", "read_harbor.py", case, tmp_path), strict=True):
        check(found, one.forms["native"])
        assert len(found["chats"]) == 1
