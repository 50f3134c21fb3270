"""`treering serve` and `treering scripted`: signals, first lines, exit codes."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from capture.app import Appliance
from capture.commands import serve
from capture.errors import EngineError, UsageError
from capture.settings import Settings

ROOT = Path(__file__).parents[3]


class Server:
    """What is started and closed; a test says how."""

    def __init__(self, start=None, close=None):
        self.said = []
        self._start, self._close = start, close

    async def start(self):
        self.said.append("start")
        if self._start is not None:
            await self._start()

    async def close(self):
        self.said.append("close")
        if self._close is not None:
            await self._close()


async def kill(number):
    os.kill(os.getpid(), number)
    await asyncio.Event().wait()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_closes(number, code):
    server = Server()
    assert await serve.until_signal(server, started=lambda: os.kill(os.getpid(), number), close_s=5) == code
    assert server.said == ["start", "close"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_during_the_start_cancels_it(number, code):
    server = Server(start=lambda: kill(number))
    assert await serve.until_signal(server, started=lambda: pytest.fail("it started"), close_s=5) == code
    assert server.said == ["start"]


async def test_a_start_that_fails_is_raised():
    async def fail():
        raise EngineError("engine_unreachable", "No engine.")

    with pytest.raises(EngineError):
        await serve.until_signal(Server(start=fail), started=lambda: None, close_s=5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_close_that_hangs_is_given_up(caplog):
    server = Server(close=lambda: asyncio.Event().wait())
    stop = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731 -- one line says it
    assert await serve.until_signal(server, started=stop, close_s=0.01) == 0
    assert "given up" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(sampling={"top_pp": 1}), "did you mean top_p?"),
        (Settings(limits={"max_cals": 1}), "did you mean max_calls?"),
    ],
)
def test_defaults_of_rollouts_have_known_names(settings, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        serve.check_defaults(settings)


def test_rules_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="can't read the rules"):
        serve.read_rules(str(tmp_path / "none.toml"))
    (tmp_path / "rules.toml").write_text("[[rule]]\nmatsch = {}\n")
    with pytest.raises(UsageError):
        serve.read_rules(str(tmp_path / "rules.toml"))


class Process:
    """A `treering` of its own, and what it has said so far."""

    def __init__(self, folder, *words):
        self.stderr = (folder / "stderr").open("w+b")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capture.cli", *words], cwd=folder, stderr=self.stderr,
            env=environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def said(self):
        self.stderr.seek(0)
        return self.stderr.read().decode()

    def until(self, pattern):
        """Return the match once it is said."""
        end = time.monotonic() + 60
        while (match := re.search(pattern, self.said(), re.M)) is None:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
        return match

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(*words):
            process = Process(tmp_path, *words)
            stack.callback(process.stderr.close)
            stack.callback(process.process.wait, 60)
            stack.callback(process.process.kill)
            return process

        yield start


def fetch(url, key=None, body=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_an_appliance_from_nothing(start, tmp_path):
    appliance = start("--engine", "scripted", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    agents = appliance.until(r"^agents +(http://127.0.0.1:\d+)/v1$")[1]
    control = appliance.until(r"^control +(http://127.0.0.1:\d+) \(key in treering.db.key\)")[1]
    assert re.search(r"^engine +scripted\S* .*model \S+, tier train$", appliance.said(), re.M)
    key_file = tmp_path / "treering.db.key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    key = key_file.read_text().strip()
    assert key not in appliance.said()
    rollout = fetch(f"{control}/rollouts", key, {"id": "r"})
    said = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert fetch(f"{agents}/v1/chat/completions", rollout["secret"], said)["choices"]
    assert fetch(f"{control}/rollouts/r", key)["n_calls"] == 1
    assert fetch(f"{control}/ready")["ready"] is True
    line = appliance.until(r"^\S+ call (.*)$")[1]
    assert "rollout=r " in line + " "
    assert rollout["secret"] not in appliance.said()
    assert appliance.end(signal.SIGTERM) == 0


def test_the_scripted_engine_alone(start):
    engine = start("scripted", "--listen", "127.0.0.1:0")
    url = engine.until(r"^scripted engine on (http://127.0.0.1:\d+)")[1]
    assert fetch(f"{url}/v1/models")["data"]
    assert engine.end(signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["serve"], 2, "No engine is given"),
        (["--engine", "scripted", "--limits", "max_cals=1"], 2, "did you mean max_calls?"),
        (["--engine", "vllm=http://127.0.0.1:1"], 3, "did not answer"),
        (["--engine", "scripted", "--store", "sqlite:////proc/none/t.db"], 4, ""),
    ],
)
def test_exit_codes(words, code, said, start):
    process = start(*words, *(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]))
    assert process.process.wait(60) == code
    assert said in process.said()
    assert "Traceback" not in process.said()


def test_a_pace_that_cannot_be_meant(start):
    process = start("scripted", "--listen", "127.0.0.1:0", "--pace=nan")
    assert process.process.wait(60) == 2


@pytest.mark.parametrize("chosen", [None, "an-admin-key-of-ours"])
async def test_the_page_is_told_with_the_key_on_a_terminal_alone_and_only_one_that_we_made(tmp_path, chosen):
    given = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "engine": ("scripted",)}
    appliance = Appliance(Settings(**given, store=f"sqlite:///{tmp_path}/treering.db", admin_key=chosen))
    await appliance.start()
    try:
        logged, shown = (serve.first_lines(appliance, keyed=keyed).splitlines()[-1] for keyed in (False, True))
        assert logged == f"page     {appliance.control_url}/"
        assert shown == (logged if chosen else f"{logged}#key={appliance.admin_key}")
    finally:
        await appliance.close()
