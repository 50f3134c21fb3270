"""Real qwen-code against the appliance on the scripted engine, by its printed recipe: one session, and one broken off.

qwen-code compacts once the usage passes 0.7 of the context that it was told, in the middle of a prompt too. It asks for
the summary inside the conversation, with the real messages of what it will leave out, another system text, no tools,
and not streamed; it keeps the last two turns with tools behind it.
"""

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from capture import agents
from tests.graph.corpus import Labels
from tests.real import played, program, session
from tests.real.played import label
from tests.real.session import Seen

QWEN = program.program("qwen-code", "qwen")
RULES = Path(__file__).parent / "qwen_code_rules.toml"
PROMPT = "Ask a helper, then report."
ABOUT = "qwen-code 0.15.10 (Apache-2.0) on the scripted engine: tools, a subagent, a summary asked for inside"
# In tokens. The first prompt is shorter than 0.7 of this, the second longer.
LIMITS = {"context": 64_000, "output": 2_048}
# In tokens, as the script has it.
SAID_BEFORE_INTERRUPT = 24

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


class Qwen(msgspec.Struct, frozen=True, kw_only=True):
    """A run of qwen-code, and what it made each call for."""

    seen: Seen

    def made_for(self, purpose: str) -> list[int]:
        """Return the calls for `main`, for the `subagent`, which lacks the tool `agent`, or for a `summary`."""
        found = []
        for n in self.seen.calls:
            tools = {tool["function"]["name"] for tool in self.seen.request(n).get("tools", ())}
            if purpose == ("main" if "agent" in tools else "subagent" if tools else "summary"):
                found.append(n)
        return found

    @property
    def truth(self) -> Labels:
        main, subagent, (summary,) = (self.made_for(purpose) for purpose in ("main", "subagent", "summary"))
        after = next(n for n in main if n > summary)
        labels = played.labels(
            label("main", sorted([*main, summary])),
            label("subagent", subagent, parent_call=main[1]),
            compactions={after: [summary]},
        )
        # The summary was asked for behind the first turn; all else goes on from what came before it.
        parents = {n: before for chain in (main, subagent) for before, n in pairwise(chain)}
        return msgspec.structs.replace(labels, parents=parents | {summary: main[0], after: summary})


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Qwen:
    """One session, from the registration of its rollout to its sequences."""
    if reason := program.missing("qwen-code", "qwen"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("qwen")
    found = Qwen(seen=asyncio.run(session.play(QWEN, agents.qwen_code, RULES, PROMPT, folder, **LIMITS)))
    played.keep(found.seen, found.truth, about=ABOUT)
    return found


# -- the session -------------------------------------------------------------------------------------------------------


def test_the_session_had_all_that_it_was_to_have(qwen):
    tools = [qwen.seen.tools(n) for n in qwen.made_for("main")]
    assert tools == [["run_shell_command"], ["agent"], ["run_shell_command"], ["run_shell_command"], []]
    assert [qwen.seen.tools(n) for n in qwen.made_for("subagent")] == [["run_shell_command"], []]
    (summary,) = qwen.made_for("summary")
    assert [n for n, call in qwen.seen.calls.items() if not call["streamed"]] == [summary]
    assert all(call["status"] == "complete" and call["delivered"] for call in qwen.seen.calls.values())


def test_the_forest_says_what_was_so(qwen):
    assert qwen.seen.verdict == qwen.truth


def test_data_flow_shows_the_subagent_on_both_its_ends(qwen):
    (subagent,) = qwen.seen.of_role("subagent")
    assert {"prompt_in_arguments", "reply_in_result"} <= {evidence["rule"] for evidence in subagent["evidence"]}


def test_a_greeting_that_nobody_sampled_is_no_reply(qwen):
    """Each conversation begins with one, and each summary is answered by another."""
    first, summary, after = qwen.made_for("main")[0], qwen.made_for("summary")[0], qwen.made_for("main")[-1]
    greetings = [qwen.seen.request(n)["messages"][2] for n in (first, summary, after)]
    assert [message["role"] for message in greetings] == ["assistant"] * 3
    assert greetings[0] == greetings[1]
    assert {message["content"] for message in greetings}.isdisjoint(map(qwen.seen.says, qwen.seen.calls))


def test_ids_are_whole(qwen):
    played.check_ids(qwen.seen)


def test_a_turn_comes_back_with_its_reasoning_trimmed_and_its_arguments_written_again(qwen):
    first, second, *_ = qwen.made_for("main")
    reply, echo = qwen.seen.reply(first), qwen.seen.request(second)["messages"][4]
    (said,), (echoed,) = reply["tool_calls"], echo["tool_calls"]
    assert echo["reasoning_content"] == reply["reasoning"].strip() != reply["reasoning"]
    assert echo["content"] == reply["content"]
    assert echoed["id"] == said["id"]
    assert echoed["function"]["arguments"] != said["function"]["arguments"]
    assert json.loads(echoed["function"]["arguments"]) == json.loads(said["function"]["arguments"])


def test_every_turn_drifts_a_little_and_the_summary_by_its_system_text(qwen):
    (summary,) = qwen.made_for("summary")
    drifted = {n: call["drift"] for n, call in qwen.seen.calls.items() if call["drift"] is not None}
    heads = {qwen.made_for("main")[0], qwen.made_for("main")[-1], qwen.made_for("subagent")[0]}
    assert drifted.keys() == qwen.seen.calls.keys() - heads
    assert all((drift["where"] == "sampled") == (n != summary) for n, drift in drifted.items())
    assert all((drift["tokens"] < 100) == (n != summary) for n, drift in drifted.items())


def test_nothing_is_wrong_with_it(qwen):
    """The summary's prompt begins with another system text, which is drift by design."""
    assert qwen.seen.findings == {
        "drift": "info",
        "drift_over_threshold": "warn",
        "compaction": "info",
        "forks": "info",
        "subagents": "info",
        "sampling_unpinned": "info",
    }


def test_main_is_trained_and_nothing_else(qwen):
    """With its summary: what it carries into the later prompts was sampled by main."""
    played.check_training(qwen.seen, [*qwen.made_for("main"), *qwen.made_for("summary")])


def test_qwen_code_printed_what_the_engine_said(qwen):
    assert qwen.seen.ended.code == 0
    assert qwen.seen.ended.out.strip() == qwen.seen.says(qwen.made_for("main")[-1])
    assert qwen.seen.ended.err == ""


def test_its_tools_did_what_the_engine_said(qwen):
    assert qwen.seen.files == {"report.txt": "written by main\n"}


# -- an interrupted one ------------------------------------------------------------------------------------------------


async def test_an_interrupt_drops_the_engines_request(tmp_path):
    if reason := program.missing("qwen-code", "qwen"):
        pytest.skip(reason)
    seen = await session.interrupt(QWEN, agents.qwen_code, RULES, "Wait for me.", tmp_path)
    (call,) = seen.calls.values()
    assert (call["status"], call["delivered"], call["finish_reason"]) == ("aborted", False, None)
    assert call["n_sampled"] == len(call["sampled_ids"]) == len(call["logprobs"]) == SAID_BEFORE_INTERRUPT
    assert seen.warnings.keys() == {"aborted_calls", "nothing_trainable"}
    assert seen.sequences["n_trained_tokens"] == 0
    assert seen.ended.code != 0
