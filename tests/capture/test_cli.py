"""The command line: words in, a verb and its settings out; errors to exit codes; nothing opened by --help."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capture import cli
from capture.commands.table import EXIT_CODES, FAMILIES, VERBS
from capture.errors import CaptureError, ClientError, EngineError, StoreError, UsageError
from capture.settings import TABLE

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# Whatever opens a file, a socket or a process, or starts a loop; and what takes long to load.
HEAVY = (
    "aiohttp", "apsw", "asyncio", "asyncpg", "http.client", "multiprocessing", "numpy", "prometheus_client", "pyarrow",
    "selectors", "socket", "sqlite3", "ssl", "subprocess", "urllib.request", "uvloop",
)  # fmt: skip


def opened(words):
    """Run each command line in a fresh process of its own; return what of HEAVY it had loaded, and what it printed."""
    code = (
        "import sys\nfrom capture import cli\n"
        f"for line in {words!r}:\n"
        "    try:\n        rc = cli.main(line)\n    except SystemExit as done:\n        rc = done.code\n"
        "    assert rc == 0, line\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.strip(), done.stdout


def test_help_opens_nothing_of_any_verb():
    lines = [["--help"], *(["rollout", "-h"], ["agents", "-h"]), *([*verb.name.split(), "--help"] for verb in VERBS)]
    loaded, said = opened(lines)
    assert loaded == "[]"
    assert said.count("usage: treering") == len(lines)


def test_completion_and_version_open_nothing():
    loaded, said = opened([["completion", shell] for shell in ("bash", "zsh", "fish")])
    assert loaded == "[]"
    assert "treering" in said
    # Python's own reader of metadata loads what would parse a mail's addresses.
    loaded, said = opened([["version"], ["--version"]])
    assert set(re.findall(r"'(\S+)'", loaded)) <= {"socket", "selectors"}
    assert said.startswith("treering ")


def read(*words, environ=None):
    return cli.read(words, environ or {})


def test_serve_is_the_default_verb():
    assert read()[0].name == "serve"
    verb, given = read("--engine", "scripted", "--listen=127.0.0.1:0")
    assert verb.name == "serve"
    assert given.settings.engine == ("scripted",)
    assert given.settings.listen == "127.0.0.1:0"


def test_a_verb_of_two_words_with_arguments_and_settings():
    verb, given = read("rollout", "new", "--label", "a=1", "--label", "b=2", "--n", "8", "--store", "sqlite:///x.db")
    assert verb.name == "rollout new"
    assert given.arguments["label"] == ["a=1", "b=2"]
    assert given.arguments["n"] == 8
    assert given.arguments["json"] is False
    assert given.settings.store == "sqlite:///x.db"


def test_a_switch_may_be_given_a_value():
    assert read("--relay-abort")[1].settings.relay_abort is True
    assert read("--relay-abort=false", environ={"TREERING_RELAY_ABORT": "1"})[1].settings.relay_abort is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engin", "scripted"], "unknown flag --engin; did you mean --engine?"),
        (["rollout", "list", "--stat=open"], "unknown flag --stat; did you mean --state?"),
        (["rollout", "lst"], "did you mean list?"),
        (["servee"], "did you mean serve?"),
        (["rollout", "show"], "required: ID"),
        (["rollout", "show", "a", "b"], "unexpected 'b'"),
        (["rollout", "list", "--state", "opened"], "'opened' is none of open, closed; did you mean open?"),
        (["rollout", "new", "--n", "x"], "invalid whole number value: 'x'"),
        (["--engine"], "expected one argument"),
        (["--admin-key", "hunter2"], "unknown flag --admin-key; did you mean --admin-key-file?"),
        (["--durability", "power2"], "did you mean power?"),
    ],
)
def test_a_mistake_names_its_nearest_neighbour(words, said, capsys):
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "hunter2" not in err


def test_flags_are_never_abbreviated(capsys):
    assert cli.main(["--list", "127.0.0.1:0"]) == 2
    assert "did you mean --listen?" in capsys.readouterr().err


def test_version(capsys):
    assert cli.main(["version", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"treering", "python"}


def test_version_is_told_whatever_else_is_wrong(monkeypatch, capsys):
    monkeypatch.setenv("TREERING_FOO", "1")
    assert cli.main(["version"]) == 0
    assert cli.main(["rollout", "list"]) == 2
    assert "TREERING_FOO" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("m"), 2),
        (EngineError("engine_unreachable", "m"), 3),
        (StoreError("store_newer", "m"), 4),
        (ClientError("rollout_not_found", "m", status=404), 1),
        (CaptureError("internal", "m"), 1),
    ],
)
def test_exit_codes(error, code, monkeypatch, capsys):
    def run(given):
        raise error

    monkeypatch.setattr(cli, "version", run)
    assert cli.main(["version"]) == code
    assert capsys.readouterr().err == "treering: m\n" + (f"  {error.hint}\n" if error.hint else "")
    assert code in dict(EXIT_CODES)


def test_interrupted(monkeypatch):
    def run(given):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "version", run)
    assert cli.main(["version"]) == 130


def test_the_table_of_verbs_is_whole():
    names = [verb.name for verb in VERBS]
    assert len(set(names)) == len(names)
    assert {name.partition(" ")[0] for name in names if " " in name} == set(FAMILIES)
    for verb in VERBS:
        assert verb.help.endswith("."), verb.name
        module, _, function = verb.run.partition(":")
        source = (ROOT / (module.replace(".", "/") + ".py")).read_text()
        assert re.search(rf"^def {function}\(", source, re.M), verb.name
        for argument in verb.arguments:
            assert argument.help.endswith((".", "}.", '".')), (verb.name, argument.name)
        # A setting and an argument of one name would be one flag.
        flags = [argument.name for argument in verb.arguments]
        assert not set(flags) & {row.flag for row in TABLE if row.name in verb.settings}, verb.name
