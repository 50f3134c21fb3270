"""Where a conversation went on from a summary of itself.

An agent whose context is full asks for a summary and begins anew with it: as an assistant message (opencode), inside a
user message (pi, codex), or spliced from two replies (terminus-2). The summary was asked for in a call of its own
(opencode, pi) or inside the conversation (qwen-code, codex). Often the task's text is gone.

So a request continues a conversation by compaction when
- it has the conversation's tools: an equal list; or, where neither has any, its system text or its opening;
- it doesn't carry an earlier conversation's history in front of the summary (turns kept behind it change nothing);
- it carries the whole text of a reply, at least 16 characters, whose call had read that conversation: it belongs to it
  and nothing came after it there, or its prompt holds the conversation's last reply or last tool result; where the
  request keeps turns behind the summary, the last before those will do (pi shows its summariser no more).

Two things look like this and are not: a call that merely goes on behind a compaction, its opening unchanged; and a
subagent that was given another's report to read, whose opening stands in a tool call's arguments.

Only messages before the second sampled reply of a request are looked at, and each user message once in a rollout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from graph.messages import strings
from graph.quotes import Quotes
from graph.records import Call, Message, ToolCall
from graph.replies import Replies, texts

CARRIED_CHARS = 16
"""A reply this long stands in another call's text by more than chance."""

SHOWN_CHARS = 1_000
"""A longer tool result may be shown to a summariser cut short (by pi to 2,000 characters): this much of it will do."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """The last call of the conversation that went on, and the calls whose text was carried over."""

    parent: int
    carries: tuple[int, ...]


class _Front(msgspec.Struct, frozen=True, kw_only=True):
    """What the front of a request carries."""

    # Replies that can be summaries: before any history, in a user message or as a message without its own opening.
    summaries: tuple[int, ...]
    spoken: tuple[int, ...]
    # The user messages that carry them.
    carriers: tuple[str, ...]
    # Replies carried behind those in user messages, and as messages with their own opening.
    quoted: tuple[int, ...]
    said: tuple[int, ...]
    # The calls whose reply is the first that it carries as a message: behind a summary, the first that was kept.
    kept: tuple[int, ...]


class Trees:
    """The conversations so far, as far as a compaction has to know them."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        # Call → root of its tree; root → its calls in order of arrival; root → the tool lists that they had.
        self.root: dict[int, int] = {}
        self.members: dict[int, list[int]] = {}
        self._tools: dict[int, set[str | None]] = {}
        self._parent: dict[int, int] = {}
        # Strings in the arguments of each call's tool calls.
        self._arguments: list[tuple[int, tuple[str, ...]]] = []
        # Roots of trees that made a summary for another. They are not gone on with, though the next summary is asked
        # for with the same system text, and shows what was said since.
        self._spent: set[int] = set()
        # What was said, as far as it is long enough to be known again.
        self._quotes = Quotes()
        # User message → texts of replies that stood in it when it was first looked at.
        self._inside: dict[bytes, tuple[str, ...]] = {}

    def add(self, call: Call, parent: int | None, carries: Sequence[int] = ()) -> None:
        """Put a call into its parent's tree, or into one of its own; `carries` are the calls whose text it brings."""
        root = call.n if parent is None else self.root[parent]
        self.root[call.n] = root
        if parent is not None:
            self._parent[call.n] = parent
        self.members.setdefault(root, []).append(call.n)
        self._spent |= {self.root[n] for n in carries} - {root}
        self._tools.setdefault(root, set()).add(call.tools)
        if call.reply is None:
            return
        for said in texts(call.reply):
            if len(said) >= CARRIED_CHARS:
                self._quotes.add(said)
        if call.reply.tool_calls:
            found = (text for tool_call in call.reply.tool_calls for text in strings(tool_call.arguments))
            self._arguments.append((call.n, tuple(found)))

    def descends(self, n: int, above: int) -> bool:
        """Say if call `above` lies on the way from call `n` to its root, `n` itself included."""
        at: int | None = n
        while at is not None and at >= above:
            if at == above:
                return True
            at = self._parent.get(at)
        return False

    def compaction(self, call: Call, carried: int | None) -> Compaction | None:
        """Find the conversation that `call` continues by compaction; `carried` is the latest reply that it carries."""
        replies = self._replies
        if carried is not None and replies.opening(call.messages) == replies.opening_of(carried):
            return None
        front = self._front(call)
        if not (front.summaries or front.spoken) or self._commissioned(call, front.carriers):
            return None
        found: dict[int, tuple[int, int, Compaction]] = {}
        for root, members in self.members.items():
            if root in self._spent or not self._same_tools(call, root):
                continue
            usable = [n for n in members if replies.parent_by_message(n, call)]
            last = max(usable, key=lambda n: (replies.calls[n].ended or 0, n), default=None)
            if last is None or not (call.tools or self._same_start(call, root, last)):
                continue
            # A conversation's own reply, said again, is a turn that was kept.
            can_be = [*front.summaries, *(n for n in front.spoken if self.root[n] != root)]
            brought = {*can_be, *front.quoted, *front.said}
            kept = max((n for n in front.kept if self.root[n] == root), default=None)
            read = {n: self._had_read(n, root, kept) if self._comes_last(n, last, brought) else 0 for n in can_be}
            if score := max(read.values(), default=0):
                more = [*front.quoted, *(n for n in front.said if self.root[n] != root)]
                carries = {n for n in read if read[n]} | {n for n in more if self._had_read(n, root, kept)}
                continued = Compaction(parent=last, carries=tuple(sorted(carries)))
                found[root] = score, replies.calls[last].ended or 0, continued
        # Who reads a conversation reads its subagents' reports too: they are not what was summarised.
        own = [root for root in found if not any(self._started(other, root) for other in found if other != root)]
        return max((found[root] for root in own or found), key=lambda item: item[:2])[2] if found else None

    def _front(self, call: Call) -> _Front:
        replies = self._replies
        summaries: dict[str, list[int]] = {}
        spoken: list[int] = []
        carriers: list[str] = []
        quoted: dict[str, list[int]] = {}
        said: list[int] = []
        kept: list[int] = []
        history = 0
        for place, message in enumerate(call.messages):
            if message.role == "user":
                for text in self._texts_inside(message):
                    if by := [n for n in replies.saying(text) if replies.parent_by_message(n, call)]:
                        (quoted if history else summaries).setdefault(text, []).extend(by)
                        carriers += [] if history else [message.text]
            elif message.role == "assistant":
                same = replies.saying(message.text) if not message.tool_calls else ()
                by = [n for n in {*replies.saying_this(message), *same} if replies.parent_by_message(n, call)]
                if not by:
                    continue
                history += 1
                if history == 2:
                    break
                kept += by
                standing = [n for n in by if replies.opening_stands(n, call.messages, place)]
                said += standing
                if not standing and not message.tool_calls and len(message.text.strip()) >= CARRIED_CHARS:
                    spoken += by
        return _Front(
            summaries=_outermost(summaries),
            spoken=tuple(sorted(spoken)),
            carriers=tuple(carriers),
            quoted=_outermost(quoted),
            said=tuple(sorted(said)),
            kept=tuple(kept),
        )

    def _texts_inside(self, message: Message) -> tuple[str, ...]:
        found = self._inside.get(message.digest)
        if found is None:
            found = self._inside[message.digest] = self._quotes.inside(message.text)
        return found

    def _commissioned(self, call: Call, carriers: Sequence[str]) -> bool:
        """Say if one of the carrying messages was written by a tool call: it is a task, not a summary."""
        if not carriers:
            return False
        return any(
            carrier.strip() in argument
            for n, arguments in self._arguments
            if self._replies.parent_by_message(n, call)
            for argument in arguments
            for carrier in carriers
        )

    def _started(self, root: int, other: int) -> bool:
        """Say if a tool call of the tree of `root` started the tree of `other`: its task stands in the arguments."""
        replies = self._replies
        opening = replies.opening_of(other)
        task = next((m.text.strip() for m in replies.calls[other].messages if opening and m.digest == opening[-1]), "")
        return bool(task) and any(
            self.root[n] == root
            and replies.parent_by_message(n, replies.calls[other])
            and any(task in argument for argument in arguments)
            for n, arguments in self._arguments
        )

    def _same_tools(self, call: Call, root: int) -> bool:
        tools = self._tools[root]
        return call.tools in tools if call.tools is not None else tools == {None}

    def _same_start(self, call: Call, root: int, last: int) -> bool:
        """Say if a request has the system text or the opening of a conversation, neither having tools."""
        replies = self._replies
        system = _system(call)
        opening = replies.opening_of(root)
        return (bool(system) and system == _system(replies.calls[last])) or (
            bool(opening) and any(message.digest == opening[-1] for message in call.messages)
        )

    def _comes_last(self, n: int, last: int, brought: Collection[int]) -> bool:
        """Say if nothing came after call `n` in the tree that `last` ends, but calls whose text is `brought`."""
        if self.root[n] != self.root[last]:
            return self._replies.calls[last].arrived < (self._replies.calls[n].ended or 0)
        at: int | None = last
        while at is not None and at != n and at in brought:
            at = self._parent.get(at)
        return at == n

    def _had_read(self, n: int, root: int, kept: int | None) -> int:
        """Say if call `n` had read the tree of `root`: 0, or a number that grows with the evidence.

        Where the reply of call `kept` is still there behind the summary, it's enough to have read what came before it.
        """
        replies = self._replies
        call = replies.calls[n]
        if self.root[n] == root:
            return _MESSAGE if n != root else 0
        if self._started(root, self.root[n]):
            # A subagent: its task may quote what the conversation read, and its report is no summary.
            return 0
        before = max(
            (m for m in self.members[root] if replies.parent_by_message(m, call)),
            key=lambda m: (replies.calls[m].ended or 0, m),
            default=None,
        )
        if before is None:
            return 0
        evidence = _holds(call.messages, replies.calls[before].reply, replies.calls[before])
        if evidence or kept is None:
            return evidence
        if (parent := self._parent.get(kept)) is not None:
            return _holds(call.messages, replies.calls[parent].reply, replies.calls[kept])
        # Every turn was kept (qwen-code does it where the first is a long one): what came before is the opening.
        opening = replies.opening_of(kept)
        asked = next((m for m in replies.calls[kept].messages if opening and m.digest == opening[-1]), None)
        return len(asked.text.strip()) if asked is not None and _stands(asked.text.strip(), call.messages) else 0


_BORDER = re.compile(r"<[^<>]*>|\n")

_MESSAGE = 2**40
"""Evidence of a whole message, which outweighs text of any length."""


def _outermost(carried: dict[str, list[int]]) -> tuple[int, ...]:
    """Return the calls whose text is carried, without those that only stand in the text of another."""
    return tuple(
        sorted({n for text, by in carried.items() if not any(text != o and text in o for o in carried) for n in by})
    )


def _system(call: Call) -> str:
    return "\n".join(message.text for message in call.messages if message.role == "system")


def _holds(messages: Sequence[Message], reply: Message | None, reader: Call) -> int:
    """Say if `messages` hold a reply, or the last tool result that call `reader` read, as a message or as text."""
    result = next((message for message in reversed(reader.messages) if message.role == "tool"), None)
    digests = {message.digest for message in messages}
    if any(message is not None and message.digest in digests for message in (reply, result)):
        return _MESSAGE
    texts = [message.text.strip() for message in (reply, result) if message is not None]
    if result is not None:
        texts[-1] = texts[-1][:SHOWN_CHARS]
    evidence = [len(text) for text in texts if text and _stands(text, messages)]
    calls = reply.tool_calls if reply is not None else ()
    evidence += [len(c.canonical) for c in calls if any(_contain(messages, spelled) for spelled in spellings(c))]
    return max(evidence, default=0)


def _contain(messages: Sequence[Message], text: str) -> bool:
    """Say if a text stands anywhere in what was read. System texts aren't read but obeyed."""
    return any(text in message.text for message in messages if message.role != "system")


def _stands(text: str, messages: Sequence[Message]) -> bool:
    """Say if a text stands in messages by more than chance: a short one as a line, in a tag, or behind a label."""
    if len(text) >= CARRIED_CHARS:
        return _contain(messages, text)
    pieces = (
        piece.strip() for m in messages if m.role != "system" and text in m.text for piece in _BORDER.split(m.text)
    )
    return any(piece.endswith(text) and piece[: -len(text)].rstrip()[-1:] in ("", ":") for piece in pieces)


def spellings(tool_call: ToolCall) -> Iterator[str]:
    """Yield the arguments of a tool call as a transcript may spell them; nothing where there are none to speak of."""
    if tool_call.canonical in ("", "{}", "[]", "null"):
        return
    yield tool_call.arguments
    yield tool_call.canonical
    try:
        value = json.loads(tool_call.arguments)
    except (ValueError, RecursionError):
        return
    for separators in ((",", ":"), (", ", ": ")):
        for ascii_only in (False, True):
            yield json.dumps(value, separators=separators, ensure_ascii=ascii_only)
    if isinstance(value, dict):
        # As pi shows them: name="text", one after another, the names unquoted.
        yield ", ".join(f"{name}={json.dumps(each, ensure_ascii=False)}" for name, each in value.items())
