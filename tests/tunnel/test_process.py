"""A tunnel's program: listened to, and ended with all that it started."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.processes import descendants, until
from tunnel.errors import TunnelError
from tunnel.process import KEPT, LINE, Program

PYTHON = (sys.executable, "-u", "-c")


def port(line):
    return int(line.removeprefix("port ")) if line.startswith("port ") else None


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert descendants(word="-u -c") == {}


async def started(code, **options):
    return await Program.start("a tunnel", [*PYTHON, code], **options)


async def test_a_line_is_found_on_either_output():
    for stream in ("stdout", "stderr"):
        program = await started(f"import sys, time\nprint('hello\\nport 12', file=sys.{stream})\ntime.sleep(60)")
        try:
            assert await program.find(port, limit_s=20, what="listen") == 12
            assert program.ended is None
            assert program.lines == ("hello", "port 12")
        finally:
            await program.close()
        await program.close()


async def test_a_program_that_ends_is_an_error_with_its_words():
    program = await started("print('no luck'); raise SystemExit(3)")
    try:
        with pytest.raises(TunnelError, match="ended with 3: no luck") as failed:
            await program.find(port, limit_s=20, what="listen")
        assert failed.value.lines == ("no luck",)
        assert program.ended == "a tunnel ended with 3: no luck"
    finally:
        await program.close()


async def test_a_program_that_is_not_there_is_said_to_be_missing():
    program = await Program.start("a tunnel", ["/no/such/program"])
    try:
        with pytest.raises(TunnelError) as failed:
            await program.find(port, limit_s=20, what="listen")
        assert "can't be started: No such file" in failed.value.lines[0]
    finally:
        await program.close()


async def test_a_silent_program_is_waited_for_within_its_time():
    program = await started("import time; print('well'); time.sleep(60)")
    try:
        await until(lambda: program.lines)
        with pytest.raises(TunnelError, match=r"did not listen within 0\.1 s") as failed:
            await program.find(port, limit_s=0.1, what="listen")
        assert failed.value.lines == ("well",)
    finally:
        await program.close()


async def test_what_it_started_ends_with_it():
    code = (
        f"import subprocess, time\nsubprocess.Popen([{sys.executable!r}, '-u', '-c', 'import time; time.sleep(99)'])\n"
    )
    program = await started(code + "print('port 1')\ntime.sleep(99)")
    await program.find(port, limit_s=20, what="listen")
    try:
        await until(lambda: len(descendants(word="time.sleep(99)")) >= 3)
    finally:
        await program.close()
    assert descendants(word="time.sleep(99)") == {}


async def test_one_that_ignores_being_asked_is_ended_all_the_same(monkeypatch):
    monkeypatch.setattr("tunnel.process.GRACE_S", 0.2)
    program = await started(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('port 1')\ntime.sleep(99)"
    )
    await program.find(port, limit_s=20, what="listen")
    await program.close()


async def test_secrets_colours_and_length_are_taken_out_of_lines():
    program = await started(
        "print('\\x1b[31mtoken s3cret\\x1b[0m'); print('x' * 5000); print('port 1')", hidden=["s3cret"]
    )
    try:
        await program.find(port, limit_s=20, what="listen")
        assert program.lines[0] == "token ***"
        assert program.lines[1] == "x" * LINE
    finally:
        await program.close()


async def test_a_program_that_prints_much_never_stands_still():
    program = await started(
        "import sys\nfor n in range(20000): print('line', n, 'y' * 50)\n"
        "sys.stdout.write('z' * 300000 + '\\n')\nprint('port 1')"
    )
    try:
        assert await program.find(port, limit_s=60, what="listen") == 1
        assert len(program.lines) == KEPT
    finally:
        await program.close()


async def test_a_cancelled_search_leaves_the_program_to_be_closed():
    program = await started("import time; time.sleep(60)")
    searching = asyncio.get_running_loop().create_task(program.find(port, limit_s=60, what="listen"))
    await asyncio.sleep(0)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    await program.close()


async def test_no_setting_of_ours_goes_to_a_program_and_what_is_for_it_does(monkeypatch):
    monkeypatch.setenv("TREERING_ADMIN_KEY", "not-for-ssh")
    monkeypatch.setenv("TREERING_FRPC", "/opt/frpc")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    program = await started(
        "import os; print('env', [os.environ.get(n) for n in ('TREERING_ADMIN_KEY', 'TREERING_FRPC', 'SSH_AUTH_SOCK')])"
    )
    try:
        line = await program.find(lambda line: line if line.startswith("env ") else None, limit_s=20, what="say")
        assert line == "env [None, '/opt/frpc', '/run/agent']"
    finally:
        await program.close()
