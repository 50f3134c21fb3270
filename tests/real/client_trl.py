"""Let TRL's own harness loop run our sessions: `python tests/real/client_trl.py CASE REPORT`, in .real/trl.

CASE has `client` (a folder), `url` and `key`. The loop is TRL's `_HarnessRolloutLoop`, and what is called is its
`_run_session`, as its pool does for each generation; only what starts its engine client and its queue is left out.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import functools
import json
import sys
import threading
from pathlib import Path
from typing import Any

case = json.loads(Path(sys.argv[1]).read_text())
sys.path[:0] = [case["client"], str(Path(__file__).parent)]

import accelerate  # noqa: E402 - found by the line above
import client_agent  # noqa: E402 - found by the line above
from openenv.core.harness import ResourceSessionFactory, TrainableSession  # noqa: E402 - as above
from openenv.core.harness.capture.upstream import training_sampling  # noqa: E402 - as above
from trl.experimental.async_grpo.openenv_harness import (  # noqa: E402 - as above
    CaptureContractError,
    _HarnessRolloutLoop,
)

from treering_client import Client  # noqa: E402 - as above
from treering_client.adapters.trl import SessionFactory  # noqa: E402 - as above

CONVERSATION = [{"role": "user", "content": "Say something."}]


def loop(factory: Any) -> Any:
    """TRL's loop with what `_run_session` uses, made as its `__init__` makes it."""
    made = object.__new__(_HarnessRolloutLoop)
    made._adapter = None
    made._factory = factory(sampling=training_sampling({"temperature": 1.0, "top_p": 1.0}))
    made._stop_event = threading.Event()
    made._live_sessions = set()
    made._rollout_reward_fn = None
    made._fork_threshold_tokens = 0
    return made


def main() -> None:
    """Run a session that goes well, and each that doesn't."""
    # What TRL logs goes through it, and a trainer has one.
    accelerate.PartialState(cpu=True)
    client = Client(case["url"], case["key"], timeout_s=60)
    graded = []

    def talk(rollout: Any, task: Any) -> None:
        client_agent.converse(rollout.base_url, rollout.secret, 3)

    def grade(rollout: Any, messages: list[dict[str, Any]]) -> float:
        graded.append(messages)
        return 0.5

    def sessions(run: Any, **options: Any) -> Any:
        return loop(functools.partial(SessionFactory, client, run, grade, **options))

    report: dict[str, Any] = {}
    good = sessions(talk)
    assert isinstance(good._factory, ResourceSessionFactory)
    (completion, ids, sequences, *_, reward), metrics = good._run_session(CONVERSATION, 7)
    report["good"] = {
        "completion": completion,
        "ids": ids,
        "rows": [
            {"ids": row.input_ids, "mask": row.completion_mask, "logprobs": row.old_log_probs} for row in sequences
        ],
        "reward": reward,
        "turns": metrics["turns"],
        "tally": dict(metrics["tally"]),
        "graded": list(graded),
        "rollout": sequences[0].rollout_id,
    }

    session = sessions(talk)._factory.create(CONVERSATION, seed=8, episode_id="session-protocol")
    report["is_trainable"] = isinstance(session, TrainableSession)
    session.wait_for_completion(60)
    session.close()

    def silent(rollout: Any, task: Any) -> None:
        return None

    report["silent"] = list(sessions(silent)._run_session(CONVERSATION, 9)[0])

    def broken(rollout: Any, task: Any) -> None:
        raise RuntimeError("no such agent")

    report["broken"] = list(sessions(broken)._run_session(CONVERSATION, 10)[0])

    release = threading.Event()

    def slow(rollout: Any, task: Any) -> None:
        client_agent.converse(rollout.base_url, rollout.secret, 1)
        release.wait(60)

    (*_, late_reward), late = sessions(slow, timeout_s=2.0)._run_session(CONVERSATION, 11)
    release.set()
    report["late"] = {"reward": late_reward, "exhausted": late["loop_exhausted"], "turns": late["turns"]}

    class Text:
        """A rollout of an engine that gives text only."""

        tier = "eval"

    factory = sessions(talk)._factory
    session = factory.create(CONVERSATION, seed=12, episode_id="text-only")
    session.wait_for_completion(60)
    session.rollout.tier = Text.tier
    try:
        session.fetch_training_trace()
    except ValueError as error:
        report["text"] = str(error)
    session.close()
    report["contract"] = issubclass(CaptureContractError, ValueError)
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
