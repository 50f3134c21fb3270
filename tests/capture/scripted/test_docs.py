"""docs/scripted.md says what there is: its example loads, and its tables name every key."""

import re
import tomllib
from pathlib import Path

from capture.scripted import parse_rules
from capture.scripted.rules import Failure, Match, Reply
from capture.scripted.tokeniser import Tokeniser

PAGE = (Path(__file__).parents[3] / "docs" / "scripted.md").read_text()


def table(heading: str) -> list[str]:
    """Give the keys of the table under a heading."""
    section = PAGE.split(f"### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.M)


def test_the_example_loads():
    example = PAGE.split("```toml\n")[1].split("```")[0]
    rules = parse_rules(tomllib.loads(example)).rules
    assert [rule.reply.failure is None for rule in rules] == [True, True, False]


def test_the_tables_name_every_key():
    assert table("Conditions") == list(Match.__struct_fields__)
    assert table("Replies") == list(Reply.__struct_fields__)
    # These two go with `status`.
    assert table("Failures") == [key for key in Failure.__struct_fields__ if key not in ("message", "retry_after")]


def test_the_size_of_the_vocabulary():
    assert f"has {Tokeniser().size} tokens" in PAGE
