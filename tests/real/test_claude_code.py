"""Real claude-code on the scripted engine, by its printed recipe: a title, two subagents at once, a compaction, an
interrupt.

claude-code 2.1 speaks Anthropic Messages, streamed. It joins its reminders and a prompt in one user message, and puts
messages of the role `system` behind prompts and results. It compacts by a request for a summary in the place of the
results of the last turn, which it keeps behind the summary.

Which call belongs to which conversation is taken from claude-code: a subagent has an id, in a header, and the title is
asked for without tools. Its prompts are its maker's, so nothing of its traffic is kept.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capture.agents import Recipe, claude_code
from tests.graph.corpus import Labels
from tests.real.played import check_ids, check_training, label, labels
from tests.real.session import Seen, interrupt, needed, play, said

HERE = Path(__file__).parent
# In tokens. The list that main reads is too long for this, and all else fits.
LIMITS = {"context": 70_000, "output": 1_024}
# As the script has it.
SAID_BEFORE_INTERRUPT = 24
AGENT = "x-claude-code-agent-id"

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]


def with_title(**access: Any) -> Recipe:
    """The recipe without what keeps claude-code from asking for titles."""
    recipe = claude_code(**access)
    return msgspec.structs.replace(
        recipe, env={name: value for name, value in recipe.env.items() if "NONESSENTIAL" not in name}
    )


@pytest.fixture(scope="module")
def program() -> Path:
    return needed("claude-code", "claude")


@pytest.fixture(scope="module")
def readers(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Two subagents at once, and a title."""
    folder, rules = tmp_path_factory.mktemp("readers"), HERE / "claude_code_rules.toml"
    return asyncio.run(play(program, with_title, rules, "Let two readers meet at a pipe.", folder))


@pytest.fixture(scope="module")
def counted(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A compaction in the middle of a turn."""
    folder, rules = tmp_path_factory.mktemp("counted"), HERE / "claude_code_counts.toml"
    return asyncio.run(play(program, claude_code, rules, "Count to something.", folder, **LIMITS))


def agents(seen: Seen) -> dict[str | None, list[int]]:
    """Return the calls of each of claude-code's agents; main is None, the title left out."""
    found: dict[str | None, list[int]] = {None: []}
    for n, call in seen.calls.items():
        if call["request"]["tools"]:
            found.setdefault(call["hints"].get(AGENT), []).append(n)
    return found


def titles(seen: Seen) -> list[int]:
    return seen.where(lambda call: not call["request"]["tools"])


def interval(seen: Seen, calls: Sequence[int]) -> tuple[datetime, datetime]:
    """Return the start of the first call and the end of the last."""
    start, last = (datetime.fromisoformat(seen.calls[n]["started_at"]) for n in (calls[0], calls[-1]))
    return start, last + timedelta(milliseconds=seen.calls[calls[-1]]["ended_ms"])


# -- title, tools and subagents ----------------------------------------------------------------------------------------


def test_the_run_had_all_that_it_was_to_have(readers):
    main, *children = agents(readers).values()
    assert [readers.tools(n) for n in main] == [["Bash"], ["Agent", "Agent"], ["Bash"], []]
    assert [[readers.tools(n) for n in calls] for calls in children] == [[["Bash"], []]] * 2
    assert len(titles(readers)) == 1
    assert {(call["dialect"], call["streamed"]) for call in readers.calls.values()} == {("messages", True)}
    assert all(call["status"] == "complete" and call["delivered"] for call in readers.calls.values())


def test_subagents_run_at_the_same_time(readers):
    """Each met the other at the pipe, which opens for none that comes alone."""
    _, one, other = agents(readers).values()
    (one_start, one_end), (other_start, other_end) = interval(readers, one), interval(readers, other)
    assert one_start < other_end
    assert other_start < one_end


def test_each_agent_is_a_conversation(readers):
    main, *children = agents(readers).values()
    true: Labels = labels(
        label("main", main),
        label("auxiliary", titles(readers), kind="title"),
        *(label("subagent", calls, parent_call=main[1]) for calls in children),
    )
    assert readers.verdict == true
    assert readers.graph["forks"] == []
    assert readers.warnings == {}
    check_ids(readers)


def test_data_flow_shows_a_subagent_on_both_its_ends(readers):
    """The prompt stands behind a reminder in its message, and the answer before what claude-code adds to it."""
    for found in readers.of_role("subagent"):
        rules = [evidence["rule"] for evidence in found["evidence"]]
        assert rules == ["prompt_in_arguments", "reply_in_result", "session_hint"]


def test_only_what_is_no_longer_as_it_was_said_drifts(readers):
    """Thinking comes back with its signature and arguments as an object, which the engine's template writes as it would
    have them written; and a text before a call comes back without the line break behind it."""
    (listens,) = readers.where(lambda call: "timeout 30 cat meet" in [tool.get("command") for tool in arguments(call)])
    (answers,) = [calls[1] for calls in agents(readers).values() if calls[0] == listens]
    assert readers.causes == {readers.main[2]: "turn_boundary", answers: "arguments_reserialised"}


def arguments(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for _, found in said(call)["tools"]]


def test_claude_code_prints_what_the_engine_said(readers):
    assert readers.ended.code == 0
    last = readers.says(readers.main[-1])
    assert readers.ended.out.strip() == last == "The work is done: both readers met, and the report says so."
    assert readers.files == {"report.txt": "written by main\n"}


def test_main_is_trained_and_nothing_else(readers):
    check_training(readers, readers.main)
    # The title's form is held to a schema.
    reasons = {n: "role" if call["request"]["tools"] else "constrained" for n, call in readers.calls.items()}
    assert readers.left_out == {n: reason for n, reason in reasons.items() if n not in readers.main}


# -- compaction --------------------------------------------------------------------------------------------------------


def test_a_compaction_stays_in_main_and_goes_on_from_the_summary(counted):
    assert [counted.tools(n) for n in counted.calls] == [["Bash"], ["Bash"], [], []]
    assert counted.main == [0, 1, 2, 3]
    assert [(call["link"], call["parent"]) for call in counted.calls.values()] == [
        ("root", None),
        ("exact", 0),
        # The summary, asked for in the place of the last turn's result.
        ("drift", 0),
        ("compaction", 2),
    ]
    assert counted.calls[3]["carries"] == [2]
    assert counted.warnings == {}
    check_ids(counted)


def test_the_turn_that_is_kept_behind_the_summary_is_not_discarded(counted):
    assert said(counted.calls[1])["tools"] == [("Bash", {"command": "echo counted", "description": "Say so"})]
    assert not any(call["discarded"] for call in counted.graph["calls"])
    check_training(counted, [0, 1, 2, 3])
    assert counted.left_out == {}


def test_behind_the_compaction_claude_code_prints_what_the_engine_said(counted):
    assert counted.ended.code == 0
    assert counted.ended.out.strip() == counted.says(3) == "The counting is done, as the summary says."


# -- a broken stream ---------------------------------------------------------------------------------------------------


async def test_claude_code_takes_no_broken_stream_for_a_whole_one(program, tmp_path):
    seen = await play(program, claude_code, HERE / "claude_code_breaks.toml", "Break off.", tmp_path)
    assert [(call["status"], call["delivered"]) for call in seen.calls.values()] == [
        ("complete", True),
        ("aborted", False),
    ]
    assert seen.main == [0, 1]
    assert seen.left_out == {1: "aborted"}
    assert seen.ended.code != 0


# -- an interrupt ------------------------------------------------------------------------------------------------------


async def test_an_interrupt_drops_the_engines_request(program, tmp_path):
    seen = await interrupt(program, claude_code, HERE / "claude_code_waits.toml", "Wait for me.", tmp_path)
    assert [call["status"] for call in seen.calls.values()] == ["complete", "aborted"]
    call = seen.calls[1]
    assert (call["parent"], call["delivered"], call["finish_reason"]) == (0, False, None)
    assert call["n_sampled"] == len(call["sampled_ids"]) == len(call["logprobs"]) == SAID_BEFORE_INTERRUPT
    assert seen.main == [0, 1]
    assert seen.warnings == {"aborted_calls": [1]}
    assert seen.left_out == {1: "aborted"}
    check_training(seen, [0])
    # It says so by a word on its output, and by no exit code.
    assert "I count" not in seen.ended.out
