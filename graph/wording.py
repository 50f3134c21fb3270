"""Forks and breaks in words: which calls, why, and which field the agent changed.

Rules
1. Who reads this looks at a rollout for the first time. A sentence says what happened, a second what made it, both
   without a term that the page does not explain.
2. Nothing is guessed: where the requests are not at hand, or differ in nothing, that is what is said.
3. A *break* is a call that goes on from another without its tokens as its prefix: drift, or a compaction.
4. The cause is the graph's (`graph.causes`), the changes are the requests' (`graph.changes`). They may seem to
   disagree: an agent may change what no template shows.

Requests and replies come in as parsed JSON, by call, since the graph holds none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from graph.changes import MOST_CHANGES, Change, changes, going_on
from graph.forest import Forest
from graph.makers import maker, worded
from graph.records import Call, Fork, Link

NAMED = 3
"""Fields that a sentence names; the table beside it has the others."""


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """What passed in a call, as parsed JSON; None where it isn't at hand."""

    request: Any = None
    reply: Any = None


def compared(forest: Forest, most: int) -> list[int]:
    """Return the calls whose requests and replies are to be at hand: those of the first `most` forks and breaks."""
    pairs = [pair for fork in forest.forks if (pair := _pair(fork))]
    pairs += [(link.parent, n) for n, link in _breaks(forest) if link.parent is not None and link.kind == "drift"]
    return sorted({n for pair in pairs[:most] for n in pair})


def words_json(forest: Forest, passed: Mapping[int, Passed]) -> dict[str, Any]:
    """Return a rollout's forks and breaks in words, with what changed where both requests are at hand."""
    return {
        "forks": [_fork(forest, fork, passed) for fork in forest.forks],
        "breaks": [_break(forest, n, link, passed) for n, link in _breaks(forest)],
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `words_json` says as lines: a sentence or two for each, and below them what changed."""
    for each in (*told["breaks"], *told["forks"]):
        yield each["words"]
        for change in each["changes"]:
            was, now = (json.dumps(change[side], ensure_ascii=False) for side in ("was", "is"))
            yield f"  {change['field']}: {was} -> {now}"


def _breaks(forest: Forest) -> list[tuple[int, Link]]:
    return [(n, link) for n, link in sorted(forest.links.items()) if link.kind in ("drift", "compaction")]


def _pair(fork: Fork) -> tuple[int, int] | None:
    """Return the two calls of a fork that say most: the first, and the one that went on or else the last."""
    first, *others = fork.children
    if not others:
        return None
    return first, fork.kept if fork.kept in others else others[-1]


def _fork(forest: Forest, fork: Fork, passed: Mapping[int, Passed]) -> dict[str, Any]:
    pair = _pair(fork)
    found = None if pair is None else _between(*(passed.get(n, Passed()).request for n in pair))
    words = [_of_fork(forest, fork)]
    if pair is not None and found is not None:
        requests = [passed.get(n, Passed()).request for n in fork.children]
        if len(requests) > 2 and all(_between(requests[0], each) == () for each in requests[1:]):
            words.append(f"The requests of {_calls(fork.children)} are equal.")
        else:
            words.append(_differing(pair, found))
    return {
        "kind": fork.kind,
        "calls": list(fork.children),
        "at": fork.at,
        "kept": fork.kept,
        "words": " ".join(words),
        "changes": _shown(found or ()),
    }


def _of_fork(forest: Forest, fork: Fork) -> str:
    calls, kept = _calls(fork.children), fork.kept
    if fork.kind == "branch":
        went = f"; call {kept} is the one that went on" if kept is not None else ""
        start = f"call {fork.at}" if fork.at is not None else "one prompt"
        return f"{_start(calls)} go on from {start} in different ways{went}."
    requests = {forest.calls[n].arrived for n in fork.children}
    if fork.kind == "resample" and len(requests) == 1:
        went = f"; call {kept} is the one that went on" if kept is not None else ""
        return f"{_start(calls)} are {len(fork.children)} replies to one request{went}."
    if fork.kind == "resample":
        went = f"; call {kept} is the one that went on" if kept is not None else ""
        return f"{_start(calls)} have one prompt and were each answered{went}."
    failed = [n for n in fork.children if n != kept]
    why = _why_again([forest.calls[n] for n in failed])
    went = f", and call {kept} went on" if kept is not None else ""
    return f"{_start(calls)} are tries of one prompt: {_calls(failed)} {why}{went}."


def _why_again(calls: Sequence[Call]) -> str:
    if all(call.status == "error" for call in calls):
        return "failed"
    if all(call.status == "aborted" for call in calls):
        return "broke off"
    return "never reached the agent whole"


def _differing(pair: tuple[int, int], found: Sequence[Change]) -> str:
    one, other = pair
    if not found:
        return f"The requests of calls {one} and {other} are equal."
    return f"The requests of calls {one} and {other} differ in {_fields(found)}."


def _break(forest: Forest, n: int, link: Link, passed: Mapping[int, Passed]) -> dict[str, Any]:
    parent = link.parent
    assert parent is not None, "what goes on has a parent"
    found: tuple[Change, ...] | None = None
    if link.kind == "drift":
        before, after = passed.get(parent, Passed()), passed.get(n, Passed())
        if isinstance(before.request, dict) and isinstance(after.request, dict):
            said = _said(before.reply, forest.calls[parent])
            found = going_on(before.request, said, after.request)
        words = _of_drift(forest, n, parent, link, found)
    else:
        words = _of_compaction(forest, n, link)
    return {
        "call": n,
        "parent": parent,
        "kind": link.kind,
        "cause": link.drift.cause if link.drift is not None else link.kind,
        "at": link.drift.at if link.drift is not None else None,
        "tokens": link.drift.tokens if link.drift is not None else None,
        "words": words,
        "changes": _shown(found or ()),
    }


def _of_drift(forest: Forest, n: int, parent: int, link: Link, found: Sequence[Change] | None) -> str:
    drift = link.drift
    if drift is None:
        return f"Call {n} goes on from call {parent}, whose messages it has otherwise; no ids say how much is lost."
    where = "reply" if drift.where == "sampled" else "prompt"
    lost = f"{drift.tokens:,} token{'s' if drift.tokens > 1 else ''} of call {parent}"
    told = (
        f"Call {n} does not begin with the tokens of call {parent}: from position {drift.at:,}, in its {where}, {lost} "
    )
    told += f"{'are' if drift.tokens > 1 else 'is'} gone. {_start(worded(drift.cause, [maker(forest, n)]))}."
    if found is None:
        return told
    if found:
        return f"{told} The agent sent {_fields(found)} otherwise than it was."
    return (
        f"{told} The agent sent back every message as it was: the engine's template or tokeniser made the difference."
    )


def _of_compaction(forest: Forest, n: int, link: Link) -> str:
    parent = link.parent
    assert parent is not None, "a compaction has a parent"
    before, after = len(forest.calls[parent].messages), len(forest.calls[n].messages)
    brings = f" It brings what {_calls(link.carries)} said." if link.carries else ""
    return (
        f"Call {n} goes on from call {parent} with a summary in the place of its history: {after} "
        f"message{'s' if after != 1 else ''}, where there were {before}.{brings}"
    )


def _between(was: Any, now: Any) -> tuple[Change, ...] | None:
    if not isinstance(was, dict) or not isinstance(now, dict):
        return None
    return changes(was, now)


def _said(reply: Any, call: Call) -> list[Any]:
    """Return what a reply puts behind its request's messages, in its dialect's form."""
    if not isinstance(reply, dict):
        return []
    if isinstance(output := reply.get("output"), list):
        return output
    if isinstance(reply.get("content"), list):
        return [{"role": reply.get("role", "assistant"), "content": reply["content"]}]
    for name, inner in (("choices", "message"), ("candidates", "content")):
        listed = reply.get(name)
        if isinstance(listed, list):
            chosen = [each for each in listed if isinstance(each, dict) and each.get("index", 0) == call.choice]
            found = chosen[0].get(inner) if chosen else None
            return [found] if isinstance(found, dict) else []
    return []


def _fields(found: Sequence[Change]) -> str:
    named = [f"`{each.field}`" for each in found[:NAMED]]
    more = len(found) - len(named)
    if more:
        some = f"{more} more" if len(found) < MOST_CHANGES else "more"
        return f"{', '.join(named)} and {some}"
    return _listed(named)


def _calls(numbers: Iterable[int]) -> str:
    given = sorted(numbers)
    shown = [str(n) for n in given[:8]]
    if len(given) > len(shown):
        shown.append(f"{len(given) - len(shown)} more")
    return f"call{'s' if len(given) > 1 else ''} {_listed(shown)}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _start(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(found: Iterable[Change]) -> list[dict[str, Any]]:
    return [{"field": each.field, "was": each.was, "is": each.now} for each in found]
