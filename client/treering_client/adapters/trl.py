"""TRL's `HarnessRolloutWorker` (trl 1.16, `trl.experimental.async_grpo.openenv_harness`) with any agent.

    worker = HarnessRolloutWorker(harness_session_factory=functools.partial(SessionFactory, client, run, grade), …)
    trainer = AsyncGRPOTrainer(rollout_worker=worker, …)

TRL calls the factory with `sampling=`, what its loss divides by; it is pinned for each rollout. `create` registers a
rollout and starts the agent; TRL then asks for `wait_for_completion`, `fetch_training_trace`, `verify` and `close`, all
from one of its threads. The classes are OpenEnv's (openenv 0.10, `openenv.core.harness`).

What TRL does with errors is part of this: a `ValueError`, `TypeError` or `KeyError` from the trace stops its worker,
anything else leaves one rollout out of its group. So an agent that made no calls is of the second kind, and an engine
that gives no ids is of the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from openenv.core.harness import ResourceSession, ResourceSessionFactory, TrainingTrace, VerifyResult

from treering_client.adapters.agent import Agent, Run
from treering_client.client import Client
from treering_client.rollout import Rollout

Grade = Callable[[Rollout, "list[dict[str, Any]]"], "float | None"]
"""Grades a rollout that has ended, given its last messages; None is "ungraded", which TRL leaves out of the group."""

TIMEOUT_S = 3600.0
"""How long an agent may run; TRL names no limit of its own."""

LEFT_S = 10.0
"""How long calls that run are waited for when the agent has ended, or its time is over."""


class Session(ResourceSession):  # type: ignore[misc]  # openenv 0.10 has no types
    """One rollout, as TRL drives it. The agent owns the loop: it lists and calls its tools by itself."""

    def __init__(self, rollout: Rollout, run: Run, grade: Grade, task: Any, *, timeout_s: float, options: Any) -> None:
        self.rollout = rollout
        self._grade = grade
        self._task = task
        self._timeout_s = timeout_s
        self._options = options
        self._agent = Agent(run, rollout, task)

    def initial_messages(self) -> list[Any]:
        """Return the task as messages; the agent has it already."""
        return self._task if isinstance(self._task, list) else [{"role": "user", "content": str(self._task)}]

    def list_tools(self) -> list[Any]:
        """Return none: the agent's tools are its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raise `NotImplementedError`: the agent calls its tools by itself."""
        raise NotImplementedError(f"the agent calls {name} by itself; give TRL no harness_adapter")

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait for the agent; return its exit code. Raises `TimeoutError`: TRL trains what was captured, flagged."""
        return self._agent.wait(self._timeout_s if timeout_s is None else timeout_s)

    def fetch_training_trace(self) -> TrainingTrace:
        """Close the rollout and return what is to be trained, conversation by conversation.

        Raises `RequestError` for a rollout from which nothing can be trained, `ValueError` for an engine without ids.
        """
        if self.rollout.tier != "train":
            raise ValueError("the engine behind Treering gives text only (tier eval): nothing can be trained from it")
        trace = self.rollout.sequences("openenv", wait_s=LEFT_S, **self._options)
        return TrainingTrace.model_validate_json(json.dumps(trace))

    def verify(self, transcript: list[Any], final_state: Any | None = None) -> VerifyResult:
        """Grade the rollout, and keep the reward beside it."""
        del final_state
        reward = self._grade(self.rollout, transcript)
        self.rollout.reward(reward)
        return VerifyResult(env_reward=reward, done=True)

    def close(self) -> None:
        """End the agent, and the rollout if it is still open."""
        self._agent.end()
        self.rollout.close(wait_s=0.0)


class SessionFactory(ResourceSessionFactory):  # type: ignore[misc]  # openenv 0.10 has no types
    """Makes a session for each of TRL's generations; those of one group share the group's number as their group."""

    def __init__(
        self,
        client: Client,
        run: Run,
        grade: Grade,
        *,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, float] | None = None,
        timeout_s: float = TIMEOUT_S,
        run_name: str = "trl",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are of `Rollout.sequences` (`roles`, `constrained`, …); `run_name` keeps runs' groups apart."""
        self._client = client
        self._run = run
        self._grade = grade
        self._sampling = sampling
        self._limits = limits
        self._timeout_s = timeout_s
        self._run_name = run_name
        self._options = dict(options or {})

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Session:
        """Register a rollout and start the agent on it. TRL's `seed` is its group's number."""
        rollout = self._client.rollout(
            text_of(task),
            id=episode_id,
            group=None if seed is None else f"{self._run_name}-{seed}",
            sampling=self._sampling,
            limits=self._limits,
        )
        return Session(rollout, self._run, self._grade, task, timeout_s=self._timeout_s, options=self._options)


def text_of(task: Any) -> str | None:
    """Return a task's text: itself, or the user messages of a conversation, in which datasets keep it."""
    if isinstance(task, list):
        texts = [each.get("content") for each in task if isinstance(each, Mapping) and each.get("role") == "user"]
        return "\n\n".join(text for text in texts if isinstance(text, str)) or None
    return task if isinstance(task, str) else None
