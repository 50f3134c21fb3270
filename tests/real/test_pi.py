"""Real pi against the appliance on the scripted engine, by its printed recipe: a whole session, and an interrupted one.

pi compacts once the usage passes the context that it was told less the longest reply: here behind its first answer.
With a second prompt on its command line it may start that twice, one beside the other, with equal requests; it keeps
the one that ends last.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capture import agents
from tests.graph.corpus import Labels
from tests.real import played, program, session
from tests.real.played import label
from tests.real.session import Seen

PI = program.program("pi", "pi")
RULES = Path(__file__).parent / "pi_rules.toml"
PROMPTS = ("List it.", "And the pear?")
ABOUT = "pi 0.73.1 (MIT) on the scripted engine: tools, compaction that keeps a turn, second prompt"
# In tokens. Both lists are too long for this.
LIMITS = {"context": 12_000, "output": 1_024}
# In tokens, as the script has it.
SAID_BEFORE_INTERRUPT = 24

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


class Pi(msgspec.Struct, frozen=True, kw_only=True):
    """A run of pi, and the session's file that it kept, one entry a line."""

    seen: Seen
    kept: list[dict[str, Any]]

    @property
    def main(self) -> list[int]:
        return self.seen.where(lambda call: "tools" in call["request"])

    @property
    def summaries(self) -> list[int]:
        """pi summarises without tools."""
        return self.seen.where(lambda call: "tools" not in call["request"])

    @property
    def truth(self) -> Labels:
        return played.labels(
            label("main", self.main),
            *(label("auxiliary", [n], kind="summary") for n in self.summaries),
            compactions={next(n for n in self.main if n > self.summaries[0]): self.summaries},
        )


@pytest.fixture(scope="module")
def pi(tmp_path_factory: pytest.TempPathFactory) -> Pi:
    """One session, from the registration of its rollout to its sequences."""
    if reason := program.missing("pi", "pi"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("pi")
    seen = asyncio.run(session.play(PI, with_second_prompt, RULES, PROMPTS[0], folder, **LIMITS))
    (file,) = (folder / "agent" / "home" / ".pi" / "agent" / "sessions").glob("*/*.jsonl")
    found = Pi(seen=seen, kept=[json.loads(line) for line in file.read_text().splitlines()])
    played.keep(seen, found.truth, about=ABOUT)
    return found


def with_second_prompt(**given: Any) -> agents.Recipe:
    """What `treering agents pi` prints, and one more prompt on its command line."""
    recipe = agents.pi(**given)
    return msgspec.structs.replace(recipe, command=[*recipe.command, *PROMPTS[1:]])


# -- the session -------------------------------------------------------------------------------------------------------


def test_the_session_had_all_that_it_was_to_have(pi):
    assert [pi.seen.tools(n) for n in pi.main] == [["bash"], ["bash"], [], []]
    assert len(pi.summaries) in (1, 2)
    assert all(
        call["status"] == "complete" and call["delivered"] and call["streamed"] for call in pi.seen.calls.values()
    )


def test_the_forest_says_what_was_so(pi):
    assert pi.seen.verdict == pi.truth


def test_a_turn_was_kept_behind_the_summary(pi):
    """Its summariser saw what came before that turn, and a long result cut short."""
    summary, before, after = pi.summaries[0], pi.main[1], pi.main[-1]
    first, kept, result, *_ = pi.seen.request(after)["messages"][1:]
    (front,) = first["content"]
    assert pi.seen.reply(summary)["content"].strip() in front["text"]
    assert [tool["id"] for tool in kept["tool_calls"]] == [tool["id"] for tool in pi.seen.reply(before)["tool_calls"]]
    (transcript,) = pi.seen.request(summary)["messages"][1]["content"]
    assert result["content"] not in transcript["text"]
    assert "more characters truncated" in transcript["text"]


def test_ids_are_whole(pi):
    played.check_ids(pi.seen)


def test_drift_has_the_cause_that_the_messages_show(pi):
    """pi writes arguments its own way, and keeps the blank line before a tool call as content unless it is all there
    is; the template puts in another newline behind it."""
    first, second, third, _ = pi.main
    assert pi.seen.causes == {second: "arguments_reserialised", third: "turn_boundary"}
    echo = pi.seen.request(second)["messages"][2]
    assert (echo["content"], pi.seen.reply(first)["content"]) == (None, "\n\n")


def test_nothing_is_wrong_with_it(pi):
    expected = {"drift": "info", "compaction": "info", "auxiliary_calls": "info", "sampling_unpinned": "info"}
    if len(pi.summaries) == 2:
        expected["forks"] = "info"
    assert pi.seen.findings == expected


def test_main_is_trained_and_nothing_else(pi):
    played.check_training(pi.seen, pi.main)


def test_pi_printed_what_the_engine_said(pi):
    ended = pi.seen.ended
    assert (ended.code, ended.out, ended.err) == (0, pi.seen.reply(pi.main[-1])["content"] + "\n", "")


def test_pi_kept_what_the_engine_said(pi):
    """Reply by reply: reasoning, text, tool calls with their ids, and the usage."""
    messages = [entry["message"] for entry in pi.kept if entry["type"] == "message"]
    kept = [of_pi(message) for message in messages if message["role"] == "assistant"]
    assert kept == [of_engine(pi, n) for n in pi.main]


def of_pi(message: dict[str, Any]) -> dict[str, Any]:
    """What an assistant message of pi's session says."""
    parts = message["content"]
    return {
        "reasoning": "".join(part["thinking"] for part in parts if part["type"] == "thinking"),
        "text": "".join(part["text"] for part in parts if part["type"] == "text"),
        "tools": [(part["id"], part["name"], part["arguments"]) for part in parts if part["type"] == "toolCall"],
        "n_prompt": message["usage"]["input"] + message["usage"]["cacheRead"],
        "n_sampled": message["usage"]["output"],
    }


def of_engine(pi: Pi, n: int) -> dict[str, Any]:
    """The same of a recorded call."""
    call, reply = pi.seen.calls[n], pi.seen.reply(n)
    tools = [(tool["id"], tool["function"]) for tool in reply.get("tool_calls") or ()]
    return {
        "reasoning": reply["reasoning"],
        "text": reply["content"],
        "tools": [(name, function["name"], json.loads(function["arguments"])) for name, function in tools],
        "n_prompt": len(call["prompt_ids"]),
        "n_sampled": len(call["sampled_ids"]),
    }


# -- an interrupted one ------------------------------------------------------------------------------------------------


async def test_an_interrupt_drops_the_engines_request(tmp_path):
    if reason := program.missing("pi", "pi"):
        pytest.skip(reason)
    seen = await session.interrupt(PI, agents.pi, RULES, "Wait for me.", tmp_path)
    (call,) = seen.calls.values()
    assert (call["status"], call["delivered"], call["finish_reason"]) == ("aborted", False, None)
    assert call["n_sampled"] == len(call["sampled_ids"]) == len(call["logprobs"]) == SAID_BEFORE_INTERRUPT
    assert seen.warnings.keys() == {"aborted_calls", "nothing_trainable"}
    assert seen.sequences["n_trained_tokens"] == 0
    assert seen.ended.code != 0
