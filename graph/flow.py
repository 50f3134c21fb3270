"""What each conversation read, and where its replies went: the facts that verdicts are made of.

Rules:
- A conversation is a tree of links, with the tries of its root that were given up for it.
- Text is compared without the white space at its ends. A short text (under `CHARS` characters) stands in another only
  as a whole line or a whole tag's content there, since it stands anywhere by chance; a longer one anywhere.
- Order is `arrived` and `ended`. A conversation can only have been started by a reply that its agent had then: one that
  had ended before it arrived, or a stream that had begun, since codex runs a tool call once its item is done, and the
  rest of the reply is still being sampled.

Costs: each message is looked at once where it is new (a tool result behind the last assistant message of a request),
so facts are linear in what the calls add, and not in what their prompts repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from graph.forest import Forest
from graph.messages import strings
from graph.records import Call, Message

CHARS = 16
"""A text this long stands in another by more than chance (the same bound as a compaction's)."""

_BORDER = re.compile(r"<[^<>]*>|\n")
_BLOCK_IN_FRONT = re.compile(r"\s*<([\w-]+)>.*?</\1>\s*", re.DOTALL)
_TAG_BEHIND = re.compile(r"</([\w-]+)>\s*\Z")


def stands(text: str, within: str) -> bool:
    """Say whether a text stands in another, by more than chance."""
    text, within = text.strip(), within.strip()
    if not text or len(text) > len(within):
        return False
    if text == within:
        return True
    if len(text) >= CHARS:
        return text in within
    return text in within and any(part.strip() == text for part in _BORDER.split(within))


def quotes(within: str, text: str) -> bool:
    """Say whether a text quotes another: like `stands`, but a short one may be set off by anything that is no word."""
    text = text.strip()
    if stands(text, within):
        return True
    return bool(text) and text in within and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", within) is not None


def bare(text: str) -> str:
    """Return a text without the tagged blocks (`<reminder>…</reminder>`) at its two ends: what agents put around a
    prompt within the same message. A text that is nothing else stays as it is."""
    left = text
    while (block := _BLOCK_IN_FRONT.match(left)) is not None:
        left = left[block.end() :]
    # A block ends where the text does, so it is looked for from the last place where its tag opens.
    while (tag := _TAG_BEHIND.search(left)) is not None:
        at = left.rfind(f"<{tag[1]}>")
        if at < 0:
            break
        left = left[:at]
    return left.strip() or text.strip()


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a delivered reply."""

    call: int
    conversation: int
    # The earliest that its agent can have acted on it: the end of the reply, of a stream the request's arrival.
    shown: int
    ended: int
    id: str | None
    # The strings among its arguments; the whole text where it isn't JSON.
    values: tuple[str, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One tool result, where it was first sent."""

    call: int
    parent: int | None
    conversation: int
    arrived: int
    id: str | None
    text: str


class Flow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The facts of one conversation."""

    n: int
    root: int
    calls: tuple[int, ...]
    # Roots that were given up for `root`.
    given_up: tuple[int, ...]
    arrived: int
    # Texts of the user messages before the first reply that was sampled, and the digest of the last of them.
    opening: tuple[str, ...]
    key: bytes
    # What the last of them may have been for whoever wrote it: all of it, or what is left without the blocks that the
    # agent put around it (claude-code's reminders). None where it is empty.
    asks: tuple[str, ...]
    # Text and end of its latest reply.
    final: str
    final_ended: int | None
    # Another request goes on from one of its replies; being carried by a compaction does not count.
    goes_on: bool
    uses_tools: bool
    # Continuations of other conversations that carry its text.
    carried_by: tuple[int, ...]
    # Calls, and the characters of the longest prompt: what breaks the last tie.
    size: tuple[int, int]


class Flows:
    """The facts of all conversations, in the order of their roots' arrival."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.flows: tuple[Flow, ...] = tuple(_flows(forest))
        self.of: dict[int, int] = {n: flow.n for flow in self.flows for n in flow.calls}
        self.uses: tuple[ToolUse, ...] = tuple(self._uses())
        self.results: tuple[Result, ...] = tuple(self._results())

    def _uses(self) -> Iterator[ToolUse]:
        for n, conversation in sorted(self.of.items()):
            call = self.forest.calls[n]
            if call.reply is None or call.ended is None or self.forest.delivered(n) is False:
                continue
            for tool in call.reply.tool_calls:
                yield ToolUse(
                    call=n,
                    conversation=conversation,
                    shown=call.arrived if call.streamed else call.ended,
                    ended=call.ended,
                    id=tool.id,
                    values=tuple(text.strip() for text in strings(tool.canonical)),
                )

    def _results(self) -> Iterator[Result]:
        for n, conversation in sorted(self.of.items()):
            call = self.forest.calls[n]
            for message in reversed(call.messages):
                if message.role == "assistant":
                    break
                if message.role == "tool":
                    yield Result(
                        call=n,
                        parent=self.forest.links[n].parent,
                        conversation=conversation,
                        arrived=call.arrived,
                        id=message.tool_call_id,
                        text=message.text,
                    )

    def result_of(self, use: ToolUse, *, holding: str, after: int) -> Result | None:
        """Return the first result of a tool call that arrived after a moment and holds a text."""
        for result in self.results:
            if result.conversation != use.conversation or result.arrived <= after:
                continue
            same = result.parent == use.call if use.id is None or result.id is None else result.id == use.id
            if same and stands(holding, result.text):
                return result
        return None


def _flows(forest: Forest) -> Iterator[Flow]:
    kept_for = {root: _kept(forest, root) for root in forest.roots}
    members: dict[int, set[int]] = {}
    for tree, root in zip(forest.trees, forest.roots, strict=True):
        members.setdefault(kept_for[root], set()).update(tree)
    replies: dict[bytes, int] = {}
    for call in forest.calls.values():
        if call.reply is not None and call.ended is not None:
            replies[call.reply.digest] = min(call.ended, replies.get(call.reply.digest, call.ended))
    carried: dict[int, list[int]] = {}
    for n, link in forest.links.items():
        for source in link.carries:
            carried.setdefault(source, []).append(n)
    for n, root in enumerate(sorted(members, key=lambda root: forest.calls[root].arrived)):
        calls = tuple(sorted(members[root]))
        first = forest.calls[root]
        opening = _opening(first, replies)
        ended = [call for m in calls if (call := forest.calls[m]).status == "complete" and call.reply is not None]
        last = max(ended, key=lambda call: call.ended or 0, default=None)
        yield Flow(
            n=n,
            root=root,
            calls=calls,
            given_up=tuple(m for m in calls if m != root and forest.links[m].kind == "root"),
            arrived=first.arrived,
            opening=tuple(message.text for message in opening),
            key=opening[-1].digest if opening else b"",
            asks=_asks(opening[-1].text) if opening else (),
            final=last.reply.text if last is not None and last.reply is not None else "",
            final_ended=last.ended if last is not None else None,
            goes_on=any(forest.links[m].kind in {"exact", "drift"} or m in forest.brought_back for m in calls),
            uses_tools=any((reply := forest.calls[m].reply) is not None and reply.tool_calls for m in calls),
            carried_by=tuple(sorted(by for m in calls for by in carried.get(m, ()) if by not in members[root])),
            size=(len(calls), max(sum(len(message.text) for message in forest.calls[m].messages) for m in calls)),
        )


def _asks(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(asked for asked in (text.strip(), bare(text)) if asked))


def _kept(forest: Forest, root: int) -> int:
    """Return the root that a discarded one was given up for; itself for all others."""
    if root not in forest.discarded or forest.children(root):
        return root
    for fork in forest.forks:
        if fork.at is None and root in fork.children and fork.kept is not None:
            return fork.kept
    return root


def _opening(call: Call, replies: Mapping[bytes, int]) -> list[Message]:
    opening = []
    for message in call.messages:
        if message.role == "assistant" and replies.get(message.digest, call.arrived) < call.arrived:
            break
        if message.role == "user":
            opening.append(message)
    return opening
