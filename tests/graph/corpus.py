"""Kept rollouts: what the graph read of a rollout of a real agent, and what is true of it.

A file of tests/corpus holds one, made by `tests.real.keep_forest`. Its labels are not the graph's word: they say what
the agent made each call for. Texts are shortened, in such a way that what stood in another text still does; ids are
all there. A prompt is written as what it adds to the earlier call that it shares the most with; each message once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from graph import messages as canonical
from graph.graph import Graph, read
from graph.records import Call, Rollout

FOLDER = Path(__file__).parent.parent / "corpus"

VERSION = 1

# A rollout has to stay small beside the code.
MOST_BYTES = 400_000


class ConversationLabel(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation was for, in truth; its calls in order of arrival."""

    calls: tuple[int, ...]
    role: str
    kind: str | None = None
    parent_call: int | None = None


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of a rollout."""

    conversations: tuple[ConversationLabel, ...]
    # Call → the call that it goes on from; calls that go on from none aren't here.
    parents: dict[int, int]
    # Call that goes on behind a compaction → the calls whose text it brings.
    compactions: dict[int, tuple[int, ...]] = {}
    # Calls of a conversation that its agent dropped and nobody went on with.
    discarded: tuple[int, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt: the first `shared` ids of the prompt and sampled ids of call `of`, and then `tail`."""

    of: int | None = None
    shared: int = 0
    tail: list[int]


class KeptCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of the record; `messages` and `reply` are places in the record's list of messages."""

    n: int
    choice: int = 0
    id: str | None = None
    status: str = "complete"
    delivered: bool | None = True
    arrived: int
    ended: int | None = None
    dialect: str = "chat"
    streamed: bool = True
    model_asked: str | None = None
    finish_reason: str | None = None
    messages: tuple[int, ...]
    reply: int | None = None
    tools: str | None = None
    tool_names: tuple[str, ...] = ()
    # Digest of the request's canonical body.
    body: str
    usage_prompt: int | None = None
    usage_sampled: int | None = None
    sampling_asked: dict[str, Any] = {}
    sampling_sent: dict[str, Any] = {}
    constrained: bool = False
    hints: dict[str, str] = {}
    prompt: Prompt | None = None
    sampled_ids: list[int] | None = None
    logprobs: list[float | None] | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    version: int = VERSION
    about: str
    tier: str
    logprobs_mode: str
    task: str | None = None
    labels: Labels
    # Chat messages, requests' and replies', each once.
    messages: list[dict[str, Any]]
    calls: list[KeptCall]


def load(path: Path) -> Record:
    """Read a file. Raises msgspec.ValidationError where it is something else, ValueError for another version."""
    record = msgspec.json.decode(path.read_bytes(), type=Record)
    if record.version != VERSION:
        raise ValueError(f"{path} has version {record.version}; this reads {VERSION}")
    return record


def rollout_of(record: Record) -> Rollout:
    """Return the rollout's record: closed, without limits."""
    told = {"tier": record.tier, "logprobs_mode": record.logprobs_mode, "task": record.task}
    return msgspec.convert({"id": "kept", "state": "closed", **told}, Rollout)


def calls_of(record: Record) -> list[Call]:
    """Return the calls as the graph reads them, in order of arrival."""
    messages = [canonical.from_chat(message) for message in record.messages]
    found: list[Call] = []
    whole: dict[int, list[int]] = {}
    for kept in record.calls:
        prompt = None
        if kept.prompt is not None:
            before = [] if kept.prompt.of is None else whole[kept.prompt.of][: kept.prompt.shared]
            prompt = before + kept.prompt.tail
            whole[kept.n] = prompt + (kept.sampled_ids or [])
        told = {
            name: getattr(kept, name)
            for name in KeptCall.__struct_fields__
            if name not in ("messages", "reply", "constrained", "prompt", "sampled_ids", "logprobs")
        }
        found.append(
            Call(
                **told,
                messages=tuple(messages[place] for place in kept.messages),
                reply=None if kept.reply is None else messages[kept.reply],
                constrained=("kept",) if kept.constrained else (),
                prompt_ids=None if prompt is None else np.array(prompt, np.int32),
                sampled_ids=None if kept.sampled_ids is None else np.array(kept.sampled_ids, np.int32),
                logprobs=None if kept.logprobs is None else np.array(kept.logprobs, np.float32),
            )
        )
    return found


def graph_of(record: Record) -> Graph:
    """Read the record's graph."""
    return read(rollout_of(record), calls_of(record))


def write(record: Record, path: Path) -> None:
    """Write a record, a line a message and a call. Raises ValueError where it would be too large to keep."""
    encode = msgspec.json.encode
    head = {name: getattr(record, name) for name in ("version", "about", "tier", "logprobs_mode", "task", "labels")}
    lines = [f'  "{name}": {encode(value).decode()},' for name, value in head.items()]
    for name, items in (("messages", record.messages), ("calls", record.calls)):
        lines += [f'  "{name}": [', ",\n".join(f"    {encode(item).decode()}" for item in items)]
        lines += ["  ]," if name == "messages" else "  ]"]
    text = "\n".join(["{", *lines, "}", ""])
    if len(text.encode()) > MOST_BYTES:
        raise ValueError(f"the record has {len(text.encode())} bytes, over {MOST_BYTES}")
    path.write_text(text)
