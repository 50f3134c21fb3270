"""What somebody does wrong at a shell: one sentence says what, one what to do, and the exit code is its kind's."""

import asyncio
import contextlib
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import apsw
import pytest

from capture import cli
from capture.commands.table import EXIT_CODES, VERBS
from capture.store.base import FORMAT_VERSION
from capture.store.migrations import APPLICATION_ID
from tests.plane import KEY, control_plane

USAGE, REFUSED, ENGINE, STORE = 2, 1, 3, 4


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder, with some files that are no good."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.json").write_text('{"id": ')
    (tmp_path / "no.toml").write_text("engine = [")
    (tmp_path / "empty.key").write_text("\n")
    (tmp_path / "no.pem").write_text("no certificate")
    (tmp_path / "no.db").write_bytes(b"no database at all" * 200)
    (tmp_path / "rules.toml").write_text("[[rule]]\nanswer = 1\n")
    newer = apsw.Connection(str(tmp_path / "newer.db"))
    newer.pragma("application_id", APPLICATION_ID)
    newer.pragma("user_version", FORMAT_VERSION + 1)
    newer.close()
    return tmp_path


class Silent(BaseHTTPRequestHandler):
    """Somebody else's server."""

    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 -- the name that http.server calls

    def log_message(self, *args):
        pass


@pytest.fixture
def stranger():
    server = HTTPServer(("127.0.0.1", 0), Silent)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def complaint(capsys):
    """What was said: a sentence and what to do, on stderr alone, without a trace of how it came about."""
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    said = re.fullmatch(r"treering: (\S.*)\n  (\S.*)\n", err)
    assert said, err
    return said[1], said[2]


def named(given):
    return " ".join(given) if isinstance(given, list) else ""


NOBODY = "http://127.0.0.1:1"
# The words, the exit code, what the sentence says, and what the next one says to do.
MISTAKES = [
    # Verbs and flags.
    (["rolout", "list"], USAGE, "did you mean rollout?", "treering --help"),
    (["rollout"], USAGE, "required: VERB", "treering rollout --help"),
    (["rollout", "list", "--stat", "open"], USAGE, "did you mean --state?", "treering rollout list --help"),
    (["completion", "tcsh"], USAGE, "shell: 'tcsh' is none of bash, zsh, fish", "treering completion --help"),
    (["agents", "aider"], USAGE, "is none of opencode", "treering agents --help"),
    (["rollout", "new", "--n", "many"], USAGE, "invalid whole number", "--help"),
    # A control plane that isn't there, and one that is none.
    (["rollout", "list", "--url", NOBODY], USAGE, "no answer from http://127.0.0.1:1: ", "is `treering serve` running"),
    (["tail", "--url", NOBODY], USAGE, "no answer from", "is `treering serve` running"),
    (["export", "--url", NOBODY], USAGE, "no answer from", "is `treering serve` running"),
    (["verify", "r", "--url", NOBODY], USAGE, "no answer from", "is `treering serve` running"),
    (["drift", "r", "--url", NOBODY], USAGE, "no answer from", "is `treering serve` running"),
    (["replay", "r", "--url", NOBODY], USAGE, "no answer from", "is `treering serve` running"),
    (["agents", "pi", "--rollout", "r", "--url", NOBODY], USAGE, "no answer from", "is `treering serve` running"),
    (["rollout", "list", "--url", "http://STRANGER"], USAGE, "not as Treering's control plane", "another program"),
    (["rollout", "list", "--url", "127.0.0.1:8401"], USAGE, "is no URL", "write http://HOST:PORT"),
    # Files that aren't there, can't be read, or hold something else.
    (["rollout", "new", "--body", "none.json"], USAGE, "can't read none.json: No such file", "name a file"),
    (["rollout", "new", "--body", "no.json"], USAGE, "no.json holds no JSON", "docs/api.md"),
    (["rollout", "list", "--admin-key-file", "none.key"], USAGE, "can't read the key in none.key", "name a file"),
    (["rollout", "list", "--admin-key-file", "empty.key"], USAGE, "empty.key holds no key", "one line"),
    (["serve", "--engine", "scripted=none.toml"], USAGE, "can't read the rules in none.toml", "name a file"),
    (["serve", "--engine", "scripted=no.toml"], USAGE, "no.toml", "docs/scripted.md"),
    (["serve", "--engine", "scripted=rules.toml"], USAGE, "rules.toml", "docs/scripted.md"),
    (["serve", "--engine", "scripted", "--tls-cert", "none.pem"], USAGE, "can't read none.pem", "PEM"),
    (["serve", "--engine", "scripted", "--tls-cert", "no.pem"], USAGE, "these can't be used", "PEM"),
    (["replay", "--from", "none", "--group", "g"], USAGE, "there is no folder none", "--save"),
    (["export", "--out", "none/x.jsonl", "--url", NOBODY], USAGE, "can't write none/x.jsonl.part", "name a file"),
    (["rollout", "new", "--label", "train"], USAGE, "--label: 'train' is no KEY=VALUE", "split=train"),
    (["rollout", "reward", "r", "good"], USAGE, "'good' is neither a number nor null", "0.5"),
    # Settings.
    (["serve"], USAGE, "No engine is given", "--engine"),
    (["serve", "--engine", "vlm=http://h"], USAGE, "did you mean vllm?", "the kinds are"),
    (["serve", "--engine", "scripted", "--limits", "max_call=1"], USAGE, "did you mean max_calls?", "known: "),
    (["serve", "--engine", "scripted", "--limits", "max_calls=x"], USAGE, "--limits: max_calls", "docs/limits.md"),
    (["serve", "--engine", "scripted", "--workers", "0"], USAGE, "--workers: 0 is less than 1", "Processes"),
    (["serve", "--engine", "scripted", "--listen", "8400"], USAGE, "'8400' is no address", "HOST:PORT"),
    (["serve", "--engine", "scripted", "--listen", "STRANGER"], USAGE, "an't listen on", "another port"),
    (["scripted", "--listen", "STRANGER"], USAGE, "can't listen on", "port 0"),
    (["config", "--store", "treering.db"], USAGE, "is no store", "sqlite:///PATH"),
    # Engines.
    (["serve", "--engine", f"vllm={NOBODY}"], ENGINE, "did not answer", "it runs"),
    (["serve", "--engine", "vllm=http://STRANGER"], ENGINE, "answered GET /v1/models with 404", "its root?"),
    # Stores.
    (["serve", "--engine", "scripted", "--store", "sqlite:///none/x.db"], STORE, "can't be opened", "folder there"),
    (["serve", "--engine", "scripted", "--store", "sqlite:///newer.db"], STORE, "newer", "pdate"),
    (["serve", "--engine", "scripted", "--store", "sqlite:///no.db"], STORE, "no.db", ""),
    (["migrate", "--store", "sqlite:///none.db"], STORE, "there is no store at none.db", "--store"),
    (["backup", "--out", "b.db", "--store", "sqlite:///none.db"], STORE, "there is no store", "--store"),
    (["doctor", "--store", "sqlite:///none.db"], STORE, "there is no store", "--store"),
    (["backup"], USAGE, "needs a file", "--out FILE"),
]


@pytest.mark.parametrize(("words", "code", "sentence", "todo"), MISTAKES, ids=named)
def test_a_mistake_is_a_sentence_and_what_to_do(words, code, sentence, todo, elsewhere, stranger, capsys):
    free = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    words = [word.replace("STRANGER", stranger) for word in words]
    if words[:2] == ["serve", "--engine"] and "--listen" not in words:
        words += free
    elif words[:2] == ["serve", "--engine"]:
        words += free[2:]
    assert code in dict(EXIT_CODES)
    assert cli.main(words) == code
    said, to_do = complaint(capsys)
    assert sentence in said
    assert todo in to_do


@pytest.mark.parametrize(
    ("environ", "sentence", "todo"),
    [
        ({"TREERING_CONFIG": "none.toml"}, "there is no file none.toml", "TREERING_CONFIG"),
        ({"TREERING_CONFIG": "no.toml"}, "no.toml is no TOML", "a line a setting"),
        ({"TREERING_ENGIN": "scripted"}, "unknown variable TREERING_ENGIN; did you mean TREERING_ENGINE?", "unset"),
        ({"TREERING_WORKERS": "two"}, "TREERING_WORKERS: expected a whole number, got 'two'", "Processes"),
        ({"TREERING_RELAY_ABORT": "maybe"}, "TREERING_RELAY_ABORT: 'maybe' is neither true nor false", "true or"),
        ({"TREERING_ADMIN_KEY": "two words"}, "TREERING_ADMIN_KEY is no key", "without spaces"),
    ],
)
def test_a_mistake_in_the_environment(environ, sentence, todo, elsewhere, monkeypatch, capsys):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["config"]) == USAGE
    said, to_do = complaint(capsys)
    assert sentence in said
    assert todo in to_do


@pytest.mark.parametrize(
    ("words", "key", "code", "sentence", "todo"),
    [
        (["rollout", "list"], "not-the-key-of-this", USAGE, "The admin key is wrong.", "--admin-key-file"),
        (["rollout", "list"], None, USAGE, "shows no admin key", "--admin-key-file"),
        (["tail"], "not-the-key-of-this", USAGE, "The admin key is wrong.", "--admin-key-file"),
        (["export"], "not-the-key-of-this", USAGE, "The admin key is wrong.", "--admin-key-file"),
        (["rollout", "graph", "none"], KEY, REFUSED, "There is no rollout 'none'", "lists them"),
        (["replay", "none"], KEY, REFUSED, "There is no rollout 'none'", "lists them"),
        (["drift", "none"], KEY, REFUSED, "There is no rollout 'none'", "lists them"),
        (["verify", "none"], KEY, REFUSED, "There is no rollout 'none'", "lists them"),
        (["rollout", "list", "--limit", "0"], KEY, REFUSED, "limit", ""),
        (["rollout", "sequences", "r"], KEY, REFUSED, "is open", "Close it first"),
        (["rollout", "new", "--id", "r", "--group", "g"], KEY, REFUSED, "r", ""),
        (["rollout", "reward", "r", "1.0"], KEY, REFUSED, "no calls", "force"),
        (["export"], KEY, REFUSED, None, None),
    ],
    ids=named,
)
async def test_what_the_control_plane_refuses(words, key, code, sentence, todo, elsewhere, monkeypatch, capsys):
    async with control_plane(elsewhere) as plane:
        await plane.rollouts.register({"id": "r"}, key=None, digest="r")
        if key is not None:
            monkeypatch.setenv("TREERING_ADMIN_KEY", key)
        assert await asyncio.to_thread(cli.main, [*words, "--url", plane.url]) == code
    if sentence is None:
        # Each rollout's reason stands in the export itself.
        assert "no rollout could be exported" in capsys.readouterr().err
        return
    said, to_do = complaint(capsys)
    assert sentence in said
    assert todo in to_do


NO_JSON = {
    "serve": "it prints no data; its log is JSON with --log-format json",
    "scripted": "it prints no data",
    "rollout delete": "there is nothing left to print",
    "export": "what it prints is JSON, or the format that was asked for",
    "completion": "what it prints is a program for a shell",
}
"""Verbs without --json, and why."""


def test_every_verb_that_prints_data_prints_it_as_json():
    without = {verb.name for verb in VERBS if "--json" not in {argument.name for argument in verb.arguments}}
    assert without == set(NO_JSON)


def test_an_address_that_takes_connections_and_says_nothing(monkeypatch, capsys):
    monkeypatch.setattr("capture.client.TIMEOUT_S", 0.05)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert cli.main(["rollout", "list", "--url", url]) == USAGE
    said, to_do = complaint(capsys)
    assert said == f"no answer from {url}: timed out"
    assert "is `treering serve` running" in to_do
