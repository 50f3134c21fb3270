"""TRL's rollout loop on rollouts that have ended: what tests/real/trl_step.py gives `AsyncGRPOTrainer` to train on."""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from datasets import Dataset
from openenv.core.harness import TrainingTrace, VerifyResult
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl.experimental.async_grpo.openenv_harness import _HarnessRolloutLoop

# Samples that may wait for the trainer.
QUEUE = 64


class Session:
    """What TRL asks of a session whose agent owns the loop; this one's agent has ended."""

    def __init__(self, rollout: dict[str, Any]) -> None:
        self.rollout = rollout

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        return 0

    def fetch_training_trace(self) -> TrainingTrace:
        return TrainingTrace.model_validate_json(json.dumps(self.rollout["openenv"]))

    def verify(self, transcript: list[Any], final_state: Any = None) -> VerifyResult:
        return VerifyResult(env_reward=self.rollout["reward"], done=True)

    def close(self) -> None:
        pass


class Sessions:
    """The factory: a session for each rollout of the group, again and again.

    One group is all that the step needs; the data loader reads ahead of it, and gets the same again.
    """

    def __init__(self, rollouts: list[dict[str, Any]]) -> None:
        self.left: defaultdict[int, list[dict[str, Any]]] = defaultdict(lambda: list(rollouts))
        self.lock = threading.Lock()

    def __call__(self, *, sampling: dict[str, Any]) -> Sessions:
        assert sampling["temperature"] == 1.0
        return self

    def create(self, prompt: Any, *, seed: int, episode_id: str) -> Session:
        with self.lock:
            return Session(self.left[seed].pop(0))


class Worker:
    """A `RolloutWorkerProtocol` that runs TRL's loop in a thread of this process."""

    def __init__(self, case: dict[str, Any], tokenizer: Any) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue(maxsize=QUEUE)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.failed = threading.Event()
        self.errors: queue.Queue[Any] = queue.Queue()
        n = len(case["rollouts"])
        self.loop = _HarnessRolloutLoop(
            harness_session_factory=Sessions(case["rollouts"]),
            model_name=case["model"],
            dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "Go."}]]}),
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            rollout_buffer=self.rollout_buffer,
            model_version_value=SimpleNamespace(value=0),
            heartbeat_value=SimpleNamespace(value=0.0),
            failed_event=self.failed,
            exception_info_queue=self.errors,
            metrics_queue=self.metrics_queue,
            num_generations=n,
            max_inflight_tasks=n,
            temperature=1.0,
        )
        self.thread = threading.Thread(target=self.loop.run, name="rollouts", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.loop._loop.call_soon_threadsafe(self.loop._stop_event.set)
        self.thread.join(timeout=30)

    def update_model_version(self, model_version: int) -> None:
        pass

    def check_health(self, stale_after_s: float) -> None:
        if self.failed.is_set():
            raise RuntimeError(f"the rollout loop failed: {self.errors.get_nowait()}")


class NoTransfer:
    """A `WeightTransferProtocol` with no engine behind it."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator: Any) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...
