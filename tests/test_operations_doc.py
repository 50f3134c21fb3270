"""docs/operations.md: its tables are those of the code, its flags and alerts are there."""

import re
from pathlib import Path

from capture import events, metrics
from capture.commands.table import VERBS
from capture.settings import BY_NAME

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "operations.md").read_text()


def table(of):
    return re.search(rf"<!-- {of}: made by .*? -->\n(.*?)<!-- end -->", TEXT, re.DOTALL)[1]


def test_its_tables_are_made_from_the_code():
    assert table("events") == events.render()
    assert table("metrics") == metrics.render()


def test_what_it_names_is_there():
    words = {verb.name for verb in VERBS}
    for verb in re.findall(r"treering ([a-z]+)", TEXT):
        assert verb in words, verb
    flags = {row.flag for row in BY_NAME.values()} | {one.name for verb in VERBS for one in verb.arguments}
    for flag in re.findall(r"`?(--[a-z][a-z-]+)", TEXT):
        assert flag in flags, flag
    alerts = (ROOT / "deploy" / "alerts.yaml").read_text()
    for alert in re.findall(r"`(Treering\w+)`", TEXT):
        assert f"alert: {alert}\n" in alerts, alert


def test_its_links_lead_somewhere():
    for link in re.findall(r"\]\(([a-z]+\.md)", TEXT):
        assert (ROOT / "docs" / link).exists(), link
