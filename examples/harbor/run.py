"""Run a Harbor task several times, each attempt a rollout of one group, with Harbor's own verifier as the reward.

    python3 examples/harbor/run.py --url URL --key KEY --task tasks/hello --n 4 --agent opencode

Needs harbor 0.25 on the PATH (Python 3.12; https://harborframework.com), and an appliance that the task's containers
reach: README.md has the set-up. terminus-2, which runs outside of the containers, needs none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from appliance import appliance, arguments  # found by the line above
from treering_client.adapters import harbor
from treering_client.rollout import Rollout

TRIAL_LIMIT_S = 7200.0


def trial(rollout: Rollout, agent: str, task: str, folder: Path, program: str) -> float | None:
    """Run Harbor once, for one rollout; return its verifier's reward, None where it gave none.

    One key is one rollout: a job with several attempts would put them all into one.
    """
    extra = {"job_name": rollout.id, "jobs_dir": str(folder), "n_concurrent_trials": 1, "quiet": True}
    config = folder / f"{rollout.id}.json"
    # It names the variables of address and key, and holds neither.
    config.write_text(json.dumps(harbor.job(rollout, agent, task, extra=extra), indent=2))
    env = {**os.environ, **harbor.environment(rollout), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (folder / f"{rollout.id}.log").open("wb") as log:
        subprocess.run(  # noqa: S603 -- as the command line says
            [program, "run", "--config", str(config)], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            check=False, timeout=TRIAL_LIMIT_S,
        )  # fmt: skip
    for result in (folder / rollout.id).glob("*/result.json"):
        rewards = (json.loads(result.read_text()).get("verifier_result") or {}).get("rewards") or {}
        # A verifier may give several numbers; `reward` is Harbor's name for the one that counts.
        if "reward" in rewards:
            return float(rewards["reward"])
    return None


def main() -> int:
    """Run the attempts; return 1 where not one of them can be trained on."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--task", required=True, help="The task's folder, as Harbor takes it.")
    parser.add_argument("--agent", default="opencode", help="One of Harbor's agents.")
    parser.add_argument("--n", type=int, default=4, help="Attempts: rollouts of one group.")
    parser.add_argument("--jobs", type=Path, default=Path("jobs"), help="Where Harbor keeps what it did.")
    parser.add_argument("--harbor", default="harbor", help="The program.")
    asked = parser.parse_args()
    if asked.url is None:
        parser.error("name the appliance that the containers reach (--url, --key)")
    asked.jobs.mkdir(parents=True, exist_ok=True)
    # terminus-2 runs on this machine, every other agent in a container.
    reach = {"agent": "local" if asked.agent in harbor.OUTSIDE else "remote"}
    with appliance(asked.url, asked.key) as found, ThreadPoolExecutor(asked.n) as pool:
        rollouts = found.client.rollouts(
            asked.n, group=Path(asked.task).name, sampling={"temperature": 1.0}, limits={"max_calls": 100}, reach=reach
        )
        runs = [pool.submit(trial, each, asked.agent, asked.task, asked.jobs, asked.harbor) for each in rollouts]
        trained = 0
        for rollout, run in zip(rollouts, runs, strict=True):
            reward = run.result()
            # A rollout without calls has earned no number, whatever the verifier made of an untouched folder.
            if reward is not None and rollout.show()["n_calls"]:
                rollout.reward(reward)
            rows = rollout.sequences()
            trained += rows["n_trained_tokens"]
            print(f"{rollout.id}: reward {rows['reward']}, {rows['n_trained_tokens']} tokens in {rows['n_rows']} rows")
            for each in rollout.findings():
                if each["level"] != "info":
                    print(f"  {each['level']} {each['code']}: {each['message']} {each['hint']}")
    return int(not trained)


if __name__ == "__main__":
    sys.exit(main())
