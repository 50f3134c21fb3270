"""Running an agent for a trainer: a function, or a process that is waited for and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from treering_client.adapters.agent import Agent

ROLLOUT = SimpleNamespace(id="r1", env={"OPENAI_API_KEY": "k"})


def test_a_function_is_run_with_the_rollout_and_the_task():
    seen = []
    agent = Agent(lambda rollout, task: seen.append((rollout, task)), ROLLOUT, {"text": "do"})
    assert agent.wait(10) == 0
    assert seen == [(ROLLOUT, {"text": "do"})]


def test_a_process_gives_its_exit_code():
    def run(rollout, task):
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], env={**os.environ, **rollout.env})

    assert Agent(run, ROLLOUT, None).wait(20) == 3


def test_an_agent_that_takes_too_long_is_a_timeout():
    release = threading.Event()
    agent = Agent(lambda rollout, task: release.wait(20) and None, ROLLOUT, None)
    with pytest.raises(TimeoutError, match="r1"):
        agent.wait(0.05)
    release.set()
    assert agent.wait(10) == 0


def test_what_an_agent_raises_reaches_who_waits():
    def run(rollout, task):
        raise RuntimeError("no opencode here")

    with pytest.raises(RuntimeError, match="no opencode here"):
        Agent(run, ROLLOUT, None).wait(10)


def test_ending_an_agent_ends_its_whole_process_group():
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    started = []

    def run(rollout, task):
        argv = [sys.executable, "-c", script]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append((process, int(process.stdout.readline())))
        ready.set()
        return process

    ready = threading.Event()
    agent = Agent(run, ROLLOUT, None)
    assert ready.wait(20)
    process, child = started[0]
    while agent._process is None:
        pass
    agent.end()
    assert agent.wait(20) != 0
    process.stdout.close()
    # The child is not ours to wait for. It is gone, or a zombie that its new parent has not looked at yet, once it has
    # had a turn to die in.
    state, until = "", time.monotonic() + 20
    while " Z " not in state and time.monotonic() < until:
        try:
            state = Path(f"/proc/{child}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            state = " Z "
    assert " Z " in state
    agent.end()
