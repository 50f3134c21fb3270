"""Every form in which training sequences go out: one table, and who reads which.

The routes, the command line and docs/export.md are made from it. Nothing here imports a format: each is one module of
`graph.formats`, imported when it is asked for.
"""

from __future__ import annotations

import msgspec


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format."""

    name: str
    # What it is, for a person who chooses one.
    help: str
    # What it can do at a drift, its default first: rows that end there or cross it, or the tree.
    drifts: tuple[str, ...] = ("split", "realign")
    # Its library has a number where others have "ungraded", so that a rollout without a reward would get one.
    needs_reward: bool = False
    # It says by itself why it is empty (`left_out`, `findings`), so that an empty rollout is no error.
    tells: bool = False
    # It is of use without token ids: a rollout of the tier `eval` has its messages.
    takes_text: bool = False
    # The extra of Treering without which it can't be made.
    extra: str | None = None
    # Of one rollout's answer; of many, JSON goes out in lines.
    content_type: str = "application/json"
    # Of a file with many rollouts.
    extension: str = "jsonl"

    @property
    def module(self) -> str:
        """The module that makes it."""
        return "graph.formats." + self.name.replace("-", "_")


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format(name="native", help="Treering's own rows: ids, mask, logprobs, where each part is from.", tells=True),
        Format(name="trl", help="TRL's asynchronous GRPO: rows of full length."),
        Format(name="openenv", help="OpenEnv's TrainingTrace, one turn a call, for TRL's harness.", drifts=("split",)),
        Format(name="verifiers", help="verifiers' Trace: the message graph, with semantic edges.", drifts=("split",)),
        Format(name="prime-rl", help="prime-rl's TrainingSample: rows of full length, a temperature a token."),
        Format(
            name="atif",
            help="An ATIF v1.8 trajectory: steps, with subagents embedded.",
            drifts=("split",),
            takes_text=True,
        ),
        Format(name="harbor", help="Harbor's AgentContext: rollout_details, main first.", drifts=("split",)),
        Format(name="tinker", help="Tinker's Datum inputs: shifted by one."),
        Format(name="verl", help="verl's AgentLoopOutput: prompt and response."),
        Format(name="skyrl", help="SkyRL's GeneratorOutput, step-wise: prompt and response.", needs_reward=True),
        Format(name="slime", help="slime's and miles' Sample: the response's tail."),
        Format(name="areal", help="AReaL's tensors: full length, a version a token.", needs_reward=True),
        Format(name="tree", help="Every distinct token once, for tree attention.", drifts=("tree",), tells=True),
        Format(
            name="parquet",
            help="A Parquet file of rows, for data frames and data sets.",
            extra="parquet",
            content_type="application/vnd.apache.parquet",
            extension="parquet",
        ),
    )
}  # fmt: skip
"""By name, in the order in which they are listed."""
