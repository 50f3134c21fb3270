"""What an auxiliary conversation was for: title, summary, probe or other.

Told by what it read and where its reply went, in this order:
- *summary*: a continuation of another conversation carries its text, or its prompt holds replies, tool results, or the
  arguments of answered tool calls of another conversation;
- *title*: its prompt holds the opening of another conversation, and nothing of what came after;
- *probe*: its prompt holds the arguments of a tool call (is this command safe?), or it asked for a few tokens only;
- *other*: none of these.
"""

from __future__ import annotations

from graph.compactions import spellings
from graph.flow import CHARS, Flow, Flows, Result, quotes, stands
from graph.records import AuxiliaryKind, Evidence

PROBE_TOKENS = 16
"""A request that allows no more output than this asks whether something works, and wants no answer."""


def kind_of(facts: Flows, flow: Flow) -> tuple[AuxiliaryKind, tuple[Evidence, ...]]:
    """Return an auxiliary conversation's kind, and the evidence for it."""
    read = [message.text for message in facts.forest.calls[flow.root].messages]
    if flow.carried_by:
        detail = f"call {flow.carried_by[0]} goes on from its text"
        return "summary", _shown("carried", detail, flow.root, *flow.carried_by)
    if (source := _sampled_in(facts, flow, read)) is not None:
        return "summary", _shown("read_conversation", f"its prompt holds what call {source} brought", flow.root, source)
    if (source := _calls_in(facts, flow, read)) is not None:
        return "summary", _shown("read_conversation", f"its prompt holds what call {source} did", flow.root, source)
    if (opened := _opening_in(facts, flow, read)) is not None:
        detail = f"its prompt holds the opening of conversation {opened.n}, and nothing that was sampled"
        return "title", _shown("read_opening", detail, flow.root, opened.root)
    if (used := _arguments_in(facts, flow, read)) is not None:
        detail = f"its prompt holds the arguments of a tool call of call {used}"
        return "probe", _shown("read_arguments", detail, flow.root, used)
    if (limit := _limit(facts, flow)) is not None and limit <= PROBE_TOKENS:
        return "probe", _shown("short_limit", f"it asked for at most {limit} tokens", flow.root)
    return "other", ()


def _shown(rule: str, detail: str, *calls: int) -> tuple[Evidence, ...]:
    return (Evidence(rule=rule, calls=calls, detail=detail),)


def _sampled_in(facts: Flows, flow: Flow, read: list[str]) -> int | None:
    """Return a call whose reply or tool result another conversation had, and this one's prompt holds."""
    calls = facts.forest.calls
    brought = [
        (n, reply.text, ended)
        for n, conversation in sorted(facts.of.items())
        if conversation != flow.n and (reply := calls[n].reply) is not None and (ended := calls[n].ended) is not None
    ]
    brought += [(found.call, found.text, found.arrived) for found in facts.results if found.conversation != flow.n]
    for n, text, at in brought:
        held = at < flow.arrived and len(text.strip()) >= CHARS and any(stands(text, prompt) for prompt in read)
        if held and not _opened_with(facts, text, at):
            return n
    return None


def _opened_with(facts: Flows, text: str, at: int) -> bool:
    """Say if a text stood in an opening before a moment: what merely quotes one (a tool that echoes the task) shows no
    reading of the conversation."""
    return any(stands(text, opened) for other in facts.flows if other.arrived < at for opened in other.opening)


def _calls_in(facts: Flows, flow: Flow, read: list[str]) -> int | None:
    """Return the first of the tool calls whose arguments this prompt holds, whole and as a transcript spells them.

    They are those of another conversation, and had their results: before that, who reads them asks whether a command
    may run. Short ones count together, so that a loop of them is seen and one that stands there by chance is not.
    """
    first, shown = None, 0
    for n, conversation in sorted(facts.of.items()):
        call = facts.forest.calls[n]
        if conversation == flow.n or call.reply is None or call.ended is None or call.ended >= flow.arrived:
            continue
        for tool_call in call.reply.tool_calls:
            found = next((text for text in spellings(tool_call) if any(text in prompt for prompt in read)), None)
            if found is None or _opened_with(facts, found, call.ended):
                continue
            if any(_answers(result, n, conversation, tool_call.id, before=flow.arrived) for result in facts.results):
                first, shown = n if first is None else first, shown + len(found)
    return first if shown >= CHARS else None


def _answers(result: Result, n: int, conversation: int, tool_call: str | None, *, before: int) -> bool:
    if result.conversation != conversation or result.arrived >= before:
        return False
    return result.parent == n if tool_call is None or result.id is None else result.id == tool_call


def _opening_in(facts: Flows, flow: Flow, read: list[str]) -> Flow | None:
    """Return a conversation whose opening this one's prompt quotes, or is a part of (the task without what an agent
    puts around it)."""
    for other in facts.flows:
        if other.n == flow.n:
            continue
        part = any(len(asked) >= CHARS and stands(asked, text) for asked in flow.asks for text in other.opening)
        if part or any(quotes(text, asked) for asked in other.asks for text in read):
            return other
    return None


def _arguments_in(facts: Flows, flow: Flow, read: list[str]) -> int | None:
    for use in facts.uses:
        if use.conversation == flow.n or use.ended > flow.arrived:
            continue
        if any(quotes(text, value) for value in use.values for text in read):
            return use.call
    return None


def _limit(facts: Flows, flow: Flow) -> int | None:
    asked = facts.forest.calls[flow.root].sampling_asked
    limits = [asked[key] for key in ("max_tokens", "max_completion_tokens") if isinstance(asked.get(key), int)]
    return min(limits, default=None)
