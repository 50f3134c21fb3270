"""ATIF, the agent trajectory interchange format, version 1.8: `format=atif`.

Written for harbor 0.25.0 (`harbor/models/trajectories/`), whose models take no key that they don't know: what is known
beside stands in `extra.treering`, of the trajectory, of a step, of its metrics.

Rules
- The trajectory is main's. A message is a step when it is first sent, a reply a step with its metrics, and a tool's
  result an observation of the step that asked for it. What an agent sends again is no step.
- Token ids and logprobs stand on a step exactly if its tokens are trained; on any other, `extra` says why not. ATIF has
  no mask: all of `completion_token_ids` is trained, and steps marked as copied context are not.
- `prompt_token_ids` is the engine's own whole prompt, so the size of a trajectory grows with the square of its turns.
- A subagent is a trajectory of its own, embedded in that of its caller and named by the result of the tool call that
  started it, to any depth. References are checked both ways: each names an embedded trajectory, and each embedded
  trajectory is named once. harbor takes dangling ones, and ids that are given twice.
- An auxiliary conversation that is trained (`roles=`) is embedded too, named by a system's step where it arrived, as
  Harbor's own agents do with their summaries.
- Without token ids (tier `eval`) it is a trajectory of messages.

Where an agent gives its tool calls no ids, or one twice in a reply, they are named by call and place.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from graph.eligibility import REASONS
from graph.formats import checks, projection
from graph.formats.atif_steps import Steps
from graph.formats.refused import Refused
from graph.formats.turns import added
from graph.graph import Graph
from graph.records import Call, Conversation, ToolCall
from graph.sequences import Sequence, Sequences, versions

DRIFTS = ("split",)

SCHEMA = "ATIF-v1.8"

AGENT_LABEL, VERSION_LABEL = "agent", "agent_version"
"""Labels of a rollout that say whose trajectory it is."""


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return the trajectory of a rollout. Raises `Refused`."""
    if sequences.realign_masked is not None:
        raise Refused("A trajectory has no rows that cross drifts.", hint="Ask for drift=split.")
    made = _Making(graph, sequences).root()
    check(made)
    return made


def check(trajectory: dict[str, Any]) -> None:
    """Refuse what harbor's models take although it is broken: see the rules above."""
    names: list[str] = []
    _check(trajectory, names)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Refused(f"Two trajectories are called {twice}.", hint=checks.FAULT)


def _check(trajectory: dict[str, Any], names: list[str]) -> None:
    own = trajectory["trajectory_id"]
    names.append(own)
    named: list[str] = []
    for place, step in enumerate(trajectory["steps"]):
        where = f"Step {step['step_id']} of {own}"
        if step["step_id"] != place + 1:
            raise Refused(f"{where} is number {place + 1}.", hint=checks.FAULT)
        metrics = step.get("metrics", {})
        if "completion_token_ids" in metrics:
            sampled, logprobs = metrics["completion_token_ids"], metrics["logprobs"]
            checks.one_length(where, {"prompt_token_ids": metrics["prompt_token_ids"]})
            checks.token_ids(where, metrics["prompt_token_ids"])
            checks.token_ids(where, sampled)
            checks.one_length(where, {"completion_token_ids": sampled, "logprobs": logprobs})
            checks.scored(where, np.ones(len(sampled), np.uint8), logprobs)
        asked = [use["tool_call_id"] for use in step.get("tool_calls", ())]
        if len(set(asked)) != len(asked):
            raise Refused(f"{where} has two tool calls of one id.", hint=checks.FAULT)
        for result in step.get("observation", {"results": ()})["results"]:
            if "source_call_id" in result and result["source_call_id"] not in asked:
                raise Refused(f"{where} has a result of a tool call that it did not make.", hint=checks.FAULT)
            named += [reference["trajectory_id"] for reference in result.get("subagent_trajectory_ref", ())]
    embedded = trajectory.get("subagent_trajectories", [])
    there = [each["trajectory_id"] for each in embedded]
    if sorted(named) != sorted(there):
        lacking = sorted(set(named) ^ set(there)) or sorted(set(named))
        raise Refused(f"{own} doesn't name each embedded trajectory once: {', '.join(lacking)}.", hint=checks.FAULT)
    for each in embedded:
        _check(each, names)


class _Making:
    """What all trajectories of a rollout are made from."""

    def __init__(self, graph: Graph, sequences: Sequences) -> None:
        self.graph = graph
        self.sequences = sequences
        texts = [row for row in sequences.sequences if not projection.media(graph, row)]
        # With rows, they are held against what is true of all rows that go out; without, there are messages.
        self.going = projection.rows(graph, sequences) if texts else None
        self.row_of = {n: row.sequence for row in self.going or () for n in row.sequence.trained}
        left_out = sequences.left_out if self.going is None else self.going.left_out
        self.reasons = {left.call: left.reason for left in left_out}
        self.reasons |= {
            n: projection.MEDIA for row in sequences.sequences for n in row.trained if n not in self.row_of
        }
        self.agent = graph.rollout.labels.get(AGENT_LABEL, "unknown")
        # Conversations by the call that started them, and those that nothing in the trajectory started.
        self.children: dict[int, list[Conversation]] = {}
        self.orphans: list[Conversation] = []
        self._place()

    def root(self) -> dict[str, Any]:
        """Return main's trajectory, with all others in it."""
        mains = [found for found in self.graph.conversations if found.role == "main"]
        calls = self._led(*mains)
        if not calls:
            raise Refused(
                f"Rollout {self.graph.rollout.id} has no reply of main that its agent went on from.",
                hint="Its findings say what became of its calls.",
            )
        rollout = self.graph.rollout
        made = self._trajectory(rollout.id, calls, agent=self.agent, orphans=self.orphans)
        made["session_id"] = rollout.id
        made["extra"] = {"treering": self._known()}
        return made

    def embedded(self, found: Conversation) -> dict[str, Any]:
        """Return the trajectory of another conversation."""
        kind = found.kind or found.role
        made = self._trajectory(
            f"{self.graph.rollout.id}/{found.n}", self._led(found), agent=f"{self.agent}/{kind}", orphans=()
        )
        made["extra"] = {"treering": {"conversation": found.n, "role": found.role, "kind": found.kind}}
        return made

    def step(self, n: int) -> dict[str, Any]:
        """Return what a step says of its call: its metrics, and what ATIF has no place for."""
        call, forest = self.graph.forest.calls[n], self.graph.forest
        prompt, sampled = forest.n_prompt(n), forest.n_sampled(n)
        metrics: dict[str, Any] = {
            "prompt_tokens": call.usage_prompt if prompt is None else prompt,
            "completion_tokens": call.usage_sampled if sampled is None else sampled,
        }
        known: dict[str, Any] = {
            "call": n,
            "id": call.id,
            "conversation": self.graph.conversation_of.get(n),
            "status": call.status,
            "finish_reason": call.finish_reason,
            "link": forest.links[n].kind,
        }
        row = self.row_of.get(n)
        if row is None:
            why = self.reasons.get(n, "role")
            known["left_out"] = {"reason": why, "message": REASONS.get(why, "it stands beside media")}
        else:
            metrics |= self._tokens(call, row)
            known |= {"row": row.row, "truncated": row.truncated, "reward": row.call_rewards.get(n)}
        metrics = {name: value for name, value in metrics.items() if value is not None}
        return {"metrics": metrics, "llm_call_count": 1, "extra": {"treering": known}}

    def _tokens(self, call: Call, row: Sequence) -> dict[str, Any]:
        n_prompt = self.graph.forest.n_prompt(call.n)
        assert n_prompt is not None, "a trained call has a prompt"
        assert call.sampled_ids is not None, "a trained call has sampled ids"
        spans = [
            {"version": version, "start": start, "end": end}
            for start, end, version in versions(call, len(call.sampled_ids))
        ]
        return {
            "prompt_token_ids": row.input_ids[:n_prompt],
            "completion_token_ids": call.sampled_ids,
            "logprobs": call.logprobs,
            "extra": {"treering": {"weights": spans, "sampling": call.sampling_sent}},
        }

    def _led(self, *conversations: Conversation) -> list[int]:
        """Return the calls of conversations that led somewhere or are trained, in order of arrival."""
        forest = self.graph.forest
        inside = [n for found in conversations for n in found.calls]
        kept = [
            n
            for n in inside
            if n in self.row_of
            or (
                n not in forest.discarded
                and (
                    n in forest.came_back or (forest.calls[n].status == "complete" and forest.delivered(n) is not False)
                )
            )
        ]
        return sorted(kept, key=lambda n: (forest.calls[n].arrived, n))

    def _place(self) -> None:
        """Say where each conversation but main's is embedded."""
        conversations = self.graph.conversations
        there = {n for found in conversations for n in self._led(found)}
        reached = {found.n for found in conversations if found.role == "main"}
        for found in sorted(conversations, key=lambda each: self.graph.forest.calls[each.root].arrived):
            if found.n in reached or not self._led(found):
                continue
            caller = found.parent_call
            if found.role == "subagent" and caller in there and self._uses(caller) and self._outside(found) in reached:
                self.children.setdefault(caller, []).append(found)
            elif any(n in self.row_of for n in found.calls):
                self.orphans.append(found)
            else:
                continue
            reached.add(found.n)

    def _outside(self, found: Conversation) -> int | None:
        return None if found.parent_call is None else self.graph.conversation_of.get(found.parent_call)

    def _uses(self, n: int | None) -> tuple[ToolCall, ...]:
        reply = None if n is None else self.graph.forest.calls[n].reply
        return () if reply is None else reply.tool_calls

    def _trajectory(self, name: str, calls: list[int], *, agent: str, orphans: Any) -> dict[str, Any]:
        forest = self.graph.forest
        steps, seen, waiting = Steps(), set[bytes](), list(orphans)
        embedded: list[Conversation] = []
        for n in calls:
            call = forest.calls[n]
            while waiting and forest.calls[waiting[0].root].arrived < call.arrived:
                steps.aside(waiting[0], self.graph, f"{name}/{waiting[0].n}")
                embedded.append(waiting.pop(0))
            # A root or a compaction begins with what was said before: only what is new in it is a step.
            fresh = forest.links[n].kind in {"exact", "drift"} and forest.links[n].parent in calls
            for message in added(forest, n) if fresh else call.messages:
                if fresh or message.digest not in seen:
                    steps.said(message, call)
                seen.add(message.digest)
            steps.replied(call, self.step(n))
            if call.reply is not None:
                seen.add(call.reply.digest)
        for found in waiting:
            steps.aside(found, self.graph, f"{name}/{found.n}")
            embedded.append(found)
        root = self.graph.rollout.id
        for n in calls:
            for found in self.children.get(n, ()):
                steps.started(n, found, self.graph, f"{root}/{found.n}")
                embedded.append(found)
        counted = [step["metrics"] for step in steps.all if "metrics" in step]
        made: dict[str, Any] = {
            "schema_version": SCHEMA,
            "trajectory_id": name,
            "agent": self._agent(agent, calls),
            "steps": steps.all,
            "final_metrics": {
                "total_prompt_tokens": sum(each.get("prompt_tokens", 0) for each in counted),
                "total_completion_tokens": sum(each.get("completion_tokens", 0) for each in counted),
                "total_steps": len(steps.all),
            },
        }
        if embedded:
            made["subagent_trajectories"] = [self.embedded(found) for found in embedded]
        return made

    def _agent(self, name: str, calls: list[int]) -> dict[str, Any]:
        rollout = self.graph.rollout
        made: dict[str, Any] = {"name": name, "version": rollout.labels.get(VERSION_LABEL, "unknown")}
        if rollout.model is not None:
            made["model_name"] = rollout.model
        names = dict.fromkeys(name for n in calls for name in self.graph.forest.calls[n].tool_names)
        if names:
            # By name alone: a graph keeps no schemas.
            made["tool_definitions"] = [{"type": "function", "function": {"name": name}} for name in names]
        return made

    def _known(self) -> dict[str, Any]:
        rollout, made = self.graph.rollout, self.sequences
        return {
            "rollout": rollout.id,
            "group": rollout.group,
            "labels": dict(rollout.labels),
            "final": made.final,
            "reward": made.reward,
            "n_rows": 0 if self.going is None else len(self.going.rows),
            "n_trained_tokens": sum(self.graph.forest.n_sampled(n) or 0 for n in self.row_of),
            "logprobs_mode": made.logprobs_mode,
            "stopped": None if rollout.stopped is None else msgspec.to_builtins(rollout.stopped),
            "left_out": [{"call": n, "reason": why} for n, why in sorted(self.reasons.items())],
            "findings": list(made.findings),
        }
