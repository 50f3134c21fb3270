"""What each conversation was for: main, subagent or auxiliary, with the evidence.

Rules, in the order in which they are asked; each reads the flow of data (`graph.flow`), never a prompt's wording:
1. *subagent*: the last message of its opening stands in the arguments of another conversation's tool call that its
   agent can have had before it arrived, or its final reply stands in that tool's result. Where that message stood in an
   opening before it stood in any arguments (a title's prompt, when a tool call quotes the task), the arguments show
   nothing, and only the result decides.
2. *auxiliary*: no other request goes on from its reply, it made no tool call, and another conversation made tool calls
   or goes on from the same last message. One whose text a compaction carries over is a summary.
3. *main*: what is left. Several with one opening are all main, and so are the turns of an agent without a history,
   each a root of its own. Several openings are a tie, broken by the task's text, then by headers, then by size; those
   that lose it are auxiliary.
4. A person's verdict overrules all of them, and is shown as evidence beside what the flow said.

Theory: the first conversation of a rollout was started by nothing recorded, so rule 1 always leaves one that made a
tool call, if any did; rule 2 needs another conversation that did something, so it leaves one too. Main always exists.

Headers and fields (`hints`) are claims of the agent's side, and the policy must not choose what it is trained on: they
are shown, they break a tie after the task's text, and that is all.

Costs: each conversation's last message is looked for in each tool call's arguments that were there before it arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from graph.auxiliary import kind_of
from graph.flow import CHARS, Flow, Flows, Result, ToolUse, stands
from graph.forest import Forest
from graph.records import AuxiliaryKind, Call, Conversation, Evidence, Role

RULES: dict[str, str] = {
    "prompt_in_arguments": "subagent: its opening's last message stands in the arguments of the tool call",
    "reply_in_result": "subagent: its final reply stands in the tool's result",
    "session_hint": "subagent: a header names a parent too",
    "not_gone_on_from": "auxiliary: no request goes on from its reply, it made no tool call, and another one did act",
    "carried": "summary: a continuation of another conversation carries its text",
    "read_conversation": "summary: its prompt holds replies, tool calls or tool results of another conversation",
    "read_opening": "title: its prompt holds the opening of another conversation, and nothing that was sampled",
    "read_arguments": "probe: its prompt holds the arguments of a tool call",
    "short_limit": "probe: it asked for a few tokens only",
    "lost_tie": "auxiliary: another conversation was taken for main",
    "only_candidate": "main: the only conversation that, by what it did, is neither subagent nor auxiliary",
    "same_opening": "main: several conversations begin with this opening, or are turns of an agent without a history",
    "tie_task": "main: of several candidates, the one whose opening holds the task's text",
    "tie_headers": "main: of several candidates, the one that headers point to",
    "tie_size": "main: of several candidates, the largest",
    "given_up_tries": "other tries or draws of its first request were given up for the one that went on",
    "proved_used": "a later prompt begins with exactly this broken reply, so the agent used it",
    "overruled": "a person's verdict",
}
"""Every rule that evidence names, and what it says."""

VERDICTS: dict[str, tuple[Role, AuxiliaryKind | None]] = {
    "main": ("main", None),
    "subagent": ("subagent", None),
    "auxiliary": ("auxiliary", "other"),
    "title": ("auxiliary", "title"),
    "summary": ("auxiliary", "summary"),
    "probe": ("auxiliary", "probe"),
    "other": ("auxiliary", "other"),
}
"""What a person may overrule a verdict with."""

ROLE_HINT = "x-treering-role"
PARENT_HINTS = (
    "x-treering-parent",
    "x-parent-session-id",
    "x-codex-parent-thread-id",
    "x-openai-subagent",
    "x-claude-code-agent-id",
)
"""Headers by which a harness, opencode 1.18, codex 0.171 and claude-code 2.1 mark a subagent's calls."""


PER_TURN = 3
"""From so many single calls of one agent on, each a root: two may be a draw repeated; three are a habit."""


class Tie(msgspec.Struct, frozen=True, kw_only=True):
    """Several conversations could have been main: the roots of all, of those kept, and what told them apart."""

    by: str
    roots: tuple[int, ...]
    kept: tuple[int, ...]


class Verdict(msgspec.Struct, kw_only=True):
    """A conversation's role while it is being found."""

    role: Role
    kind: AuxiliaryKind | None = None
    parent_call: int | None = None
    evidence: list[Evidence]


class Judged:
    """A forest whose conversations have roles."""

    def __init__(
        self,
        forest: Forest,
        conversations: tuple[Conversation, ...],
        *,
        tie: Tie | None = None,
        flow_roles: Mapping[int, str] | None = None,
        flow_kinds: Mapping[int, str] | None = None,
    ) -> None:
        self.forest = forest
        self.conversations = conversations
        self.conversation_of: dict[int, int] = {n: found.n for found in conversations for n in found.calls}
        self.tie = tie
        # Conversation → role as the flow of data has it, whatever a person said.
        self.flow_roles: dict[int, str] = dict(flow_roles or {})
        # The same of the kinds of auxiliary ones.
        self.flow_kinds: dict[int, str] = dict(flow_kinds or {})

    def calls_of(self, *roles: Role) -> tuple[int, ...]:
        """Return the calls of all conversations of these roles, in order of arrival."""
        return tuple(sorted(n for found in self.conversations if found.role in roles for n in found.calls))


def is_ruled(judged: Judged, found: Conversation) -> bool:
    """Say whether a conversation has another role than by what it did, because somebody ruled so."""
    return judged.flow_roles.get(found.n, found.role) != found.role


def overruling(word: str) -> tuple[Role, AuxiliaryKind | None]:
    """Read a person's verdict. Raises ValueError, naming the accepted words, for another."""
    try:
        return VERDICTS[word]
    except KeyError:
        raise ValueError(f"a role is one of {', '.join(VERDICTS)}; not {word!r}") from None


def parent_hint(call: Call) -> str | None:
    """Return the name of a header that marks a call as a subagent's; None when there is none."""
    return next((name for name in PARENT_HINTS if name in call.hints), None)


def judge(forest: Forest) -> Judged:
    """Give each conversation of a forest its role.

    Raises ValueError if the rollout's record overrules with a word that is no role.
    """
    facts = Flows(forest)
    verdicts: dict[int, Verdict] = {}
    for flow in facts.flows:
        if (found := _subagent(facts, flow)) is not None:
            verdicts[flow.n] = found
    turns = _turns(facts, [flow for flow in facts.flows if flow.n not in verdicts])
    acting = {turns[flow.n] for flow in facts.flows if flow.n in turns and flow.uses_tools}
    for flow in facts.flows:
        if flow.n in verdicts or turns.get(flow.n) in acting:
            continue
        if (found := _auxiliary(facts, flow)) is not None:
            verdicts[flow.n] = found
    tie = _main(facts, [flow for flow in facts.flows if flow.n not in verdicts], verdicts, turns)
    for flow in facts.flows:
        if verdicts[flow.n].role == "auxiliary":
            verdicts[flow.n].kind, shown = kind_of(facts, flow)
            verdicts[flow.n].evidence += shown
    said: dict[int, str] = {n: found.role for n, found in verdicts.items()}
    kinds: dict[int, str] = {n: found.kind for n, found in verdicts.items() if found.kind is not None}
    for flow in facts.flows:
        _finish(facts, flow, verdicts[flow.n])
    conversations = tuple(
        Conversation(
            n=flow.n,
            root=flow.root,
            role=found.role,
            kind=found.kind,
            trainable=found.role == "main",
            parent_call=found.parent_call,
            calls=flow.calls,
            evidence=tuple(found.evidence),
        )
        for flow in facts.flows
        for found in [verdicts[flow.n]]
    )
    return Judged(forest, conversations, tie=tie, flow_roles=said, flow_kinds=kinds)


# -- subagent ---------------------------------------------------------------------------------------------------------


def _subagent(facts: Flows, flow: Flow) -> Verdict | None:
    before = [use for use in facts.uses if use.conversation != flow.n and use.shown < flow.arrived]
    in_arguments = [use for use in before if any(_in_arguments(text, use) for text in flow.asks)]
    shown = bool(in_arguments) and not _stood_before(facts, flow, in_arguments)
    # By a result alone, which may hold a text by chance, only what had ended.
    by_result = _by_result(
        facts, flow, in_arguments or [use for use in before if use.ended < flow.arrived], short=shown
    )
    if by_result is not None:
        use, result = by_result
    elif shown:
        # An argument that is the prompt outweighs one that quotes it; and who was started with the same words may quote
        # them, so who started both comes before it.
        own = {use.conversation for use in in_arguments if set(facts.flows[use.conversation].asks) & set(flow.asks)}
        use, result = max(in_arguments, key=lambda use: _started_it(flow, use, own)), None
    else:
        return None
    evidence = []
    if use in in_arguments:
        detail = f"its prompt stands in the arguments of a tool call of call {use.call}"
        evidence.append(Evidence(rule="prompt_in_arguments", calls=(use.call, flow.root), detail=detail))
    if result is not None:
        detail = f"its final reply stands in the result that call {result.call} brought"
        evidence.append(Evidence(rule="reply_in_result", calls=(flow.calls[-1], result.call), detail=detail))
    named = parent_hint(facts.forest.calls[flow.root])
    if named is not None:
        evidence.append(Evidence(rule="session_hint", calls=(flow.root,), detail=f"its header {named} says so too"))
    return Verdict(role="subagent", parent_call=use.call, evidence=evidence)


def _started_it(flow: Flow, use: ToolUse, own: Collection[int]) -> tuple[bool, bool, int, int]:
    return any(text in use.values for text in flow.asks), use.conversation not in own, use.ended, use.call


def _in_arguments(text: str, use: ToolUse) -> bool:
    return text in use.values or (len(text) >= CHARS and any(text in value for value in use.values))


def _stood_before(facts: Flows, flow: Flow, uses: Iterable[ToolUse]) -> bool:
    """Say whether the opening's last message stood in an opening before it first stood in arguments."""
    first = min(use.shown for use in uses)
    # Equal where the call that a stream of arguments answers is the other conversation's first.
    openings = (text for other in facts.flows if other.n != flow.n and other.arrived <= first for text in other.opening)
    return any(stands(asked, text) for text in openings for asked in flow.asks)


def _by_result(facts: Flows, flow: Flow, uses: list[ToolUse], *, short: bool) -> tuple[ToolUse, Result] | None:
    """Return the latest tool call whose result holds the final reply. A short reply, which may stand there by chance,
    counts only where the arguments have shown already that one of these calls started the conversation."""
    final = flow.final.strip()
    if flow.final_ended is None or not final or (len(final) < CHARS and not short):
        return None
    for use in sorted(uses, key=lambda use: (use.ended, use.call), reverse=True):
        result = facts.result_of(use, holding=final, after=flow.final_ended)
        if result is not None:
            return use, result
    return None


# -- auxiliary --------------------------------------------------------------------------------------------------------


def _auxiliary(facts: Flows, flow: Flow) -> Verdict | None:
    if flow.goes_on or flow.uses_tools:
        return None
    if flow.carried_by:
        return Verdict(role="auxiliary", evidence=[])
    others = [
        other
        for other in facts.flows
        if other.n != flow.n and (other.uses_tools or (other.goes_on and other.key == flow.key))
    ]
    if not others:
        return None
    acted = "made tool calls" if others[0].uses_tools else "goes on from the same opening"
    detail = f"no request goes on from its reply, it made no tool call, and conversation {others[0].n} {acted}"
    return Verdict(
        role="auxiliary",
        evidence=[Evidence(rule="not_gone_on_from", calls=(flow.root, others[0].root), detail=detail)],
    )


# -- main -------------------------------------------------------------------------------------------------------------


def _turns(facts: Flows, flows: list[Flow]) -> dict[int, object]:
    """Name, for each conversation that is one turn of an agent without a history, the agent: its tools and system text.

    Such an agent puts what happened into its next prompt in its own words, so nothing goes on from anything.
    """
    agents: dict[object, list[int]] = {}
    for flow in flows:
        if not flow.goes_on:
            call = facts.forest.calls[flow.root]
            system = tuple(message.digest for message in call.messages if message.role == "system")
            agents.setdefault((call.tools, system), []).append(flow.n)
    return {n: agent for agent, numbers in agents.items() if len(numbers) >= PER_TURN for n in numbers}


def _main(
    facts: Flows, candidates: list[Flow], verdicts: dict[int, Verdict], turns: Mapping[int, object]
) -> Tie | None:
    """Choose main among what is left, and give the rest their verdicts."""
    groups: dict[object, list[Flow]] = {}
    for flow in candidates:
        groups.setdefault(turns.get(flow.n) or _alike(facts, flow), []).append(flow)
    left = list(groups.values())
    rule = "only_candidate" if len(candidates) == 1 else "same_opening"
    tie = None
    if len(left) > 1:
        left, by = _broken(facts, left)
        rule = f"tie_{by}"
        kept = tuple(flow.root for flow in left[0])
        tie = Tie(by=by, roots=tuple(flow.root for flow in candidates), kept=kept)
    main = left[0] if left else []
    for flow in candidates:
        if flow in main:
            evidence = Evidence(rule=rule, calls=(flow.root,), detail=RULES[rule].partition(": ")[2])
            verdicts[flow.n] = Verdict(role="main", evidence=[evidence])
        else:
            detail = f"conversation {main[0].n} was taken for main"
            evidence = Evidence(rule="lost_tie", calls=(flow.root, main[0].root), detail=detail)
            verdicts[flow.n] = Verdict(role="auxiliary", evidence=[evidence])
    return tie


def _alike(facts: Flows, flow: Flow) -> object:
    """Name what a candidate leads on from. One that did something: its opening. One that was asked and no more: its
    whole request, since a title's and a short task's openings are equal too."""
    if flow.goes_on or flow.uses_tools:
        return flow.key
    call = facts.forest.calls[flow.root]
    return (call.tools, *(message.digest for message in call.messages))


def _broken(facts: Flows, groups: list[list[Flow]]) -> tuple[list[list[Flow]], str]:
    task = (facts.forest.rollout.task or "").strip()
    with_task = [group for group in groups if task and any(stands(task, text) for text in group[0].opening)]
    if len(with_task) == 1:
        return with_task, "task"
    groups = with_task or groups
    claims = [min(_claim(facts, flow) for flow in group) for group in groups]
    groups = [group for group, claim in zip(groups, claims, strict=True) if claim == max(claims)]
    if len(groups) == 1:
        return groups, "headers"
    return [max(groups, key=lambda group: (max(flow.size for flow in group), -group[0].root))], "size"


def _claim(facts: Flows, flow: Flow) -> int:
    """Return what headers say of a conversation: 1 that it is main, -1 that it is not, 0 nothing."""
    call = facts.forest.calls[flow.root]
    role = call.hints.get(ROLE_HINT)
    if parent_hint(call) is not None or role not in (None, "main"):
        return -1
    return 0 if role is None else 1


# -- finish -----------------------------------------------------------------------------------------------------------


def _finish(facts: Flows, flow: Flow, verdict: Verdict) -> None:
    """Add what is known of the tries and broken replies, and what a person said."""
    if flow.given_up:
        detail = f"given up for call {flow.root}"
        verdict.evidence.append(Evidence(rule="given_up_tries", calls=(*flow.given_up, flow.root), detail=detail))
    proved = tuple(n for n in flow.calls if n in facts.forest.proved and facts.forest.calls[n].status != "complete")
    if proved:
        detail = "a later prompt begins with exactly its prompt and what was sampled"
        verdict.evidence.append(Evidence(rule="proved_used", calls=proved, detail=detail))
    # The verdict was given on a root; a first try that became part of the conversation since then counts as well.
    words = [word for root, word in sorted(facts.forest.rollout.roles.items()) if root in (flow.root, *flow.given_up)]
    if words:
        role, kind = overruling(words[-1])
        judged = f"{verdict.role} (a {verdict.kind})" if verdict.kind not in (None, "other") else verdict.role
        detail = f"{role}, where the flow of data says {judged}"
        verdict.evidence.append(Evidence(rule="overruled", calls=(flow.root,), detail=detail))
        verdict.role, verdict.kind = role, kind
        if role != "subagent":
            verdict.parent_call = None
