"""A small rollout for each finding, drawn as a forest: the examples of docs/findings.md.

Each is made of calls as they would be recorded, read by the graph like any other, and drawn from what it says of them.
So an example is true, or it isn't printed: `example` fails where a rollout doesn't show its finding.

The engine here gives every word an id of its own, and puts two ids around each message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from graph.graph import Graph, read
from graph.messages import from_chat, strings
from graph.records import Call, Finding, Notice, Rollout, Stop, Weights

Said = tuple[str, str]
"""A message: its role, and its text. A text like `bash(ls)` is a tool call."""

TASK: Said = ("user", "Make the tests pass.")
LOOK: Said = ("assistant", "bash(ls)")
FILES: Said = ("tool", "a.py")
DONE: Said = ("assistant", "Done.")
PART = "Find every caller of parse()."
REPORT = "There are two callers of it."


class Tape:
    """A rollout, told call by call; each arrives when the one before it has ended."""

    def __init__(self, **rollout: Any) -> None:
        told: dict[str, Any] = {
            "id": "example",
            "state": "closed",
            "logprobs_mode": "processed",
            "pins": {"temperature": 1.0},
        }
        self.rollout = Rollout(**(told | rollout))
        self.calls: list[Call] = []
        self.notices: list[Notice] = []
        self._words: dict[str, int] = {}

    def call(self, *said: Said, tools: tuple[str, ...] = ("bash",), prefix: str = "", **fields: Any) -> Tape:
        """Record a call: what was said, the reply last. `prefix` stands before the prompt; `fields` overrule."""
        n = len(self.calls)
        chat = [_chat(message, place) for place, message in enumerate(said)]
        prompt = [*self._ids(prefix), *(each for message in said[:-1] for each in self._message(message)), 1]
        sampled = self._message(said[-1])[1:]
        told: dict[str, Any] = {
            "n": n, "id": f"r{n}", "status": "complete", "delivered": True, "arrived": 2 * n, "ended": 2 * n + 1,
            "finish_reason": "stop", "messages": tuple(map(from_chat, chat[:-1])), "reply": from_chat(chat[-1]),
            "tools": " ".join(tools) or None, "tool_names": tools,
            "body": hashlib.sha256(repr((said[:-1], tools, prefix)).encode()).hexdigest(),
            "prompt_ids": np.array(prompt, np.int32), "sampled_ids": np.array(sampled, np.int32),
            "logprobs": np.full(len(sampled), -0.5, np.float32), "usage_prompt": len(prompt),
            "usage_sampled": len(sampled), "sampling_sent": {"temperature": 1.0},
        }  # fmt: skip
        self.calls.append(Call(**(told | fields)))
        return self

    def note(self, code: str, **data: Any) -> Tape:
        """Record a notice that names the last call."""
        calls = (len(self.calls) - 1,) if self.calls else ()
        self.notices.append(Notice(code=code, calls=calls, data=data))
        return self

    def graph(self) -> Graph:
        """Read it."""
        return read(self.rollout, self.calls, self.notices)

    def _ids(self, text: str) -> list[int]:
        return [self._words.setdefault(word, 10 + len(self._words)) for word in text.split()]

    def _message(self, message: Said) -> list[int]:
        return [1, *self._ids(f"{message[0]} {message[1]}")[1:], 2]


def _chat(message: Said, place: int) -> dict[str, Any]:
    role, text = message
    name, _, rest = text.partition("(")
    if role == "assistant" and name.isidentifier() and rest.endswith(")"):
        arguments = msgspec.json.encode({"text": rest[:-1]}).decode()
        call = {"id": f"c{place}", "function": {"name": name, "arguments": arguments}}
        return {"role": role, "content": "", "tool_calls": [call]}
    return {"role": role, "content": text} | ({"tool_call_id": f"c{place - 1}"} if role == "tool" else {})


def _two(**fields: Any) -> Tape:
    """A tool call and an answer."""
    return Tape().call(TASK, LOOK).call(TASK, LOOK, FILES, DONE, **fields)


def _drifting(tokens: int) -> Tape:
    """The second prompt has other ids for the first reply than were sampled."""
    look: Said = ("assistant", "I will look.")
    tape = Tape().call(TASK, look)
    first = tape.calls[0]
    ids = np.arange(1000, 1000 + tokens, dtype=np.int32)
    told = {"sampled_ids": ids, "logprobs": np.full(tokens, -0.5, np.float32), "usage_sampled": tokens}
    tape.calls[0] = msgspec.structs.replace(first, **told)
    return tape.call(TASK, look, ("user", "Go on."), DONE)


def _volatile() -> Tape:
    tape = Tape()
    said: list[Said] = [TASK]
    for turn in range(3):
        reply: Said = ("assistant", f"bash(step {turn})")
        system: Said = ("system", f"You have {100 - turn} turns left.")
        tape.call(system, *said, reply)
        said += [reply, ("tool", f"result {turn}")]
    return tape


def _with_subagent(**fields: Any) -> Tape:
    asks: Said = ("assistant", f"task({PART})")
    tape = Tape().call(TASK, asks, tools=("task",))
    tape.call(("user", PART), ("assistant", REPORT), **fields)
    return tape.call(TASK, asks, ("tool", REPORT), DONE, tools=("task",))


def _compacted() -> Tape:
    tape = _two()
    transcript: Said = ("user", f"User: {TASK[1]}\nResult: a.py\nAssistant: Done.\nSummarise this.")
    tape.call(transcript, ("assistant", "The tests pass since a.py was mended."), tools=())
    summary: Said = ("user", "So far: The tests pass since a.py was mended.")
    return tape.call(summary, ("assistant", "Then I am done."))


def _scored(*values: float) -> Tape:
    tape = Tape().call(TASK, DONE)
    logprobs = np.array(values, np.float32)
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], logprobs=logprobs)
    return tape


def _turns() -> Tape:
    tape = Tape()
    for turn in range(3):
        tape.call(("system", "You work."), ("user", f"Screen {turn}. What next?"), ("assistant", f"press(key {turn})"))
    return tape


def _lost() -> Tape:
    return Tape(incomplete=True).call(TASK, LOOK, FILES, DONE)


def _tie() -> Tape:
    return Tape().call(TASK, LOOK).call(("user", "Write the docs."), ("assistant", "bash(cat docs)"))


_EXAMPLES: dict[str, Callable[[], Tape]] = {
    "no_calls": lambda: Tape().note("unknown_secret_calls", calls=3),
    "capture_incomplete": lambda: _two().note("capture_incomplete", reason="the store was full"),
    "parent_lost": _lost,
    "unreadable_body": lambda: _two().note("unreadable_body", missing="messages"),
    "expired": lambda: Tape().call(TASK, LOOK).note("expired"),
    "graded_without_calls": lambda: Tape(reward=0.0),
    "unknown_secret_calls": lambda: Tape().note("unknown_secret_calls", calls=3),
    "tunnel_lost": lambda: Tape().call(TASK, LOOK).note("tunnel_lost", url="https://example.org"),
    "secret_in_content": lambda: _two().note("secret_in_content"),
    "nothing_trainable": lambda: Tape().call(TASK, DONE, delivered=False),
    "no_token_ids": lambda: _two(prompt_ids=None, sampled_ids=None, logprobs=None),
    "no_logprobs": lambda: _two(logprobs=None),
    "count_mismatch": lambda: _two(usage_sampled=7),
    "invalid_logprobs": lambda: _scored(-0.5, float("nan")),
    "positive_logprob": lambda: _scored(-0.5, 0.25),
    "token_out_of_vocabulary": lambda: _two(sampled_ids=np.array([5, -1], np.int32)),
    "drift": lambda: _drifting(6),
    "drift_over_threshold": lambda: _drifting(2000),
    "volatile_prefix": _volatile,
    "per_turn_roots": _turns,
    "multiple_roots": _turns,
    "compaction": _compacted,
    "forks": lambda: (
        Tape()
        .call(TASK, LOOK)
        .call(TASK, LOOK, FILES, ("user", "Mend it."), DONE)
        .call(TASK, LOOK, FILES, ("user", "Leave it."), ("assistant", "Yes."))
    ),
    "retries": lambda: Tape().call(TASK, LOOK, status="aborted", delivered=False).call(TASK, DONE),
    "discarded_calls": lambda: (
        Tape().call(TASK, ("assistant", "No.")).call(TASK, LOOK).call(TASK, LOOK, FILES, DONE)
    ),
    "auxiliary_calls": lambda: (
        Tape()
        .call(("system", "Give a title."), TASK, ("assistant", "Passing tests"), tools=())
        .call(TASK, LOOK)
        .call(TASK, LOOK, FILES, DONE)
    ),
    "subagents": _with_subagent,
    "ambiguous_main": _tie,
    "role_hint_disagrees": lambda: _with_subagent(hints={"x-treering-role": "main"}),
    "role_overruled": lambda: (
        Tape(roles={0: "main"})
        .call(("system", "Give a title."), TASK, ("assistant", "Passing tests"), tools=())
        .call(TASK, LOOK)
        .call(TASK, LOOK, FILES, DONE)
    ),
    "sampling_unpinned": lambda: Tape(pins={}).call(TASK, DONE, sampling_sent={}),
    "sampling_truncates": lambda: _two(sampling_sent={"temperature": 1.0, "top_p": 0.9}),
    "sampling_changed": lambda: _two(sampling_sent={"temperature": 0.7}),
    "constrained_sampling": lambda: _two(constrained=("response_format",)),
    "logprob_mode_unknown": lambda: Tape(logprobs_mode="unknown").call(TASK, DONE),
    "logprobs_not_of_sampler": lambda: (
        Tape(logprobs_mode="raw").call(TASK, DONE, sampling_sent={"temperature": 0.8})
    ),
    "truncated_reply": lambda: Tape().call(TASK, ("assistant", "First I"), finish_reason="length"),
    "aborted_calls": lambda: Tape().call(TASK, ("assistant", "First I"), status="aborted", delivered=False),
    "time_limit": lambda: (
        Tape()
        .call(TASK, ("assistant", "First I"), status="aborted", delivered=False, ended_ms=60_012.0)
        .call(TASK, ("assistant", "Let me"), status="aborted", delivered=False, ended_ms=60_020.0)
    ),
    "undelivered_calls": lambda: Tape().call(TASK, DONE, delivered=False),
    "delivery_unknown": lambda: Tape().call(TASK, DONE, delivered=None),
    "engine_errors": lambda: (
        Tape()
        .call(TASK, DONE, status="error", delivered=None, reply=None, prompt_ids=None, sampled_ids=None, logprobs=None)
        .call(TASK, DONE)
    ),
    "limit_stop": lambda: (
        Tape(stopped=Stop(limit="max_calls", at_call=1, stops=1))
        .call(TASK, LOOK)
        .call(
            TASK, LOOK, FILES, ("assistant", "The limit is reached."), status="stopped", prompt_ids=None,
            sampled_ids=None, logprobs=None,
        )
    ),
    "weights_changed": lambda: _two(weights=Weights(start="step-7", end="step-8")),
    "weights_mixed": lambda: (
        Tape()
        .call(TASK, LOOK, weights=Weights(start="step-7", end="step-7"))
        .call(TASK, LOOK, FILES, DONE, weights=Weights(start="step-8", end="step-8"))
    ),
    "engine_changed": lambda: (
        _two().note("engine_changed", engine="vllm=http://b", before="vllm=http://a", why="the other one was down")
    ),
    "request_refused": lambda: _two().note("request_refused", reason="an image by URL", param="messages"),
    "reply_id_reused": lambda: _two(id="r0"),
    "request_repaired": lambda: _two(repairs=("developer_role",)),
    "pin_fallback": lambda: _two().note("pin_fallback", reason="no-parent"),
    "steering_removed": lambda: _two().note("steering_removed", fields=["priority"]),
    "injection_refused": lambda: _two().note("injection_refused", engine="vllm", fields=["return_token_ids"]),
}  # fmt: skip

CODES = frozenset(_EXAMPLES)
"""The findings that have an example. An export's stand in no forest."""


def graph_of(code: str) -> Graph:
    """Return the graph of a finding's example. Raises KeyError for one that has none."""
    return _EXAMPLES[code]().graph()


def example(code: str) -> str:
    """Draw the example of a finding, and the finding as it is said of it.

    Raises KeyError where there is no example, LookupError where the example doesn't show the finding.
    """
    graph = graph_of(code)
    found = [finding for finding in graph.findings if finding.code == code]
    if not found:
        raise LookupError(f"the example of {code} does not show it")
    return "\n".join([*_forest(graph), "", *map(_finding, found)])


def _forest(graph: Graph) -> list[str]:
    forest = graph.forest
    lines: list[str] = []
    for conversation in graph.conversations:
        kind = f" ({conversation.kind})" if conversation.kind else ""
        by = "" if conversation.parent_call is None else f", started by call {conversation.parent_call}"
        lines.append(f"{conversation.role}{kind}{by}")
        lines += [_line(graph, n) for n in conversation.calls]
    loose = [n for n in forest.calls if n not in graph.conversation_of]
    if loose:
        lines += ["in no conversation", *(_line(graph, n) for n in loose)]
    return lines or ["no calls"]


def _line(graph: Graph, n: int) -> str:
    forest = graph.forest
    call, link = forest.calls[n], forest.links[n]
    depth, at = 1, link.parent
    while at is not None and graph.conversation_of.get(at) == graph.conversation_of.get(n):
        depth, at = depth + 1, forest.links[at].parent
    asked = (
        f"{call.messages[-1].role}: {_short(' '.join(call.messages[-1].text.split()))}" if call.messages else "nothing"
    )
    said = "nothing"
    if call.reply is not None:
        tools = [f"{tool.name}({_short(', '.join(strings(tool.canonical)))})" for tool in call.reply.tool_calls]
        said = " ".join([*([_short(call.reply.text)] if call.reply.text else []), *tools]) or "nothing"
    how: list[str] = [] if link.kind == "root" else [link.kind]
    if link.drift is not None:
        how.append(f"{link.drift.tokens} tokens lost at {link.drift.at}, {link.drift.cause}")
    if call.status != "complete" or forest.delivered(n) is not True:
        how.append(
            call.status
            if call.status != "complete"
            else "undelivered"
            if call.delivered is False
            else "delivery unknown"
        )
    how += [str(forest.fork_of[n])] if n in forest.fork_of else []
    how += ["discarded"] if n in forest.discarded else []
    return f"{'  ' * depth}{n}  {asked} → {said}" + (f"   [{'; '.join(how)}]" if how else "")


def _finding(finding: Finding) -> str:
    calls = f" (calls {', '.join(map(str, finding.calls))})" if finding.calls else ""
    data = "" if not finding.data else "\n  " + msgspec.json.encode(finding.data, order="deterministic").decode()
    return f"{finding.level} {finding.code}{calls}: {finding.message}{data}"


def _short(text: str) -> str:
    return text if len(text) <= 48 else text[:45] + "…"
