"""Real Harbor: its own details of a rollout are ours, id by id, and an agent that it runs by our printed configuration.

terminus-2 asks for ids and logprobs itself, so what Treering takes for its record has to reach it too. It streams
nothing and has no tools. When its context is full it hands over to itself: a summary and answers asked for inside the
conversation, questions from a conversation of their own, and a new prompt spliced from all three.

Harbor itself runs in its own environment (Python 3.12), and its sandbox here is this machine: no container.
"""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capture import agents
from capture.agents import TASK, Recipe
from tests.graph.corpus import Labels
from tests.real import played, program, session
from tests.real.played import label
from tests.real.session import Seen

HERE = Path(__file__).parent
PYTHON = program.REAL / "harbor" / "bin" / "python"
HARBOR = program.REAL / "harbor" / "bin" / "harbor"
OPENCODE = program.program("opencode", "opencode")
RULES = HERE / "harbor_rules.toml"
OPENCODE_RULES = HERE / "harbor_opencode_rules.toml"
ABOUT = "Harbor 0.25.0's terminus-2 (Apache-2.0) on the scripted engine: commands in text, a hand-over to itself"
SESSION = "a-session-of-harbors-own"

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


def job(recipe: Recipe, *options: str, env: dict[str, str] | None = None) -> Recipe:
    """Return how to run the agent of a job without Harbor's containers: the same file, by our own script."""
    (content,) = recipe.files.values()
    return Recipe(
        files={"~/harbor.json": content},
        # Harbor counts tokens with litellm, which fetches prices from the internet at each start unless told.
        env={**recipe.env, **(env or {}), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        command=["python", str(HERE / "harbor_job.py"), ".", TASK, "../home/harbor.json", *options],
    )


def terminus(*, base_url: str, model: str, secret: str) -> Recipe:
    """A job with terminus-2 that collects details."""
    agent = {
        "name": "terminus-2",
        "model_name": f"openai/{model}",
        "kwargs": {
            "api_base": base_url,
            "collect_rollout_details": True,
            "record_terminal_session": False,
            "session_id": SESSION,
            "session_id_headers": ["x-session-id"],
            "model_info": {"max_input_tokens": 32_768, "max_output_tokens": 4_096},
        },
    }
    content = json.dumps({"agents": [agent]})
    return job(Recipe(files={"harbor.json": content}, env={"OPENAI_API_KEY": secret}, command=[]))


def missing() -> str | None:
    """Say in a sentence why Harbor's agents cannot be run here, or return None."""
    if shutil.which("tmux") is None:
        return "harbor: terminus-2 types into tmux, and that is not on the PATH"
    return program.missing_venv("harbor", "harbor")


# -- terminus-2 --------------------------------------------------------------------------------------------------------


class Terminus(msgspec.Struct, frozen=True, kw_only=True):
    """A run of terminus-2, and what it collected."""

    seen: Seen
    collected: dict[str, Any]

    def made_for(self, purpose: str) -> list[int]:
        """Return the calls that were answered, by what their last message says."""
        openings = {
            "summary": "You are about to hand off your work",
            "questions": "You are picking up work from a previous",
            "answers": "The next agent has a few questions",
        }
        found = []
        for n, call in self.seen.calls.items():
            text = self.seen.request(n)["messages"][-1]["content"]
            meant = next((name for name, opening in openings.items() if text.startswith(opening)), "commands")
            if meant == purpose and call["status"] == "complete":
                found.append(n)
        return found

    @property
    def truth(self) -> Labels:
        commands = self.made_for("commands")
        (summary,), (questions,), (answers,) = map(self.made_for, ("summary", "questions", "answers"))
        return played.labels(
            label("main", sorted([*commands, summary, answers])),
            label("auxiliary", [questions], kind="summary"),
            compactions={next(n for n in commands if n > answers): [summary, questions, answers]},
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Terminus:
    """One run, from the registration of its rollout to its sequences."""
    if reason := missing():
        pytest.skip(reason)
    seen = asyncio.run(session.play(PYTHON, terminus, RULES, "Say hello.", tmp_path_factory.mktemp("terminus")))
    assert seen.ended.code == 0, seen.ended
    found = Terminus(seen=seen, collected=json.loads(seen.files["collected.json"]))
    played.keep(seen, found.truth, about=ABOUT)
    return found


def test_the_run_had_all_that_it_was_to_have(run):
    assert [len(run.made_for(purpose)) for purpose in ("commands", "summary", "questions", "answers")] == [4, 1, 1, 1]
    (full,) = [call for call in run.seen.calls.values() if call["status"] != "complete"]
    assert (full["status"], full["error"]["status"], full["error"]["blame"]) == ("error", 400, "client")
    assert not any(call["streamed"] for call in run.seen.calls.values())


def test_harbors_details_are_ours_id_by_id(run):
    """Its main chat's turns first, then each call of the hand-over by itself."""
    turns = [
        run.made_for("commands"),
        *([n] for purpose in ("summary", "questions", "answers") for n in run.made_for(purpose)),
    ]
    theirs = [
        list(zip(details["prompt_token_ids"], details["completion_token_ids"], details["logprobs"], strict=True))
        for details in run.collected["details"]
    ]
    ours = [
        [(call["prompt_ids"], call["sampled_ids"], call["logprobs"]) for call in map(run.seen.calls.__getitem__, each)]
        for each in turns
    ]
    assert theirs == ours
    assert sum(len(logprobs) for chat in theirs for _, _, logprobs in chat) > 0


def test_harbor_counts_as_we_do(run):
    calls = [call for call in run.seen.calls.values() if call["status"] == "complete"]
    assert run.collected["n_input_tokens"] == sum(call["n_prompt"] for call in calls)
    assert run.collected["n_output_tokens"] == sum(call["n_sampled"] for call in calls)


def test_what_it_asked_for_it_gets_and_nothing_else(run):
    for n, call in run.seen.calls.items():
        asked = run.seen.request(n)
        assert asked["return_token_ids"] is asked["logprobs"] is True
        assert call["hints"]["x-session-id"] == asked["session_id"] == SESSION


def test_the_forest_says_what_was_so(run):
    assert run.seen.verdict == run.truth


def test_ids_are_whole(run):
    played.check_ids(run.seen)


def test_the_template_takes_the_reasoning_and_nothing_else_drifts(run):
    """Every turn ends in a user message, and terminus-2 sends no reasoning back."""
    assert set(run.seen.causes.values()) == {"reasoning_stripped"}


def test_nothing_else_is_wrong_with_it(run):
    assert run.seen.findings == {
        "drift": "info",
        "compaction": "info",
        "auxiliary_calls": "info",
        "sampling_unpinned": "info",
        "engine_errors": "warn",
    }


def test_main_is_trained_with_its_summary_and_its_answers(run):
    played.check_training(run.seen, [n for p in ("commands", "summary", "answers") for n in run.made_for(p)])


async def test_an_interrupt_drops_the_engines_request(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    seen = await session.interrupt(PYTHON, terminus, RULES, "Wait for me.", tmp_path)
    (call,) = seen.calls.values()
    assert (call["status"], call["delivered"], call["finish_reason"]) == ("aborted", False, None)
    assert seen.warnings.keys() == {"aborted_calls", "nothing_trainable"}
    assert seen.ended.code != 0


# -- an installed agent, as `treering agents harbor` prints it ---------------------------------------------------------


def test_harbor_takes_the_printed_configuration(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    recipe = agents.harbor(base_url="http://127.0.0.1:9/v1", model="test-model", secret="s3cret")
    (content,) = recipe.files.values()
    (tmp_path / "harbor.json").write_text(content)
    words = [str(tmp_path) if word == TASK else word for word in recipe.command[1:]]
    done = subprocess.run(
        [str(HARBOR), *words, "--print-config"],
        cwd=tmp_path,
        env={**program.environment(tmp_path), **recipe.env, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    resolved = json.loads(done.stdout)
    assert resolved["agents"] == json.loads(content)["agents"]
    assert resolved["n_concurrent_trials"] == 1
    assert "s3cret" not in content + done.stdout


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """opencode, run by Harbor."""
    if reason := missing() or program.missing("opencode", "opencode"):
        pytest.skip(reason)

    def recipe(**given: Any) -> Recipe:
        path = f"{OPENCODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return job(agents.harbor(**given), "--installed", env={"PATH": path})

    return asyncio.run(session.play(PYTHON, recipe, OPENCODE_RULES, "Report.", tmp_path_factory.mktemp("inner")))


def test_an_agent_that_harbor_runs_is_captured(inner):
    assert inner.ended.code == 0, inner.ended
    (title,) = inner.where(lambda call: "tools" not in call["request"])
    assert inner.verdict == played.labels(
        label("main", sorted(inner.calls.keys() - {title})), label("auxiliary", [title], kind="title")
    )
    assert [inner.tools(n) for n in inner.main] == [["bash"], []]
    played.check_ids(inner)
    played.check_training(inner, inner.main)


def test_it_runs_with_the_settings_that_were_printed(inner):
    request = inner.request(inner.main[0])
    assert request["max_tokens"] == agents.OUTPUT
    assert request["model"] == session.MODEL
    assert inner.files["report.txt"] == "written by main\n"
