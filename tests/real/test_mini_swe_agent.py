"""Real mini-swe-agent against the appliance on the scripted engine, by its printed recipe: one run, and one broken off.

mini-swe-agent streams nothing, and keeps what litellm makes of a reply. A reply without a tool call it drops: its next
request tells of the mistake, and goes on from the turn before.
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

MINI = program.REAL / "mini-swe-agent" / "bin" / "mini"
RULES = Path(__file__).parent / "mini_swe_agent_rules.toml"
ABOUT = "mini-swe-agent 2.4.6 (MIT) on the scripted engine: tools, a reply that it drops"

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


class Mini(msgspec.Struct, frozen=True, kw_only=True):
    """A run of mini-swe-agent, and the trajectory that it kept."""

    seen: Seen
    trajectory: dict[str, Any]

    @property
    def dropped(self) -> int:
        (found,) = (n for n in self.seen.calls if not self.seen.tools(n))
        return found

    @property
    def truth(self) -> Labels:
        """One loop, the dropped reply beside it."""
        labels = played.labels(label("main", [*self.seen.calls]))
        parents = labels.parents | {self.dropped + 1: self.dropped - 1}
        return msgspec.structs.replace(labels, parents=parents, discarded=(self.dropped,))


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    """One run, from the registration of its rollout to its sequences."""
    if reason := program.missing_venv("mini-swe-agent", "mini"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("mini")
    seen = asyncio.run(session.play(MINI, agents.mini_swe_agent, RULES, "Say hello.", folder))
    found = Mini(seen=seen, trajectory=json.loads(seen.files["trajectory.json"]))
    played.keep(seen, found.truth, about=ABOUT)
    return found


# -- the run -----------------------------------------------------------------------------------------------------------


def test_the_run_had_all_that_it_was_to_have(mini):
    assert [mini.seen.tools(n) for n in mini.seen.calls] == [["bash"], [], ["bash"], ["bash"]]
    assert all(
        call["status"] == "complete" and call["delivered"] and not call["streamed"] for call in mini.seen.calls.values()
    )


def test_the_forest_says_what_was_so(mini):
    assert mini.seen.verdict == mini.truth


def test_the_reply_that_it_drops_is_discarded(mini):
    (fork,) = mini.seen.graph["forks"]
    assert fork == {"at": 0, "kind": "branch", "children": [1, 2], "kept": 2}


def test_ids_are_whole(mini):
    played.check_ids(mini.seen)


def test_a_turn_comes_back_as_the_engine_told_it(mini):
    """Its arguments to the letter, its reasoning, its ids; and a drift that is the engine's own: what it sampled is
    not what its parser told."""
    reply, echo = mini.seen.reply(0), mini.seen.request(1)["messages"][2]
    assert [(tool["id"], tool["function"]) for tool in echo["tool_calls"]] == [
        (tool["id"], tool["function"]) for tool in reply["tool_calls"]
    ]
    assert echo["reasoning_content"] == reply["reasoning"]
    assert "content" not in echo
    assert mini.seen.causes[1] == "text_retokenised"


def test_its_own_words_in_between_take_the_reasoning_away(mini):
    assert mini.seen.causes[mini.dropped + 1] == "reasoning_stripped"


def test_nothing_is_wrong_with_it(mini):
    assert mini.seen.findings == {
        "drift": "info",
        "forks": "info",
        "discarded_calls": "info",
        "sampling_unpinned": "info",
    }


def test_main_is_trained_and_what_was_dropped_is_not(mini):
    played.check_training(mini.seen, [n for n in mini.seen.calls if n != mini.dropped])


def test_it_kept_what_the_engine_said(mini):
    """Reply by reply: what was said, and the usage."""
    extras = [message.get("extra", {}) for message in mini.trajectory["messages"]]
    kept = [extra["response"] for extra in extras if "response" in extra]
    assert [of_kept(response) for response in kept] == [
        (call["id"], mini.seen.says(n), mini.seen.tools(n), call["n_prompt"], call["n_sampled"])
        for n, call in mini.seen.calls.items()
    ]


def of_kept(response: dict[str, Any]) -> Any:
    """What a reply in the trajectory says."""
    (choice,) = response["choices"]
    message, usage = choice["message"], response["usage"]
    tools = [tool["function"]["name"] for tool in message.get("tool_calls") or ()]
    text = (message["content"] or "").strip()
    return response["id"], text, tools, usage["prompt_tokens"], usage["completion_tokens"]


def test_it_handed_in_what_its_tools_wrote(mini):
    assert mini.seen.ended.code == 0
    assert mini.trajectory["info"]["exit_status"] == "Submitted"
    assert mini.trajectory["info"]["submission"] == mini.seen.files["report.txt"] == "written by main\n"
    for n in mini.seen.calls.keys() - {mini.dropped}:
        assert mini.seen.says(n) in mini.seen.ended.out


# -- one that is broken off --------------------------------------------------------------------------------------------


async def test_an_interrupt_drops_the_engines_request(tmp_path):
    """It shows the interrupt to its user, who has no terminal here, and ends."""
    if reason := program.missing_venv("mini-swe-agent", "mini"):
        pytest.skip(reason)
    seen = await session.interrupt(MINI, agents.mini_swe_agent, RULES, "Wait for me.", tmp_path)
    (call,) = seen.calls.values()
    assert (call["status"], call["delivered"], call["finish_reason"]) == ("aborted", False, None)
    assert seen.warnings.keys() == {"aborted_calls", "nothing_trainable"}
    assert seen.sequences["n_trained_tokens"] == 0
    assert seen.ended.code != 0
