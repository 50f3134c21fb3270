"""What people and trainers say of a rollout from outside: its reward, and what a conversation was for."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.errors import ClientError
from capture.store.base import Entry, Store
from graph.graph import Graph
from graph.roles import overruling


class _Reward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reward: float | msgspec.UnsetType | None = msgspec.UNSET
    per_call: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    force: bool = False


class _Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    conversation: int
    role: str


async def reward(store: Store, name: str, body: Any) -> Entry | None:
    """Attach a reward to a rollout; return its entry as changed, None if it is gone.

    Raises `ClientError`: 422 `invalid_reward` or `unknown_call`; 409 `no_calls` for a number on a rollout
    without calls, unless `force`.
    """
    try:
        given = msgspec.convert(body, _Reward)
    except msgspec.ValidationError as error:
        raise ClientError(
            "invalid_reward",
            f"{error}.",
            status=422,
            hint='A reward looks like {"reward": 1.0, "per_call": {"<reply id>": 0.5}, "details": {}}.',
        ) from error
    calls = await store.calls(name)
    if isinstance(given.reward, float) and not calls and not given.force:
        raise ClientError(
            "no_calls",
            "This rollout made no calls: a number would train a policy on an agent that never reached it.",
            hint='See its findings; send null for "ungraded", or "force": true if you mean it.',
            status=409,
        )
    known = {key for call in calls if call.id for key in (call.id, f"{call.id}#{call.choice}")}
    unknown = sorted(set(given.per_call or ()) - known)
    if unknown:
        raise ClientError(
            "unknown_call",
            f"No call of this rollout has the id {', '.join(unknown[:5])}.",
            hint='The key is the reply\'s id as the agent saw it, or "id#choice".',
            status=422,
        )
    fields = {"reward": given.reward, "per_call_rewards": given.per_call, "reward_details": given.details}
    changes = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return await store.change(name, changes)


async def role(store: Store, graph: Graph, body: Any) -> Entry | None:
    """Overrule what the graph says a conversation was for; a later verdict takes an earlier one's place.

    Returns the entry as changed, None if the rollout is gone. Raises `ClientError`: 422 `invalid_role`, or
    `unknown_conversation`.
    """
    try:
        given = msgspec.convert(body, _Verdict)
        overruling(given.role)
    except (msgspec.ValidationError, ValueError) as error:
        raise ClientError(
            "invalid_role",
            f"{error}.",
            status=422,
            hint='A verdict looks like {"conversation": 0, "role": "main"}.',
        ) from error
    found = {each.n: each for each in graph.conversations}.get(given.conversation)
    if found is None:
        raise ClientError(
            "unknown_conversation",
            f"This rollout has no conversation {given.conversation}.",
            hint="GET …/graph has them, each with its number.",
            status=422,
        )
    # Kept by a call's number, which stays what it is while conversations are numbered anew as calls come.
    before = graph.rollout.roles
    roles = {root: word for root, word in before.items() if root not in found.calls}
    return await store.change(graph.rollout.id, {"roles": {**roles, found.root: given.role}})
