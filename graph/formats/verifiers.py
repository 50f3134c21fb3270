"""verifiers' trace, which prime-rl trains on: `format=verifiers`.

Written for verifiers 0.4.0: the object is a `verifiers.v1.trace.WireTrace`, version 1. What is known beside stands in
its `info.treering`.

Rules
- A call is a node with what it sampled, behind one node for each message that its request added. All new ids of its
  prompt, the template's scaffold included, stand on the last of these messages and the others have none: a capture by
  the engine's ids knows where a turn begins, and not where a message does. verifiers asks that the ids of a path's
  nodes are those that the model saw, and nothing of a single node.
- A call hangs on the one before it only if its prompt goes on from it id by id. Any other begins at a root with its
  whole prompt, so each path is exactly what the engine scored, and where the agent went on is a semantic edge.
- A node is trained once however many paths run through it: that is verifiers' own rule. A call that is context alone
  has a mask of False, and no logprobs.
- `logprobs` has a value for each True of `mask`: a shorter list is taken, and the rest trained at probability 1.
- An ungraded rollout has the reward None.
- The JSON is our own: verifiers' `model_dump_json` writes logprobs with four decimals. A reader that has to write a
  trace again does so with `to_record(float_decimals=None)`, or as msgpack.

Semantic edges, on the node that they lead to: `continuation` from the call that it goes on from; `subagent_call` from
the call whose tool call started the conversation; `subagent_return` from a subagent's last reply to the call that
brought it back; `compaction` from the summary, and on that `compaction_attempt` from what it sums up. Only between
calls that are in the trace: ask for `roles=main,subagent,summary` to have them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from datetime import datetime
from typing import Any

import numpy as np

from graph.forest import Forest
from graph.formats import checks, projection
from graph.formats.projection import Rows
from graph.formats.refused import Refused
from graph.formats.turns import added
from graph.graph import Graph
from graph.records import Call, Message
from graph.sequences import Sequences

DRIFTS = ("split",)

STOPS = {
    "max_calls": "max_turns",
    "max_prompt_tokens": "max_input_tokens",
    "max_total_tokens": "max_total_tokens",
    "max_output_tokens": "max_output_tokens",
    "deadline_s": "agent_timeout",
}
"""Our limits, and what verifiers calls a rollout that ended at one."""

_ENDPOINTS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
_ENDS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls"}
_ROLES = frozenset({"system", "user", "assistant", "tool"})


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return the trace of a rollout. Raises `Refused`."""
    going = projection.rows(graph, sequences)
    if sequences.realign_masked is not None:
        raise Refused("A trace's paths never cross a drift.", hint="Ask for drift=split.")
    making = _Nodes(graph.forest, {call.n for row in going for call in row.calls})
    for row in going:
        for n in row.sequence.calls:
            making.add(n)
    _edges(graph, making)
    rollout = graph.rollout
    calls = [_call(graph, n, making.of[n]) for n in sorted(making.of, key=lambda n: (graph.forest.calls[n].arrived, n))]
    starts = [call["time"]["start"] for call in calls]
    stopped = None if rollout.stopped is None else STOPS.get(rollout.stopped.limit, rollout.stopped.limit)
    trace = {
        "version": 1,
        "id": rollout.id,
        "task": {"type": "Treering", "data": {"idx": None, "name": rollout.group, "prompt": rollout.task}},
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "tools": _tools([name for n in making.of for name in graph.forest.calls[n].tool_names]),
        "nodes": making.nodes,
        "calls": calls,
        # Ungraded is None: a score of 0.0 would be a grade.
        "rewards": {"reward": None if rollout.reward is None else {"score": rollout.reward, "weight": 1.0}},
        "info": {"treering": {**going.head("verifiers"), "rows": [row.about() for row in going]}},
        "is_completed": sequences.final,
        # prime-rl drops traces that are not ok: of one whose capture is incomplete nobody knows what is missing.
        "ok": not rollout.incomplete,
        "stop_condition": stopped or ("agent_completed" if sequences.final else None),
        "is_timeout": stopped == "agent_timeout",
        "errors": [{"type": "CaptureIncomplete", "message": "A call could not be stored."}]
        if rollout.incomplete
        else [],
        "timing": {"start": min(starts, default=0.0)},
    }
    check(trace)
    _paths(making.nodes, making.of, going)
    return trace


def check(trace: dict[str, Any]) -> None:
    """Refuse what verifiers takes and trains on all the same: see the rules above."""
    nodes = trace["nodes"]
    for place, node in enumerate(nodes):
        where = f"Node {place}"
        trained = np.asarray(node["mask"], dtype=bool)
        if len(node["token_ids"]) != len(trained):
            raise Refused(
                f"{where} has {len(node['token_ids'])} ids and {len(trained)} mask values.", hint=checks.FAULT
            )
        if len(node["token_ids"]):
            checks.token_ids(where, node["token_ids"])
        if len(node["logprobs"]) != np.count_nonzero(trained):
            raise Refused(
                f"{where} has {len(node['logprobs'])} logprobs for {np.count_nonzero(trained)} trained tokens.",
                hint=checks.FAULT,
            )
        if not np.isfinite(np.asarray(node["logprobs"], dtype=np.float64)).all():
            raise Refused(f"{where} has a trained token without a logprob.", hint=checks.FAULT)
        if trained.any() and not node["sampled"]:
            raise Refused(f"{where} trains what no call sampled.", hint=checks.FAULT)
        for link in [node["parent"], *(each["node"] for each in node["semantic_parents"])]:
            if link is not None and not 0 <= link < len(nodes):
                raise Refused(f"{where} names a node that is not there: {link}.", hint=checks.FAULT)
        if node["parent"] is not None and node["parent"] >= place:
            raise Refused(f"{where} stands before its parent.", hint=checks.FAULT)


def _paths(nodes: Many[dict[str, Any]], of: Mapping[int, int], going: Rows) -> None:
    """Refuse a trace in which a row is no path, id by id, or more is trained than in the rows."""
    total = sum(int(np.count_nonzero(node["mask"])) for node in nodes)
    wanted = sum(row.sequence.n_trained_tokens for row in going)
    if total != wanted:
        raise Refused(f"The nodes train {total} tokens, the rows {wanted}.", hint=checks.FAULT)
    for row in going:
        parts = []
        at: int | None = of[row.sequence.calls[-1]]
        while at is not None:
            parts.append(nodes[at]["token_ids"])
            at = nodes[at]["parent"]
        if not np.array_equal(np.concatenate(parts[::-1]), row.sequence.input_ids):
            raise Refused(f"Row {row.row} is no path of the trace.", hint=checks.FAULT)


class _Nodes:
    """The nodes in the making: parents before children."""

    def __init__(self, forest: Forest, trained: set[int]) -> None:
        self._forest = forest
        self._trained = trained
        self.nodes: list[dict[str, Any]] = []
        # Call → the node of what it sampled.
        self.of: dict[int, int] = {}
        # What stands before a reply: (parent node, ids, messages) → its last node. Two draws of one prompt share it.
        self._context: dict[tuple[int | None, bytes, tuple[bytes, ...]], int | None] = {}

    def add(self, n: int) -> None:
        """Take in a call of a row, after the one that it goes on from."""
        if n in self.of:
            return
        forest = self._forest
        call, link, ids, prompt = forest.calls[n], forest.links[n], forest.ids(n), forest.n_prompt(n)
        assert ids is not None, "a call in a row has ids"
        assert prompt is not None, "a call in a row has a prompt"
        above = self.of.get(link.parent) if link.kind == "exact" and link.parent is not None else None
        begun = 0 if above is None else link.n_shared
        messages = call.messages if above is None else added(forest, n)
        parent = self._before(above, ids[begun:prompt], messages, call)
        sampled = ids[prompt:]
        trained = n in self._trained
        if trained and call.logprobs is None:
            raise Refused(f"Call {n} is trained and has no logprobs.", hint=checks.FAULT)
        self.of[n] = self._append(
            parent,
            _message(call.reply),
            call,
            sampled=True,
            token_ids=sampled,
            mask=np.full(len(sampled), trained),
            logprobs=call.logprobs if trained else np.empty(0, np.float32),
        )

    def _before(self, above: int | None, ids: Any, messages: Many[Message], call: Call) -> int | None:
        key = (above, ids.tobytes(), tuple(message.digest for message in messages))
        if key in self._context:
            return self._context[key]
        spelt = [_message(message) for message in messages]
        if not spelt and len(ids):
            # A prompt of text or ids, which has no messages.
            spelt = [{"role": "user", "content": ""}]
        parent = above
        for place, message in enumerate(spelt):
            own = ids if place == len(spelt) - 1 else ids[:0]
            parent = self._append(parent, message, call, token_ids=own, mask=np.zeros(len(own), bool))
        self._context[key] = parent
        return parent

    def _append(
        self,
        parent: int | None,
        message: dict[str, Any],
        call: Call,
        *,
        token_ids: Any,
        mask: Any,
        logprobs: Any = (),
        sampled: bool = False,
    ) -> int:
        node = {
            "parent": parent,
            "message": message,
            "sampled": sampled,
            "timestamp": _time(call)["end" if sampled else "start"],
            "token_ids": token_ids,
            "mask": mask,
            "logprobs": logprobs,
            "semantic_parents": [],
        }
        if parent is None:
            node["tools"] = _tools(call.tool_names)
        self.nodes.append(node)
        return len(self.nodes) - 1


def _edges(graph: Graph, making: _Nodes) -> None:
    """Put on each call's node what led to it."""
    forest, of = graph.forest, making.of

    def edge(kind: str, source: int | None, target: int | None) -> None:
        if source is None or target is None or source == target or source not in of or target not in of:
            return
        link = {"node": of[source], "type": kind}
        held = making.nodes[of[target]]["semantic_parents"]
        if link not in held:
            held.append(link)

    for n in sorted(of):
        link = forest.links[n]
        carried = [m for m in link.carries if m in of] if link.kind == "compaction" else []
        for m in carried:
            edge("compaction", m, n)
            edge("compaction_attempt", _summed_up(forest, link.parent, m), m)
        if not carried:
            edge("continuation", link.parent, n)
    for found in graph.conversations:
        inside = sorted((n for n in found.calls if n in of), key=lambda n: (forest.calls[n].arrived, n))
        if found.role != "subagent" or not inside:
            continue
        edge("subagent_call", found.parent_call, inside[0])
        for shown in found.evidence:
            if shown.rule == "reply_in_result":
                edge("subagent_return", inside[-1], shown.calls[-1])


def _summed_up(forest: Forest, last: int | None, summary: int) -> int | None:
    """Return the last call that a summary had read: `last` of its conversation, or, inside that, the one before it."""
    if last is not None and forest.calls[last].arrived < forest.calls[summary].arrived:
        return last
    return forest.links[summary].parent


def _call(graph: Graph, n: int, node: int) -> dict[str, Any]:
    call = graph.forest.calls[n]
    return {
        "node": node,
        "model": call.model_asked or graph.rollout.model,
        "sampling": dict(call.sampling_sent),
        "endpoint": _ENDPOINTS.get(call.dialect),
        "finish_reason": _ENDS.get(call.finish_reason or ""),
        "usage": {"prompt_tokens": graph.forest.n_prompt(n), "completion_tokens": graph.forest.n_sampled(n)},
        "time": _time(call),
    }


def _time(call: Call) -> dict[str, float]:
    """Return when a call began and ended, in seconds since 1970; 0.0 where that was not noted."""
    if not call.started_at:
        return {"start": 0.0, "end": 0.0}
    start = datetime.fromisoformat(call.started_at).timestamp()
    return {"start": start, "end": start + (call.ended_ms or 0.0) / 1000}


def _message(message: Message | None) -> dict[str, Any]:
    """Spell a message as one of verifiers' four; a role that it doesn't know is a user's."""
    if message is None:
        return {"role": "assistant", "content": None}
    role = message.role if message.role in _ROLES else "user"
    spelt: dict[str, Any] = {"role": role, "content": message.text}
    if role == "tool":
        spelt["tool_call_id"] = message.tool_call_id or ""
    if role == "assistant":
        spelt["content"] = message.text or None
        if message.reasoning:
            spelt["reasoning_content"] = message.reasoning
        if message.tool_calls:
            spelt["tool_calls"] = [
                {"id": call.id or f"call_{place}", "name": call.name, "arguments": call.arguments}
                for place, call in enumerate(message.tool_calls)
            ]
    return spelt


def _tools(names: Many[str]) -> list[dict[str, Any]]:
    """Return tools by their names, each once: a graph keeps no schemas."""
    return [{"type": "function", "name": name} for name in dict.fromkeys(names)]
