"""An agent under a rollout: a function or a process that is waited for, and ended.

What adapters run for their trainer. The function is called in a thread of its own, with the rollout and the trainer's
task; it returns when the agent has ended, or returns the agent's process at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Union

from treering_client.rollout import Rollout

Run = Callable[[Rollout, Any], Union["subprocess.Popen[Any]", int, None]]
"""Runs an agent with `rollout.env` (or `base_url` and `secret`) on a task; see the module."""

GRACE_S = 5.0
"""Between asking a process to end, and ending it."""


class Agent:
    """A running agent."""

    def __init__(self, run: Run, rollout: Rollout, task: Any) -> None:
        self._run = run
        self._rollout = rollout
        self._task = task
        self._process: subprocess.Popen[Any] | None = None
        self._code = 0
        self._error: BaseException | None = None
        # A daemon: an agent that never comes back must not keep the trainer's process from ending.
        self._thread = threading.Thread(target=self._work, name=f"agent of {rollout.id}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Agent of {self._rollout.id} {'running' if self._thread.is_alive() else 'ended'}>"

    def wait(self, timeout_s: float | None) -> int:
        """Return the agent's exit code, 0 for a function that returned none.

        Raises `TimeoutError` when it still runs after `timeout_s` seconds, and whatever the function raised.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the agent of rollout {self._rollout.id} still runs after {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        return self._code

    def end(self) -> None:
        """End the agent's process, if it has one, with all in its process group where it leads one.

        A function can't be ended from outside: its next call to the model gets 401 once the rollout is closed.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        _signal(process, signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait(GRACE_S)

    def _work(self) -> None:
        try:
            ended = self._run(self._rollout, self._task)
            if isinstance(ended, subprocess.Popen):
                self._process = ended
                ended = ended.wait()
            self._code = ended or 0
        except BaseException as error:  # noqa: BLE001  carried over to whoever waits
            self._error = error


def _signal(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    try:
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    except ProcessLookupError:
        pass
