"""`treering doctor`, printed."""

import json

import pytest

from capture import cli
from capture.checks import Check
from capture.commands import doctor as verb


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_a_line_a_check_and_what_to_do_below(level, code, monkeypatch, capsys):
    async def examine(settings):
        return [Check(name="store", level=level, message="m\x1b", todo="" if level == "ok" else "do")]

    monkeypatch.setattr(verb, "examine", examine)
    assert cli.main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{level:<5} store: m\\x1b"
    assert lines[1:] == ([] if level == "ok" else ["      do"])
    assert cli.main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["checks"][0]["level"] == level


def test_for_real(capsys):
    words = ["doctor", "--engine", "scripted", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    cli.main(words)
    out = capsys.readouterr().out
    assert "ok    engine: scripted" in out
