"""The version: one place says it."""

import json
from importlib import metadata

from capture import cli, version
from capture.metrics import Metrics
from capture.openapi import document


def test_all_who_say_it_say_the_same(capsys):
    own = metadata.version("treering")
    assert version.version() == own
    assert cli.main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["treering"] == own
    assert own in document()["info"]["description"]
    assert Metrics()


def test_where_nothing_is_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert version.version() == version.UNKNOWN
