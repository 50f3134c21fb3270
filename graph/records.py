"""The records that the graph is made of: frozen structs, and nothing that acts.

A rollout's record, its calls and its notices go in (`Rollout`, `Call`, `Notice`); a forest comes out
(`graph.forest`). Everything here is a value: no method opens, waits or reads a clock. Order in time is `arrived` and
`ended`, two readings of one counter that the store gives; the timestamps are for people.

Token ids are one-dimensional int32 arrays, logprobs float32 arrays of the same length as the sampled ids, with NaN
where the engine gave none for a token. Where the engine gave no array at all the field is None, never an empty array:
an absent half is unknown, not empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

FORMAT_VERSION = 1
"""Version of the graph's JSON form."""

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

Status = Literal["complete", "aborted", "error", "stopped", "running"]
LinkKind = Literal["root", "exact", "drift", "compaction"]
ForkKind = Literal["retry", "resample", "branch"]
Role = Literal["main", "subagent", "auxiliary"]
AuxiliaryKind = Literal["title", "summary", "probe", "other"]
Level = Literal["info", "warn", "error"]
LogprobsMode = Literal["raw", "processed", "unknown"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One tool call of an assistant message."""

    # As the engine or the agent named it; None where a dialect has no ids.
    id: str | None = None
    name: str
    # The arguments as they stood on the wire.
    arguments: str
    # The same as parsed JSON with sorted keys and no spaces; the text itself, stripped, where it isn't JSON.
    canonical: str


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message in canonical form (see `graph.messages`, which makes it).

    `digest` covers role, text, tool names and canonical arguments, and media; not ids and not reasoning, which agents
    drop or rewrite.
    """

    # "system" (developer too), "user", "assistant" or "tool"; another word stays as it is.
    role: str
    # Text parts joined; "" for empty content in all its spellings.
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    # On a tool message: the call that it answers.
    tool_call_id: str | None = None
    # Digests of images, audio and files, in their order.
    media: tuple[str, ...] = ()
    # 16 bytes.
    digest: bytes


class WeightSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of sampled ids drawn from one version of the weights; positions count sampled ids, end exclusive."""

    version: str | None
    start: int
    end: int


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """The policy version at a call's start and end, and by span where the engine says so; None where unknown."""

    start: str | None = None
    end: str | None = None
    spans: tuple[WeightSpan, ...] = ()


class Call(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One choice of one model call, as captured.

    A request for several choices makes one `Call` for each, with the same `id` and the same prompt, and numbers of its
    own.
    """

    # Order of arrival in the rollout; names the call everywhere.
    n: int
    choice: int = 0
    # The id of the reply that the agent saw; None while none came.
    id: str | None = None
    # How the engine's side ended.
    status: Status
    # True: every byte with the reply's end was handed over and the client was still there; None: not known.
    delivered: bool | None = None
    # Readings of the rollout's counter at the request's arrival and at the reply's end (None while running).
    arrived: int
    ended: int | None = None

    dialect: str = "chat"
    streamed: bool = False
    engine: str | None = None
    model_asked: str | None = None
    finish_reason: str | None = None

    messages: Sequence[Message] = ()
    # Digest of the canonical tool list; None when the request has no tools.
    tools: str | None = None
    tool_names: tuple[str, ...] = ()
    # What the call produced; None when nothing came.
    reply: Message | None = None
    # Digest of the request's canonical body: equal for a retry whose keys were shuffled.
    body: str | None = None

    prompt_ids: IntArray | None = None
    sampled_ids: IntArray | None = None
    logprobs: FloatArray | None = None
    # The engine's own counts (usage), of the prompt and of this choice; None where not given or not attributable.
    usage_prompt: int | None = None
    usage_sampled: int | None = None

    # Sampling values as the client asked and as they were sent; None where unseen, never a guess.
    sampling_asked: dict[str, Any] = {}
    sampling_sent: dict[str, Any] = {}
    # The reply was drawn under a constraint that a trainer can't rebuild; says which fields.
    constrained: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    # Its prompt was given as ids, its parent's in front: how many of those plain serving would not have kept. None
    # where the engine rendered the prompt itself.
    pinned: int | None = None
    weights: Weights = Weights()
    # Headers and fields that claim a role, parent, session or label: shown, never deciding.
    hints: dict[str, str] = {}

    # UTC, ISO 8601 with milliseconds.
    started_at: str = ""
    # Milliseconds from `started_at`.
    queued_ms: float | None = None
    first_token_ms: float | None = None
    ended_ms: float | None = None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that only capture can know (a refused field, a lost tunnel); becomes a finding of the same code."""

    code: str
    at: str = ""
    calls: tuple[int, ...] = ()
    data: dict[str, Any] = {}


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that ended a rollout, the call at which it did, and how many replies said so."""

    limit: str
    at_call: int
    stops: int


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout's record, as the graph reads it and the control plane shows it."""

    id: str
    group: str | None = None
    labels: dict[str, str] = {}
    state: Literal["open", "closed"] = "open"
    tier: Literal["train", "eval"] = "train"
    tier_reason: str = ""
    model: str | None = None
    logprobs_mode: LogprobsMode = "unknown"
    incomplete: bool = False
    reward: float | None = None
    per_call_rewards: dict[str, float] = {}
    reward_details: dict[str, Any] = {}
    stopped: Stop | None = None
    # The task's text given at registration; None when none was.
    task: str | None = None
    # Sampling values that the rollout pins.
    pins: dict[str, Any] = {}
    limits: dict[str, float] = {}
    # A person's verdicts: conversation's root call → role.
    roles: dict[int, str] = {}
    created_at: str = ""
    first_call_at: str | None = None
    last_call_at: str | None = None
    closed_at: str | None = None


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Where a child's prompt parts from its parent's prompt and sampled ids.

    `at` is the length of the common prefix; `tokens` = parent's prompt + sampled - `at`.
    """

    tokens: int
    at: int
    where: Literal["prompt", "sampled"]
    cause: str


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """How a call hangs on an earlier one. `n_shared`: tokens shared with the parent's prompt and sampled ids."""

    kind: LinkKind
    parent: int | None = None
    # A compaction's: the calls whose text it brings.
    carries: tuple[int, ...] = ()
    n_shared: int = 0
    drift: Drift | None = None


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A call with two or more continuations, or (at None) several roots of one prompt; `kept` went on."""

    at: int | None
    kind: ForkKind
    children: tuple[int, ...]
    kept: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Why a verdict was given: the rule's name, the calls that show it, a sentence for a person."""

    rule: str
    calls: tuple[int, ...] = ()
    detail: str = ""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A root and all that continues it, with what it was for."""

    n: int
    root: int
    role: Role
    kind: AuxiliaryKind | None = None
    trainable: bool = False
    # A subagent's: the call whose tool call started it.
    parent_call: int | None = None
    calls: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One named, levelled statement about a rollout, with the calls that show it."""

    code: str
    level: Level
    calls: tuple[int, ...] = ()
    message: str = ""
    data: dict[str, Any] = {}
