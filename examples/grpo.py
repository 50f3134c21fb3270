"""A GRPO-style loop over rollouts: groups, rewards, advantages by rollout, rows weighed by rollout, a toy step.

    python3 examples/grpo.py                        # on the scripted engine
    python3 examples/grpo.py --url URL --key KEY    # on an appliance that runs, such as one in front of vLLM

The agent here is two HTTP calls. Yours is a subprocess with `rollout.env` in its environment; nothing else changes. The
policy is a table with a number for each token id, so that the step fits in three lines: put your optimiser's in there.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

from appliance import appliance, arguments, chat
from treering_client.rollout import Rollout

STEPS, GROUP, RATE = 3, 4, 0.1
TASKS = ("Say in a few words what a fork is.", "Say in a few words what drift is.")
policy: dict[int, float] = defaultdict(float)


def agent(rollout: Rollout, task: str) -> str:
    """Do the task in two turns; return the last words."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    messages.append(chat(rollout, messages))
    messages.append({"role": "user", "content": "Shorter, please."})
    return str(chat(rollout, messages)["content"])


def train(group: list[dict[str, Any]]) -> float:
    """Take one step over a group's sequences; return the loss.

    A rollout is one draw, whatever rows it was cut into: its advantage is that of its reward among rewards, and its
    tokens share one weight. Rows counted as rollouts would reward whoever drifts.
    """
    rewards = [each["reward"] for each in group]
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    loss = 0.0
    for each in group:
        advantage = (each["reward"] - mean) / (spread + 1e-6)
        weight = 1 / (len(group) * each["n_trained_tokens"])
        for row in each["sequences"]:
            for token, trained, old in zip(row["input_ids"], row["loss_mask"], row["logprobs"], strict=True):
                if trained:  # a context token has no logprob, and no gradient
                    ratio = math.exp((old + policy[token]) - old)  # a real policy scores the row anew
                    loss -= weight * advantage * ratio
                    policy[token] += RATE * weight * advantage * ratio
    return loss


def main() -> None:
    """Train for a few steps."""
    asked = arguments(__doc__ or "").parse_args()
    with appliance(asked.url, asked.key) as found:
        for step in range(STEPS):
            for task in TASKS:
                rollouts = found.client.rollouts(GROUP, task, sampling={"temperature": 1.0}, limits={"max_calls": 8})
                for rollout in rollouts:  # one after another; threads or processes do as well
                    words = agent(rollout, task)
                    # Ids are drawn anew for each rollout, and its logprobs with them: the surest words win.
                    sure = statistics.fmean(p for call in rollout.calls(ids=True) for p in call["logprobs"])
                    rollout.reward(round(math.exp(sure), 3), details={"characters": len(words)})
                group = [rollout.sequences() for rollout in rollouts]  # closes each
                # Nothing to train on, or not graded: not a zero. `findings` says why.
                group = [each for each in group if each["n_trained_tokens"] and each["reward"] is not None]
                rows, tokens = sum(e["n_rows"] for e in group), sum(e["n_trained_tokens"] for e in group)
                loss = train(group)
                print(f"step {step}: {len(group)} rollouts, {rows} rows, {tokens} trained tokens, loss {loss:+.4f}")
            found.call("POST", "/engine/pause")  # answers when no call runs
            # … here the engine gets the new weights …
            found.call("POST", "/engine/weights", {"version": f"step-{step + 1}"})
            found.call("POST", "/engine/resume")


if __name__ == "__main__":
    main()
