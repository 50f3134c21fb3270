"""A rollout's tree, for trainers with tree attention: `format=tree`.

Ids, parents and positions (int32), masks (uint8) and logprobs (float32, NaN for context, which JSON writes as null)
stay numpy arrays, of one length; `nodes` are stretches of them.
"""

from __future__ import annotations

from typing import Any

from graph.records import FORMAT_VERSION
from graph.tree import Tree


def to_json(tree: Tree) -> dict[str, Any]:
    """Return the form of a rollout's tree: plain values, but for the arrays."""
    return {
        "version": FORMAT_VERSION,
        "rollout": tree.rollout,
        "group": tree.group,
        "final": tree.final,
        "reward": tree.reward,
        "n_nodes": len(tree.nodes),
        "n_tokens": len(tree.input_ids),
        "n_trained_tokens": tree.n_trained_tokens,
        "logprobs_mode": tree.logprobs_mode,
        "input_ids": tree.input_ids,
        "parents": tree.parents,
        "position_ids": tree.position_ids,
        "loss_mask": tree.loss_mask,
        "logprobs": tree.logprobs,
        "nodes": [
            {
                "node": node.node,
                "parent": node.parent,
                "call": node.call,
                "kind": node.kind,
                "trained": node.trained,
                "start": node.start,
                "end": node.end,
                "weights": node.weights,
            }
            for node in tree.nodes
        ],
        "replies": [
            {
                "call": reply.call,
                "conversation": reply.conversation,
                "role": reply.role,
                "node": reply.node,
                "truncated": reply.truncated,
                "sampling": reply.sampling,
                "reward": reply.reward,
            }
            for reply in tree.replies
        ],
        "left_out": [{"call": left.call, "reason": left.reason} for left in tree.left_out],
        "findings": list(tree.findings),
    }
