"""Real gemini-cli on the scripted engine, by its printed recipe: a subagent, a compaction, an interrupt.

gemini-cli 0.61 speaks Gemini: streamed, but for the two calls of a compaction, which has a summary written and then
looked over, and takes place between two prompts only. It sends no id of a session or a subagent, so which call belongs
to which conversation is taken from its tools: a subagent has `complete_task`, a summary has none.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capture.agents import gemini_cli
from tests.house import house
from tests.real.played import check_ids, check_training, label, labels
from tests.real.program import run, running
from tests.real.session import MODEL, Seen, interrupt, look, needed, play

RULES = Path(__file__).parent / "gemini_cli_rules.toml"
# In tokens. What was said by then is more, as gemini-cli counts.
LIMITS = {"context": 4_096, "output": 1_024}
# As the script has it.
SAID_BEFORE_INTERRUPT = 24

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def program() -> Path:
    return needed("gemini-cli", "gemini")


@pytest.fixture(scope="module")
def fruit(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A subagent."""
    folder = tmp_path_factory.mktemp("fruit")
    return asyncio.run(play(program, gemini_cli, RULES, "Look at a fruit and report.", folder))


@pytest.fixture(scope="module")
def counted(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A second prompt that finds the context too long."""
    return asyncio.run(two_prompts(program, tmp_path_factory.mktemp("counted")))


async def two_prompts(program: Path, folder: Path) -> Seen:
    async with house(f"scripted={RULES}", folder) as home:
        rollout = await home.rollout()
        access = {"base_url": rollout["base_url"], "model": MODEL, "secret": rollout["secret"]}
        first = await run(program, gemini_cli(**access), "Count to something.", folder / "agent")
        assert first.code == 0
        recipe = gemini_cli(**access, **LIMITS)
        again = msgspec.structs.replace(recipe, command=[*recipe.command, "--resume", "latest"])
        async with running(program, again, "And what now?", folder / "agent") as agent:
            return await look(home, rollout, agent, await agent.ended())


def tools(call: dict[str, Any]) -> list[str]:
    """Return the names of the tools that a call's request offers."""
    listed = call["request"].get("tools") or ()
    return [each["name"] for tool in listed for each in tool.get("functionDeclarations", ())]


def subagent(seen: Seen) -> list[int]:
    return seen.where(lambda call: "complete_task" in tools(call))


def main(seen: Seen) -> list[int]:
    return seen.where(lambda call: "invoke_agent" in tools(call))


def truncating(calls: Sequence[int]) -> dict[str, list[int]]:
    """The one warning of an ordinary run: gemini-cli asks main for a top-p and a top-k."""
    return {"sampling_truncates": list(calls)}


# -- tools and a subagent ----------------------------------------------------------------------------------------------


def test_the_run_had_all_that_it_was_to_have(fruit):
    assert [fruit.tools(n) for n in main(fruit)] == [["run_shell_command"], ["invoke_agent"], ["run_shell_command"], []]
    assert [fruit.tools(n) for n in subagent(fruit)] == [["run_shell_command"], ["complete_task"]]
    assert {(call["dialect"], call["streamed"]) for call in fruit.calls.values()} == {("gemini", True)}
    assert all(call["status"] == "complete" and call["delivered"] for call in fruit.calls.values())


def test_main_and_subagent_are_told_apart(fruit):
    starter = main(fruit)[1]
    assert fruit.verdict == labels(label("main", main(fruit)), label("subagent", subagent(fruit), parent_call=starter))
    assert fruit.graph["forks"] == []
    assert fruit.warnings == truncating(main(fruit))
    check_ids(fruit)


def test_gemini_cli_prints_what_the_engine_said(fruit):
    """Each text of main's, as it came."""
    assert fruit.ended.code == 0
    printed = [line for line in fruit.ended.out.splitlines() if line]
    assert printed == [text for n in main(fruit) if (text := fruit.says(n))]
    assert printed[-1] == "The work is done: the pear is green, and the report says so."
    assert fruit.files == {"report.txt": "written by main\n"}


def test_thoughts_are_left_out_of_what_comes_back(fruit):
    """So no turn is exact."""
    assert set(fruit.causes) == {*main(fruit)[1:], *subagent(fruit)[1:]}
    echoed = [part for n in fruit.calls for content in fruit.request(n)["contents"] for part in content["parts"]]
    assert not any(part.get("thought") for part in echoed)


def test_main_is_trained_and_nothing_else(fruit):
    check_training(fruit, main(fruit))
    assert fruit.left_out == dict.fromkeys(subagent(fruit), "role")


# -- compaction --------------------------------------------------------------------------------------------------------


def summaries(seen: Seen) -> list[int]:
    return seen.where(lambda call: not tools(call))


def test_a_compaction_goes_on_from_the_summary(counted):
    written, reviewed = summaries(counted)
    before, after = main(counted)[1:]
    assert counted.verdict == labels(
        label("main", main(counted)),
        label("auxiliary", [written], kind="summary"),
        label("auxiliary", [reviewed], kind="summary"),
        compactions={after: (written, reviewed)},
    )
    assert (counted.calls[after]["link"], counted.calls[after]["parent"]) == ("compaction", before)
    assert not any(counted.calls[n]["streamed"] for n in (written, reviewed))
    assert counted.warnings == truncating(main(counted))
    check_ids(counted)


def test_a_summary_is_asked_of_another_model_and_given_by_the_rollouts(counted):
    for n in summaries(counted):
        call = counted.calls[n]
        assert call["model_asked"] not in (None, MODEL)
        assert call["reply"]["modelVersion"] == call["model_asked"]
        assert call["sent"]["model"] == counted.calls[0]["sent"]["model"]


def test_behind_the_compaction_gemini_cli_prints_what_the_engine_said(counted):
    assert counted.ended.code == 0
    assert counted.ended.out.strip() == counted.says(main(counted)[-1]) == "Now there is nothing left to count."
    check_training(counted, main(counted))


# -- a broken stream ---------------------------------------------------------------------------------------------------


async def test_gemini_cli_takes_no_broken_stream_for_a_whole_one(program, tmp_path):
    """It would, if the stream had a clean end."""
    seen = await play(program, gemini_cli, RULES, "Break off.", tmp_path)
    assert [(call["status"], call["delivered"]) for call in seen.calls.values()] == [
        ("complete", True),
        ("aborted", False),
    ]
    assert seen.main == [0, 1]
    assert seen.left_out == {1: "aborted"}
    assert seen.ended.code != 0


# -- an interrupt ------------------------------------------------------------------------------------------------------


async def test_an_interrupt_drops_the_engines_request(program, tmp_path):
    seen = await interrupt(program, gemini_cli, RULES, "Wait for me.", tmp_path)
    assert [call["status"] for call in seen.calls.values()] == ["complete", "aborted"]
    call = seen.calls[1]
    assert (call["link"], call["parent"], call["delivered"], call["finish_reason"]) == ("drift", 0, False, None)
    assert call["n_sampled"] == len(call["sampled_ids"]) == len(call["logprobs"]) == SAID_BEFORE_INTERRUPT
    assert seen.main == [0, 1]
    assert seen.left_out == {1: "aborted"}
    assert seen.warnings["aborted_calls"] == [1]
    check_training(seen, [0])
