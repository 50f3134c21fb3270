"""`treering config`: what is in force, from where, and no secret."""

import json

import pytest

from capture import cli
from capture.settings import TABLE


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words, **environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        code = cli.main(["config", *words])
        return code, *capsys.readouterr()

    return run


def test_each_setting_and_where_it_came_from(run, tmp_path):
    (tmp_path / "treering.toml").write_text('model = "m"\nlisten = "127.0.0.1:1"\n')
    code, out, _ = run("--admin-listen", "127.0.0.1:3", "--json", TREERING_LISTEN="127.0.0.1:2")
    assert code == 0
    found = {one["name"]: (one["value"], one["from"]) for one in json.loads(out)["settings"]}
    assert set(found) == {row.name for row in TABLE}
    assert found["model"] == ("m", "treering.toml")
    assert found["listen"] == ("127.0.0.1:2", "TREERING_LISTEN")
    assert found["admin_listen"] == ("127.0.0.1:3", "--admin-listen")
    assert found["workers"] == (1, "default")


def test_what_was_changed_alone(run):
    _, out, _ = run("--changed", TREERING_MODEL="m")
    assert [line.split() for line in out.splitlines()] == [
        ["setting", "value", "from"],
        ["model", "m", "TREERING_MODEL"],
    ]


def test_secrets_are_masked(run):
    code, out, err = run(
        "--store", "postgresql://me:hunter2@db/t", TREERING_ADMIN_KEY="the-secret-key", TREERING_LOG_LEVEL="debug"
    )
    assert code == 0
    assert "hunter2" not in out + err
    assert "the-secret-key" not in out + err
    assert "me:***@db" in out
    assert [line.split()[1:] for line in out.splitlines() if line.startswith("admin_key ")] == [
        ["***", "TREERING_ADMIN_KEY"]
    ]
