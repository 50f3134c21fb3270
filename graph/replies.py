"""The replies of a rollout so far, found again in later requests.

An agent sends a reply back as an assistant message, in another spelling often enough. Tool-call ids, which all but one
agent keep, are the surest key; the canonical digest is the other. Engines may use an id twice in a rollout, and greedy
policies say the same thing twice, so what is found is ranked: equal in canonical form, at the place where its call's
own messages end, latest ended.

Not every assistant message was sampled: agents put in greetings of their own. Hence the *opening* of a request is its
user messages before the first message that is a reply seen before. Agents put boilerplate in front, so the last message
of the opening tells conversations apart, and a reply only counts as carried where its call's still stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from graph.records import Call, Message
from graph.tokens import Trie

_CLOSING_TAG = re.compile(r"</([\w-]+)>\Z")


class Replies:
    """What was said so far in a rollout. Calls are added in order of arrival, complete and aborted ones alone."""

    def __init__(self, tokens: Trie) -> None:
        self._tokens = tokens
        self.calls: dict[int, Call] = {}
        # Calls that a later prompt proves used.
        self.proved: set[int] = set()
        self._by_digest: dict[bytes, list[int]] = {}
        self._by_tool_call: dict[str, list[int]] = {}
        self._by_text: dict[str, list[int]] = {}
        self._openings: dict[int, tuple[bytes, ...]] = {}
        # Calls whose reply never reached its end at the agent, and was not yet seen in a request.
        self._broken: set[int] = set()

    def add(self, call: Call) -> None:
        """Take in a call and its reply."""
        self.calls[call.n] = call
        self._openings[call.n] = self.opening(call.messages)
        reply = call.reply
        if reply is None:
            return
        self._by_digest.setdefault(reply.digest, []).append(call.n)
        for tool_call in reply.tool_calls:
            if tool_call.id is not None:
                self._by_tool_call.setdefault(tool_call.id, []).append(call.n)
        for said in texts(reply):
            self._by_text.setdefault(said, []).append(call.n)
        if call.delivered is False and (reply.text.strip() or reply.tool_calls or reply.reasoning):
            self._broken.add(call.n)

    def saying(self, text: str) -> Sequence[int]:
        """Return the calls whose reply is `text`, or a block with it at the end, white space around it aside."""
        return self._by_text.get(text.strip(), ())

    def opening(self, messages: Sequence[Message]) -> tuple[bytes, ...]:
        """Return the digests of the user messages before the first that was sampled, as far as is known now."""
        found = []
        for message in messages:
            if message.role == "user":
                found.append(message.digest)
            elif message.role == "assistant" and self.sampled(message):
                break
        return tuple(found)

    def opening_of(self, n: int) -> tuple[bytes, ...]:
        """Return the opening of a call, as it was known when the call arrived."""
        return self._openings[n]

    def sampled(self, message: Message) -> bool:
        """Say if a message is one of the replies."""
        return message.digest in self._by_digest or any(
            tool_call.id in self._by_tool_call for tool_call in message.tool_calls if tool_call.id is not None
        )

    def saying_this(self, message: Message) -> Sequence[int]:
        """Return the calls whose reply an assistant message is."""
        by_id = [n for call in message.tool_calls if call.id is not None for n in self._by_tool_call.get(call.id, ())]
        by_digest = self._by_digest.get(message.digest, ())
        return sorted({*by_id, *by_digest}) if by_id else by_digest

    def delivered(self, n: int) -> bool | None:
        """Say if the agent had the reply of call `n`, as far as is known now."""
        return True if n in self.proved else self.calls[n].delivered

    def usable(self, n: int, call: Call) -> bool:
        """Say if call `n` had ended before `call` arrived, with a reply that can be gone on from.

        That takes sampled ids where there are any; half a token bundle is worth nothing.
        """
        before = self.calls[n]
        if before.ended is None or before.ended >= call.arrived:
            return False
        if before.sampled_ids is None:
            return n not in self._tokens
        return n in self._tokens and len(before.sampled_ids) > 0

    def parent_by_message(self, n: int, call: Call) -> bool:
        """Say if `call` can hang on call `n` by what it carries: `usable`, and not known to be undelivered."""
        return self.delivered(n) is not False and self.usable(n, call)

    def carried(self, call: Call, expected: int | None = None) -> tuple[int, int] | None:
        """Return the latest call whose reply a request carries, and the place of that message; None without any.

        `expected` is taken at once where it is such a call, at its place: of several equal replies it is the one.
        """
        messages = call.messages
        for place in range(len(messages) - 1, -1, -1):
            message = messages[place]
            if message.role != "assistant":
                continue
            found = self.saying_this(message)
            if expected is not None and self._ends_at(expected, message, place):
                return expected, place
            found = [n for n in found if self.parent_by_message(n, call) and self.opening_stands(n, messages, place)]
            if found:
                # Ranking reads the messages before this one, so it waits until there is a choice.
                best = found[0] if len(found) == 1 else max(found, key=lambda n: self._rank(n, messages, place))
                return best, place
        return None

    def brought_back(self, call: Call) -> list[int]:
        """Return the calls whose broken reply a request brings, as an assistant message behind their own messages.

        An agent that was stopped in the middle of a reply keeps what it had of it, the beginning, and sends it along
        with what its user says next (opencode 1.18 does). No ids prove it, so the call is no parent; but it was used.
        Each call is returned once.
        """
        found = [n for n in sorted(self._broken) if self._brings_back(call, n)]
        self._broken -= {*found, *self.proved}
        return found

    def _brings_back(self, call: Call, n: int) -> bool:
        before, place = self.calls[n], len(self.calls[n].messages)
        if not (place < len(call.messages) and self.usable(n, call) and self.opening_stands(n, call.messages, place)):
            return False
        message = call.messages[place]
        if before.reply is None or not _begins(message, before.reply):
            return False
        # A try that was sent again and said the same is what stands there.
        said = (m for m in self.saying_this(message) if m != n and len(self.calls[m].messages) == place)
        return not any(self.parent_by_message(m, call) for m in said)

    def _ends_at(self, n: int, message: Message, place: int) -> bool:
        before = self.calls[n]
        return len(before.messages) == place and before.reply is not None and _sameness(before.reply, message) == (1, 1)

    def opening_stands(self, n: int, messages: Sequence[Message], place: int) -> bool:
        """Say if the last message of call `n`'s opening stands among the first `place` of `messages`."""
        opening = self._openings[n]
        return not opening or any(message.digest == opening[-1] for message in messages[:place])

    def _rank(self, n: int, messages: Sequence[Message], place: int) -> tuple[tuple[int, int], bool, int, int]:
        before = self.calls[n]
        return (
            (0, 0) if before.reply is None else _sameness(before.reply, messages[place]),
            len(before.messages) == place
            and all(a.digest == b.digest for a, b in zip(before.messages, messages, strict=False)),
            before.ended or 0,
            n,
        )


def texts(reply: Message) -> tuple[str, ...]:
    """Return what a reply says, without the white space around it; where it ends in a tagged block, what stands in
    the block, too, since claude-code carries no more of its summary."""
    text = reply.text.strip()
    return tuple(dict.fromkeys(said for said in (text, _block_at_end(text)) if said))


def _begins(message: Message, reply: Message) -> bool:
    """Say if an assistant message is a reply, or the beginning of its text, or its thinking alone."""
    if message.role != "assistant":
        return False
    text, thought = message.text.strip(), message.reasoning.strip()
    if text or message.tool_calls:
        begins = not message.tool_calls and reply.text.strip().startswith(text)
        return begins or message.digest == reply.digest
    # codex keeps the items that were done: the thinking, and not the text that had begun.
    return bool(thought) and reply.reasoning.strip().startswith(thought)


def _sameness(reply: Message, message: Message) -> tuple[int, int]:
    """Say if a message is a reply in canonical form, and if its tool-call ids are the reply's."""
    ids = [[call.id for call in said.tool_calls] for said in (reply, message)]
    return int(reply.digest == message.digest), int(ids[0] == ids[1])


def _block_at_end(text: str) -> str:
    """Return what stands in the tagged block that a text ends in; nothing where it ends otherwise."""
    tag = _CLOSING_TAG.search(text)
    if tag is None:
        return ""
    _, opening, inside = text[: tag.start()].rpartition(f"<{tag[1]}>")
    return inside.strip() if opening else ""
