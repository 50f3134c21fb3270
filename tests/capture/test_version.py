"""The version: one file says it, and all who say it say the same."""

import json
import tomllib
from importlib import metadata
from pathlib import Path

from capture import cli, version
from capture.metrics import Metrics
from capture.openapi import document
from treering_client import version as of_client

ROOT = Path(__file__).parents[2]
RELEASE = (ROOT / "client" / "VERSION").read_text().strip()


def test_all_who_say_it_say_the_same(capsys):
    own = metadata.version("treering")
    assert own == RELEASE
    assert version.version() == own
    assert cli.main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["treering"] == own
    assert own in document()["info"]["description"]
    assert Metrics()


def test_nothing_that_builds_says_another():
    # What a distribution bears when it is built is asked of its wheel, in tests/real/test_packages.py.
    for place in (ROOT, ROOT / "client"):
        project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
        assert project.get("version", RELEASE) == RELEASE


def test_where_nothing_is_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert version.version() == version.UNKNOWN
    assert of_client.version() == of_client.UNKNOWN
