"""`treering drift`: what drifts, why, and what would end it; of rollouts that were had, or of an engine by itself.

Of rollouts it reads the control plane. With `--engine` and no rollout it has a few conversations of its own with that
engine, plain and pinned, through an appliance of its own, so that a person sees before a run whether model and template
chain. With `--tokenizer` it says besides how often rendering the messages here would have given the engine's ids.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from capture import terminal
from capture.cli import Given
from capture.client import Client, client, decode, segment
from capture.errors import EngineError, UsageError
from capture.rerender import MissingError, RefusedError, Rerenderer
from capture.settings import Settings
from graph.advice import Advice, advise
from graph.drift import THRESHOLD
from graph.survey import Measured, Outline, measure, outline

Json = dict[str, Any]

PAGE = 100


class Turns(msgspec.Struct, kw_only=True):
    """Calls of main that were rendered here again."""

    turns: int = 0
    # Whose prompt is the engine's very ids; whose prompt and reply are.
    prompts_right: int = 0
    turns_right: int = 0
    # Calls without ids, or that weren't a chat's.
    left_out: int = 0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Some rollouts that are told of together: one rollout, or one scenario in one mode."""

    name: str
    measured: Measured
    rerendered: Turns | None = None


def drift(given: Given) -> int:
    """Measure; 1 where there was nothing to measure."""
    asked = given.arguments
    named = bool(asked["id"] or asked["group"])
    if named and given.settings.engine:
        raise UsageError("--engine tries an engine by itself", hint="leave out the rollouts, or --engine")
    if not named and not given.settings.engine:
        raise UsageError(
            "nothing to measure", hint="name rollouts, --group, or an engine: --engine vllm=http://HOST:PORT"
        )
    tokenizer = None if asked["tokenizer"] is None else _tokenizer(Path(asked["tokenizer"]))
    threshold = THRESHOLD if asked["threshold"] is None else asked["threshold"]
    if named:
        cases, outlines = _of_rollouts(client(given.settings, asked["url"]), asked, tokenizer, threshold)
        why = None
    else:
        cases, outlines, why = asyncio.run(_of_engine(given.settings, tokenizer, threshold))
    whole = measure(outlines, threshold=threshold)
    advice = advise(outlines, template=None if tokenizer is None else tokenizer.template)
    if asked["json"]:
        told = {"threshold": threshold, "cases": cases, "drift": whole, "advice": advice, "unpinnable": why}
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    else:
        sys.stdout.write(_said(cases, whole, advice, why))
    return int(not whole.turns)


def _tokenizer(folder: Path) -> Rerenderer:
    try:
        return Rerenderer(folder)
    except MissingError as error:
        raise UsageError(
            f"--tokenizer: {error}",
            hint="it is a folder with tokenizer.json and a chat template; transformers comes with treering[tokenizer]",
        ) from error


# -- rollouts ---------------------------------------------------------------------------------------------------------


def _of_rollouts(
    plane: Client, asked: Mapping[str, Any], tokenizer: Rerenderer | None, threshold: int
) -> tuple[list[Case], list[Outline]]:
    cases, outlines = [], []
    for name in dict.fromkeys([*asked["id"], *_grouped(plane, asked["group"])]):
        one = outline(decode(plane.request("GET", f"/rollouts/{segment(name)}/graph")))
        turns = None
        if tokenizer is not None:
            path = f"/rollouts/{segment(name)}/calls"
            calls = (decode(plane.request("GET", f"{path}/{call.n}")) for call in one.main)
            turns = _rerendered(tokenizer, calls)
        outlines.append(one)
        cases.append(Case(name=name, measured=measure([one], threshold=threshold), rerendered=turns))
    return cases, outlines


def _grouped(plane: Client, group: str | None) -> Iterator[str]:
    after = None
    while group is not None:
        query = {"group": group, "limit": PAGE, "after": after}
        page = decode(plane.request("GET", "/rollouts", query=query))
        yield from (one["id"] for one in page["rollouts"])
        after = page["next"]
        if after is None:
            return


def _rerendered(tokenizer: Rerenderer, calls: Iterable[Mapping[str, Any]]) -> Turns:
    """Render calls again as a trainer would that has kept their messages, and compare with the engine's ids."""
    found = Turns()
    for call in calls:
        # Of another dialect: as it was translated for the engine.
        request = call.get("sent") or call.get("request") or {}
        prompt, sampled = call.get("prompt_ids"), call.get("sampled_ids")
        if prompt is None or sampled is None or not isinstance(request.get("messages"), list):
            found.left_out += 1
            continue
        found.turns += 1
        how: Json = {"tools": request.get("tools"), "arguments": request.get("chat_template_kwargs")}
        try:
            right = tokenizer.ids(request["messages"], **how) == prompt
            message = _reply(call)
            whole = tokenizer.ids([*request["messages"], message], closed=True, **how) if right and message else []
        except RefusedError:
            continue
        found.prompts_right += right
        found.turns_right += right and whole[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    return found


def _reply(call: Mapping[str, Any]) -> Json | None:
    """Return a chat reply's message without the fields that are empty; None of another dialect."""
    try:
        message = call["reply"]["choices"][call.get("choice", 0)]["message"]
    except (KeyError, TypeError, IndexError):
        return None
    return {"content": "", **{name: value for name, value in message.items() if value is not None}}


# -- an engine --------------------------------------------------------------------------------------------------------


async def _of_engine(
    settings: Settings, tokenizer: Rerenderer | None, threshold: int
) -> tuple[list[Case], list[Outline], str | None]:
    # A whole appliance: not imported where rollouts are read.
    from capture.trial.play import trial
    from capture.trial.scenarios import BRIEF, SCENARIOS

    cases, plain = [], []
    async with trial(settings) as one:
        why = await one.unpinnable()
        for name in BRIEF:
            for tokens in ("engine", "pinned") if why is None else ("engine",):
                try:
                    rollout = await one.play(SCENARIOS[name].script(), tokens=tokens)
                except EngineError as error:
                    if error.code != "engine_refused":
                        raise
                    # A template that knows no tools, an engine without a parser for them: told, and gone on.
                    sys.stderr.write(f"treering: {name}: {error.message}\n")
                    continue
                graph = outline(await one.control("GET", f"/rollouts/{rollout}/graph"))
                turns = None
                if tokens == "engine":
                    plain.append(graph)
                    if tokenizer is not None:
                        calls = [await one.control("GET", f"/rollouts/{rollout}/calls/{call.n}") for call in graph.main]
                        turns = _rerendered(tokenizer, calls)
                measured = measure([graph], threshold=threshold)
                cases.append(Case(name=f"{name}, {tokens}", measured=measured, rerendered=turns))
    return cases, plain, why


# -- words ------------------------------------------------------------------------------------------------------------


def _said(cases: Sequence[Case], whole: Measured, advice: Sequence[Advice], why: str | None) -> str:
    if not whole.turns:
        return "nothing to measure: no call of a main conversation\n"
    headers = ["", ">transitions", ">exact", ">tokens mean", ">max", ">rows", "causes, and why not pinned"]
    again = any(case.rerendered is not None for case in cases)
    lines = []
    for case in cases:
        one = case.measured
        causes = [f"{each.cause} {each.transitions}" for each in one.causes]
        causes += [f"{reason} {count}" for reason, count in one.fallbacks.items()]
        cells = [case.name, one.transitions, one.exact, _number(one.tokens_mean), _number(one.tokens_max)]
        cells += [one.split.rows, ", ".join(causes)]
        if again:
            turns = case.rerendered
            cells.append("" if turns is None else f"{turns.prompts_right} of {turns.turns}")
        lines.append(cells)
    parts = [terminal.table([*headers, *([">re-rendered right"] if again else [])], lines).strip("\n") + "\n"]
    share = "-" if not whole.transitions else f"{whole.exact / whole.transitions:.0%}"
    parts.append(
        f"\n{whole.exact} of {whole.transitions} transitions exact ({share}); {whole.split.rows} rows with"
        f" {whole.split.trained:,} trained tokens, {whole.split.forwarded:,} to forward;"
        f" {whole.realign.rows} rows with realign\n"
    )
    parts += [f"  {each.transitions} x {each.cause}: {each.means}\n" for each in whole.causes]
    if why is not None:
        parts.append(f"\nNothing can be pinned at this engine: {why}\n")
    if advice:
        parts.append("\nWhat would end it, and save at most:\n")
    for each in advice:
        saves = each.saves
        parts.append(
            f"  {each.setting}\n    {each.because}\n    saves {saves.transitions} transitions, {saves.rows} rows,"
            f" {saves.tokens:,} tokens to forward\n"
        )
    return "".join(parts)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
