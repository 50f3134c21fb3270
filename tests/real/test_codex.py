"""Real codex on the scripted engine, by its printed recipe: two subagents at once, a compaction, an interrupt.

codex 0.171 speaks OpenAI Responses, streamed always, with the whole history in each request. It runs a tool call once
its item is done, so a subagent's first request may come while the reply that started it is still streamed; it does not
wait for its subagents, and kills those that still run when main ends.

Which call belongs to which conversation is taken from codex: each of its threads has an id, in a header.
"""

import asyncio
import json
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from capture.agents import codex
from tests.graph.corpus import Labels
from tests.real.played import Played, check_ids, check_training, label, labels
from tests.real.session import Seen, interrupt, needed, play, said

RULES = Path(__file__).parent / "codex_rules.toml"
# In tokens. The list that main reads is too long for this, and all else fits.
LIMITS = {"context": 21_024, "output": 1_024}
# As the script has it.
SAID_BEFORE_INTERRUPT = 24
ABOUT = "codex 0.171.0 (Apache-2.0) on the scripted engine: "

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def program() -> Path:
    return needed("codex", "codex")


@pytest.fixture(scope="module")
def fruits(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Two subagents at once, one of them waited for and the other killed."""
    folder, prompt = tmp_path_factory.mktemp("fruits"), "Look at two fruits and report."
    about = f"{ABOUT}two subagents at once, one of them killed"
    return asyncio.run(play(program, codex, RULES, prompt, folder, keep=(truth, about)))


@pytest.fixture(scope="module")
def counted(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A compaction in the middle of a turn."""
    folder, prompt = tmp_path_factory.mktemp("counted"), "Count to something."
    about = f"{ABOUT}a compaction inside the main conversation"
    return asyncio.run(play(program, codex, RULES, prompt, folder, keep=(truth, about), **LIMITS))


def threads(seen: Played) -> dict[str, list[int]]:
    """Return the calls of each of codex's threads, main's first."""
    found: dict[str, list[int]] = {}
    for n, call in seen.calls.items():
        found.setdefault(call["hints"]["thread-id"], []).append(n)
    return found


def kind(call: dict[str, Any]) -> str:
    """Return what codex says that it made a call for: `turn` or `compaction`."""
    return str(json.loads(call["request"]["client_metadata"]["x-codex-turn-metadata"])["request_kind"])


def truth(seen: Played) -> Labels:
    """What codex made each call for."""
    main, *children = threads(seen).values()
    starter = next((n for n in main if "spawn_agent" in [name for name, _ in said(seen.calls[n])["tools"]]), None)
    return labels(
        label("main", main),
        *(label("subagent", calls, parent_call=starter) for calls in children),
        compactions={after: (n,) for n, after in pairwise(main) if kind(seen.calls[n]) == "compaction"},
    )


# -- tools and subagents -----------------------------------------------------------------------------------------------


def test_the_run_had_all_that_it_was_to_have(fruits):
    main, *children = threads(fruits).values()
    assert [fruits.tools(n) for n in main] == [
        ["exec_command"],
        ["spawn_agent", "spawn_agent"],
        ["wait_agent"],
        ["exec_command"],
        [],
    ]
    assert sorted([fruits.tools(n) for n in calls] for calls in children) == [[[]], [["exec_command"], []]]
    assert {(call["dialect"], call["streamed"]) for call in fruits.calls.values()} == {("responses", True)}
    parents = {fruits.calls[calls[0]]["hints"]["x-codex-parent-thread-id"] for calls in children}
    assert parents == {fruits.calls[main[0]]["hints"]["thread-id"]}


def test_each_thread_is_a_conversation(fruits):
    assert fruits.verdict == truth(fruits)
    assert fruits.graph["forks"] == []
    check_ids(fruits)


def test_a_subagent_starts_while_its_starter_is_streamed(fruits):
    main, *children = threads(fruits).values()
    starter = fruits.calls[main[1]]
    end = datetime.fromisoformat(starter["started_at"]) + timedelta(milliseconds=starter["ended_ms"])
    assert min(datetime.fromisoformat(fruits.calls[calls[0]]["started_at"]) for calls in children) < end


def test_the_subagent_that_was_killed_is_the_only_broken_call(fruits):
    (killed,) = fruits.where(lambda call: call["status"] != "complete")
    call = fruits.calls[killed]
    assert (call["status"], call["delivered"], call["finish_reason"]) == ("aborted", False, None)
    assert "x-codex-parent-thread-id" in call["hints"]
    assert 0 < call["n_sampled"] == len(call["sampled_ids"]) == len(call["logprobs"])
    assert fruits.warnings == {"aborted_calls": [killed]}
    assert all(call["delivered"] for n, call in fruits.calls.items() if n != killed)


def test_codex_prints_what_the_engine_said(fruits):
    assert fruits.ended.code == 0
    last = fruits.says(fruits.main[-1])
    assert fruits.ended.out.strip() == last == "The work is done: the pear is green, and the apple can wait."
    assert fruits.files == {"report.txt": "written by main\n"}


def test_codex_sends_back_to_the_letter_what_the_engine_said(fruits):
    """Each later request of a thread begins with the earlier one, and goes on with the reply's own items."""
    for before, after in (pair for calls in threads(fruits).values() for pair in pairwise(calls)):
        asked, then = (fruits.calls[n]["request"]["input"] for n in (before, after))
        assert then[: len(asked)] == asked
        output = fruits.calls[before]["reply"]["output"]
        echoed = then[len(asked) : len(asked) + len(output)]
        # It leaves out what says nothing, such as an empty status.
        assert [{name: item[name] for name in echo} for item, echo in zip(output, echoed, strict=True)] == echoed
    assert said(fruits.calls[fruits.main[0]])["tools"] == [("exec_command", '{ "cmd" :  "echo about to begin" }')]


def test_every_drift_has_a_cause(fruits):
    """All comes back as it was; the engine's template has other line breaks between thinking and call, and drops
    thinking before a new user message, such as the one by which codex tells that a subagent has ended."""
    causes = [fruits.causes[n] for n in fruits.main[1:]]
    assert causes == ["turn_boundary", "turn_boundary", "reasoning_stripped", "turn_boundary"]


def test_main_is_trained_and_nothing_else(fruits):
    check_training(fruits, fruits.main)
    reasons = {n: "role" if call["status"] == "complete" else "aborted" for n, call in fruits.calls.items()}
    assert fruits.left_out == {n: reason for n, reason in reasons.items() if n not in fruits.main}


# -- compaction --------------------------------------------------------------------------------------------------------


def test_a_compaction_stays_in_main_and_goes_on_from_the_summary(counted):
    assert [kind(counted.calls[n]) for n in counted.calls] == ["turn", "turn", "compaction", "turn"]
    assert counted.verdict == truth(counted)
    assert [counted.calls[n]["link"] for n in counted.main] == ["root", "drift", "drift", "compaction"]
    assert not any(call["discarded"] for call in counted.graph["calls"])
    # The summary is asked for without tools, which stand at the top of the prompt.
    assert counted.causes[2] == "tools_changed"
    assert counted.warnings == {"drift_over_threshold": [2]}
    check_ids(counted)


def test_a_summary_is_trained_with_main(counted):
    check_training(counted, [0, 1, 2, 3])
    assert counted.left_out == {}


def test_behind_the_compaction_codex_prints_what_the_engine_said(counted):
    assert counted.ended.code == 0
    assert counted.ended.out.strip() == counted.says(3) == "The counting is done, as the summary says."


# -- a broken stream ---------------------------------------------------------------------------------------------------


async def test_after_a_broken_stream_codex_asks_again_with_what_was_done(program, tmp_path):
    seen = await play(program, codex, RULES, "Break off.", tmp_path)
    assert [(call["status"], call["delivered"]) for call in seen.calls.values()] == [
        ("complete", True),
        ("aborted", False),
        ("complete", True),
    ]
    asked, again = (seen.request(n)["input"] for n in (1, 2))
    assert again[: len(asked)] == asked
    assert [item["type"] for item in again[len(asked) :]] == ["reasoning"]
    assert seen.main == [0, 1, 2]
    # The thinking of the broken try was used, and the second is what went on.
    assert seen.graph["forks"] == [{"at": 0, "kind": "branch", "children": [1, 2], "kept": 2}]
    assert not any(call["discarded"] for call in seen.graph["calls"])
    assert seen.warnings == {"aborted_calls": [1]}
    assert seen.left_out == {1: "aborted"}
    check_training(seen, [0, 2])
    assert seen.ended.code == 0
    assert seen.ended.out.strip() == seen.says(2) == "The work is done, and all of it is well."


# -- an interrupt ------------------------------------------------------------------------------------------------------


async def test_an_interrupt_drops_the_engines_request(program, tmp_path):
    seen = await interrupt(program, codex, RULES, "Wait for me.", tmp_path)
    assert [call["status"] for call in seen.calls.values()] == ["complete", "aborted"]
    call = seen.calls[1]
    assert (call["link"], call["parent"], call["delivered"], call["finish_reason"]) == ("drift", 0, False, None)
    assert call["n_sampled"] == len(call["sampled_ids"]) == len(call["logprobs"]) == SAID_BEFORE_INTERRUPT
    assert seen.main == [0, 1]
    assert seen.warnings == {"aborted_calls": [1]}
    assert seen.left_out == {1: "aborted"}
    check_training(seen, [0])
    assert seen.ended.code == 1
    assert "turn interrupted" in seen.ended.err
