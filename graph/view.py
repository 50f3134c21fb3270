"""The JSON forms of a graph, as plain values: dicts, lists, strings, numbers, None.

Two graphs of one rollout have equal JSON, byte for byte, in whatever order the calls were handed over: lists are in
the order of call numbers, and dicts are built in one order. Token arrays and what passed on the wire are not here:
they are read from the forest and from the store, where they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from graph import transitions
from graph.asked import task_words
from graph.budget import budget_left
from graph.findings import TABLE
from graph.graph import Graph
from graph.records import FORMAT_VERSION, Call, Conversation, Finding, Rollout

DRAWN_WITH = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
"""What tokens are drawn with: null where a request didn't say, for the engine's default is not known here."""


def graph_json(graph: Graph, *, now: str | None = None) -> dict[str, Any]:
    """Return the whole graph: rollout (as of `now`), calls, conversations, forks, findings, drift."""
    forest = graph.forest
    return {
        "version": FORMAT_VERSION,
        "rollout": {**rollout_json(graph.rollout, graph, now=now), **given_json(graph)},
        "calls": [call_json(graph, n) for n in sorted(forest.calls)],
        "conversations": [_conversation(found) for found in graph.conversations],
        "forks": [
            {"at": fork.at, "kind": fork.kind, "children": list(fork.children), "kept": fork.kept}
            for fork in forest.forks
        ],
        "findings": findings_json(graph),
        "drift": msgspec.to_builtins(transitions.numbers(forest, graph.calls_of("main"))),
    }


def call_json(graph: Graph, n: int) -> dict[str, Any]:
    """Return one call, without its arrays and its exchange. Raises KeyError for a number that no call has."""
    forest = graph.forest
    call = forest.calls[n]
    link = forest.links[n]
    return {
        "n": n,
        "id": call.id,
        "choice": call.choice,
        "status": status(graph, n),
        "delivered": forest.delivered(n),
        "link": link.kind,
        "parent": link.parent,
        "carries": list(link.carries),
        "conversation": graph.conversation_of.get(n),
        "fork": forest.fork_of.get(n),
        "discarded": n in forest.discarded,
        "n_prompt": _n_prompt(graph, call),
        "n_sampled": _n_sampled(graph, call),
        "n_shared": link.n_shared,
        "drift": None
        if link.drift is None
        else {
            "tokens": link.drift.tokens,
            "at": link.drift.at,
            "where": link.drift.where,
            "cause": link.drift.cause,
        },
        "pinned": None if call.pinned is None else {"kept": call.pinned},
        "finish_reason": call.finish_reason,
        "dialect": call.dialect,
        "streamed": call.streamed,
        "engine": call.engine,
        "model_asked": call.model_asked,
        "weights": {
            "start": call.weights.start,
            "end": call.weights.end,
            "spans": [{"version": span.version, "start": span.start, "end": span.end} for span in call.weights.spans],
        },
        "sampling": {"asked": _sampling(call.sampling_asked), "sent": _sampling(call.sampling_sent)},
        "constrained": bool(call.constrained),
        "repairs": list(call.repairs),
        "started_at": call.started_at,
        "queued_ms": call.queued_ms,
        "first_token_ms": call.first_token_ms,
        "ended_ms": call.ended_ms,
        "hints": call.hints,
    }


def status(graph: Graph, n: int) -> str:
    """Return how a call ended, `undelivered` for a complete one that never reached the agent."""
    call = graph.forest.calls[n]
    return "undelivered" if call.status == "complete" and graph.forest.delivered(n) is False else call.status


def rollout_json(rollout: Rollout, graph: Graph, *, now: str | None = None) -> dict[str, Any]:
    """Return a rollout's summary, with the counts that its graph gives.

    `now` (ISO 8601) is the time up to which an open rollout's deadline is counted; by default that of its last call.
    """
    forest = graph.forest
    calls = [call for _, call in sorted(forest.calls.items())]
    return {
        "id": rollout.id,
        "group": rollout.group,
        "labels": rollout.labels,
        "state": rollout.state,
        "tier": rollout.tier,
        "tier_reason": rollout.tier_reason,
        "model": rollout.model,
        "logprobs_mode": rollout.logprobs_mode,
        "incomplete": rollout.incomplete,
        "reward": rollout.reward,
        "per_call_rewards": rollout.per_call_rewards,
        "reward_details": rollout.reward_details,
        "stopped": None
        if rollout.stopped is None
        else {
            "limit": rollout.stopped.limit,
            "at_call": rollout.stopped.at_call,
            "stops": rollout.stopped.stops,
        },
        "n_calls": len(calls),
        "n_main_calls": len(graph.calls_of("main")),
        "n_tool_calls": sum(len(call.reply.tool_calls) for call in calls if call.reply is not None),
        "n_conversations": len(graph.conversations),
        "n_prompt_tokens": sum(_n_prompt(graph, call) or 0 for call in calls if call.choice == 0),
        "n_sampled_tokens": sum(_n_sampled(graph, call) or 0 for call in calls),
        "n_distinct_tokens": forest.tokens.distinct,
        "created_at": rollout.created_at,
        "first_call_at": rollout.first_call_at,
        "last_call_at": rollout.last_call_at,
        "closed_at": rollout.closed_at,
        "budget_left": budget_left(rollout, calls, prompt_ids=forest.prompt_ids, main=graph.calls_of("main"), now=now),
    }


def given_json(graph: Graph) -> dict[str, Any]:
    """Return what a rollout was given: its limits, and the first words of its task. For people who look at many."""
    return {"limits": graph.rollout.limits, "task": task_words(graph)}


def findings_json(graph: Graph) -> list[dict[str, Any]]:
    """Return a rollout's findings, in the table's order."""
    return [_finding(finding) for finding in graph.findings]


def _sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were seen, and null for each that says how tokens are drawn and was not."""
    return {**dict.fromkeys(DRAWN_WITH), **values}


def _conversation(found: Conversation) -> dict[str, Any]:
    return {
        "n": found.n,
        "root": found.root,
        "role": found.role,
        "kind": found.kind,
        "trainable": found.trainable,
        "parent_call": found.parent_call,
        "calls": list(found.calls),
        "evidence": [
            {"rule": shown.rule, "calls": list(shown.calls), "detail": shown.detail} for shown in found.evidence
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    row = TABLE.get(finding.code)
    return {
        "code": finding.code,
        "level": finding.level,
        "calls": list(finding.calls),
        "message": finding.message,
        "data": finding.data,
        # From the table, so that nobody has to look a code up: what it means, and what to do. A code of a newer version
        # has neither here.
        "means": row.means if row else "",
        "hint": row.do if row else "",
    }


def _n_prompt(graph: Graph, call: Call) -> int | None:
    found = graph.forest.n_prompt(call.n)
    return call.usage_prompt if found is None else found


def _n_sampled(graph: Graph, call: Call) -> int | None:
    found = graph.forest.n_sampled(call.n)
    return call.usage_sampled if found is None else found
