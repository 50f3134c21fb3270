"""A rollout that a real agent has played, as it looks from outside when it is over, and what is true of any.

What each agent's tests add is what the agent made each call for, taken from its requests and its own files, never from
the forest: `Labels` of tests.graph.corpus, the form that kept rollouts have too.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tests.graph import corpus
from tests.graph.corpus import ConversationLabel, Labels
from tests.house import House
from tests.real import keep_forest


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A closed rollout: the control plane's answers."""

    graph: dict[str, Any]
    # Whole calls by number, with ids and what passed.
    calls: dict[int, dict[str, Any]]
    sequences: dict[str, Any]

    def where(self, holds: Callable[[dict[str, Any]], bool]) -> list[int]:
        """Return the calls of which something holds, in order of arrival."""
        return [n for n, call in self.calls.items() if holds(call)]

    def request(self, n: int) -> dict[str, Any]:
        """Return what the agent asked in a call."""
        found: dict[str, Any] = self.calls[n]["request"]
        return found

    def reply(self, n: int) -> dict[str, Any]:
        """Return the message that a chat call produced."""
        (choice,) = self.calls[n]["reply"]["choices"]
        message: dict[str, Any] = choice["message"]
        return message

    def tools(self, n: int) -> list[str]:
        """Return the names of the tools that a chat call's reply called."""
        return [tool["function"]["name"] for tool in self.reply(n).get("tool_calls") or ()]

    @property
    def findings(self) -> dict[str, str]:
        """Code → level."""
        return {finding["code"]: finding["level"] for finding in self.graph["findings"]}

    @property
    def causes(self) -> dict[int, str]:
        """Call → why it drifted."""
        return {n: call["drift"]["cause"] for n, call in self.calls.items() if call["drift"] is not None}

    @property
    def verdict(self) -> Labels:
        """The forest's word, in the form of labels."""
        return keep_forest.verdict(self.graph)


async def over(home: House, rollout: dict[str, Any]) -> Played:
    """Close a rollout and return all of it."""
    await home.idle(rollout)
    closed = await home.control("POST", f"/rollouts/{rollout['id']}/close", json={"sequences": {"format": "native"}})
    graph = await home.graph(rollout)
    return Played(
        graph=graph,
        calls={call["n"]: await home.call(rollout, call["n"]) for call in graph["calls"]},
        sequences=closed["sequences"],
    )


def keep(played: Played, truth: Labels, *, about: str) -> None:
    """Write a rollout to the file that TREERING_KEEP_FOREST names, where it names one: by hand, for tests/corpus."""
    if "TREERING_KEEP_FOREST" in os.environ:
        record = keep_forest.make(played.graph["rollout"], list(played.calls.values()), labels=truth, about=about)
        corpus.write(record, Path(os.environ["TREERING_KEEP_FOREST"]))


def labels(*conversations: ConversationLabel, compactions: Mapping[int, Sequence[int]] | None = None) -> Labels:
    """Return labels of conversations each of which is one chain of calls."""
    return Labels(
        conversations=tuple(sorted(conversations, key=lambda found: found.calls)),
        parents={after: before for found in conversations for before, after in pairwise(found.calls)},
        compactions={n: tuple(carries) for n, carries in (compactions or {}).items()},
    )


def label(
    role: str, calls: Sequence[int], *, kind: str | None = None, parent_call: int | None = None
) -> ConversationLabel:
    """Return the label of one conversation."""
    return ConversationLabel(calls=tuple(calls), role=role, kind=kind, parent_call=parent_call)


# -- true of any -------------------------------------------------------------------------------------------------------


def check_ids(played: Played) -> None:
    """Hold complete calls to their own arrays: a logprob for each sampled id, links and drift as the ids have it."""
    for call in played.calls.values():
        if call["status"] != "complete":
            continue
        assert len(call["prompt_ids"]) == call["n_prompt"] == call["usage"]["prompt_tokens"]
        assert len(call["sampled_ids"]) == call["n_sampled"] == call["usage"]["completion_tokens"]
        assert len(call["logprobs"]) == call["n_sampled"]
        assert None not in call["logprobs"]
        if call["parent"] is None:
            continue
        parent = played.calls[call["parent"]]
        had, prompt = parent["prompt_ids"] + parent["sampled_ids"], call["prompt_ids"]
        shared = _common(had, prompt)
        assert call["n_shared"] == shared
        assert (call["link"] == "exact") == (shared == len(had))
        if call["link"] == "drift":
            assert (call["drift"]["at"], call["drift"]["tokens"]) == (shared, len(had) - shared)


def check_training(played: Played, trained: Sequence[int]) -> None:
    """Hold the sequences to the calls: every token that `trained` sampled is trained once, and nothing else is."""
    found: list[int] = []
    for row in played.sequences["sequences"]:
        for span in row["spans"]:
            mask = row["loss_mask"][span["start"] : span["end"]]
            assert len(set(mask)) == 1
            if not mask[0]:
                continue
            call = played.calls[span["call"]]
            assert row["input_ids"][: span["start"]] == call["prompt_ids"]
            assert row["input_ids"][span["start"] : span["end"]] == call["sampled_ids"]
            assert row["logprobs"][span["start"] : span["end"]] == call["logprobs"]
            found.append(span["call"])
    assert sorted(found) == sorted(trained)
    assert played.sequences["n_trained_tokens"] == sum(played.calls[n]["n_sampled"] for n in trained)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
