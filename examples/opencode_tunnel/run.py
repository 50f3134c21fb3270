"""Run opencode in a sandbox on another machine, through a tunnel, under one rollout. README.md has the set-up.

    python3 examples/opencode_tunnel/run.py --url URL --key KEY --sandbox 'ssh me@box' --folder project \
        --task 'Make the tests pass.' --grade 'pytest -q'

`--sandbox` is how a shell is started there: `ssh me@box`, `docker exec -i NAME`, `kubectl exec -i POD --`. The sandbox
needs opencode and a shell; nothing of Treering, and no way to this machine but the tunnel's.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from appliance import PATHS, Appliance, appliance, arguments, treering  # found by the line above
from treering_client.rollout import Rollout

AGENT_LIMIT_S = 3600.0
GRADE_LIMIT_S = 600.0


def recipe(found: Appliance, rollout: Rollout) -> dict[str, Any]:
    """Return opencode's files, variables and command, as `treering agents opencode` prints them."""
    argv = [*treering(), "agents", "opencode", "--rollout", rollout.id, "--base-url", rollout.base_url]
    env = {**os.environ, **PATHS, "TREERING_ADMIN_KEY": found.key}
    printed = subprocess.run(  # noqa: S603 -- our own program
        [*argv, "--url", found.url, "--json"], env=env, stdout=subprocess.PIPE, check=True, timeout=60
    ).stdout
    answer: dict[str, Any] = json.loads(printed)
    return answer


def script(printed: dict[str, Any], rollout: Rollout, folder: str, task: str) -> str:
    """Write the shell script that the sandbox runs: the files, the variables, the agent.

    It goes there by standard input, so that the key is on no command line, which every process may read.
    """
    lines = ["set -eu"]
    for name, text in printed["files"].items():
        path = '"$HOME"/' + shlex.quote(name.removeprefix("~/"))
        lines += [f'mkdir -p "$(dirname {path})"', f"printf %s {shlex.quote(text)} > {path}"]
    # Address and key of this rollout, and what keeps the agent off any other network.
    for name, value in {**printed["env"], **rollout.env}.items():
        lines.append(f"export {name}={shlex.quote(value)}")
    command = [*printed["command"][:-1], task]
    # Not its standard input, which is this script.
    return "\n".join([*lines, f"cd {shlex.quote(folder)}", f"{shlex.join(command)} </dev/null", ""])


def in_sandbox(sandbox: str, text: str, limit_s: float) -> int:
    """Run a script in the sandbox; return its exit code, 124 where it took too long."""
    try:
        return subprocess.run(  # noqa: S603 -- as the command line says
            [*shlex.split(sandbox), "sh", "-s"], input=text.encode(), check=False, timeout=limit_s
        ).returncode
    except subprocess.TimeoutExpired:
        return 124


def main() -> int:
    """Run one rollout; return 1 where nothing of it can be trained."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--sandbox", required=True, help="How a shell is started in the sandbox, without `sh`.")
    parser.add_argument("--folder", default=".", help="The agent's folder there.")
    parser.add_argument("--task", required=True, help="What the agent is told.")
    parser.add_argument("--grade", help="A command there that ends with 0 when the task is done.")
    asked = parser.parse_args()
    if asked.url is None:
        parser.error("name the appliance that holds the tunnel (--url, --key)")
    with appliance(asked.url, asked.key) as found:
        # A remote agent never gets a loopback address; without a tunnel that was just proved, this is refused.
        with found.client.rollout(
            asked.task, sampling={"temperature": 1.0}, limits={"max_calls": 100}, reach={"agent": "remote"}
        ) as rollout:
            print(f"rollout {rollout.id}: the agent connects to {rollout.url}", flush=True)
            text = script(recipe(found, rollout), rollout, asked.folder, asked.task)
            print(f"opencode ended with {in_sandbox(asked.sandbox, text, AGENT_LIMIT_S)}", flush=True)
            rollout.wait("idle", idle_s=1.0)
            # An agent that made no call has shown nothing: ungraded, which is not 0.0.
            if asked.grade and rollout.show()["n_calls"]:
                graded = in_sandbox(asked.sandbox, f"cd {shlex.quote(asked.folder)}\n{asked.grade}\n", GRADE_LIMIT_S)
                rollout.reward(float(graded == 0))
        rows = rollout.sequences()
        print(f"{rows['n_rows']} rows, {rows['n_trained_tokens']} trained tokens, reward {rows['reward']}")
        for each in rollout.findings():
            if each["level"] != "info":
                print(f"{each['level']} {each['code']}: {each['message']} {each['hint']}")
        return int(not rows["n_trained_tokens"])


if __name__ == "__main__":
    sys.exit(main())
