"""The six broken rollouts of examples/broken.py: what Treering says of each, in words that need no other.

The script is run as a person runs it. What it prints is held to the findings that the control plane gives.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from typing import Any

import pytest

from tests.examples.made import BROKEN, HEALTHY, RULES, SCRIPT, Made
from tests.examples.runs import environment, run
from tests.served import KEY, Served


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    found = Made(tmp_path_factory.mktemp("broken"))
    yield found
    assert found.end() == 0


def says(finding: dict[str, Any], *words: str) -> None:
    """Hold that a finding says something in its message, its meaning or its hint, as a reader who knows no code."""
    text = " ".join((finding["message"], finding["means"], finding["hint"]))
    assert [word for word in words if word not in text] == []


def test_there_are_six_pairs_and_the_quiz_gives_nothing_away(made):
    rollouts = made.get("/rollouts")["rollouts"]
    assert {each["id"] for each in rollouts} == {*BROKEN.values(), *HEALTHY.values()}
    assert {each["state"] for each in rollouts} == {"closed"}
    assert "broken" not in made.printed
    assert "finding" not in made.printed


@pytest.mark.parametrize("rollout", HEALTHY.values())
def test_a_healthy_twin_has_nothing_to_warn_of(made, rollout):
    assert [each for each in made.findings(rollout).values() if each["level"] != "info"] == []
    sequences = made.get(f"/rollouts/{rollout}/sequences")
    assert sequences["n_rows"] == 1
    assert sequences["n_trained_tokens"] > 0
    assert made.get(f"/rollouts/{rollout}")["reward"] == 1.0


@pytest.mark.parametrize("group", BROKEN)
def test_a_broken_one_says_more_than_its_twin(made, group):
    assert {each["level"] for each in made.told(group).values()} & {"warn", "error"}


def test_zero_calls(made):
    told = made.told("files")
    assert told["no_calls"]["level"] == "error"
    says(told["no_calls"], "made no model call", "never reached the model", "base URL and key")
    says(told["unknown_secret_calls"], "a key that nobody has", "401", "Compare the key")
    says(told["graded_without_calls"], "ungraded", "shifts the mean of its group")
    assert told["no_calls"]["data"]["near"] == ["unknown_secret_calls"]
    assert made.get("/rollouts/files-1")["n_calls"] == 0


def test_a_title_is_trained(made):
    told = made.told("greeting")
    says(told["role_overruled"], "a title", "taken for main", "trained and gets the task's advantage")
    graph = made.get("/rollouts/greeting-0/graph")
    (title,) = told["role_overruled"]["calls"]
    assert graph["conversations"][graph["calls"][title]["conversation"]]["role"] == "main"
    rows = made.get("/rollouts/greeting-0/sequences")["sequences"]
    assert title in {call for row in rows for call in row["calls"]}
    assert told["role_overruled"]["data"]["tokens"] == graph["calls"][title]["n_sampled"]
    # Its twin's title is told, as what it is, and in no row.
    twin = made.findings("greeting-1")["auxiliary_calls"]
    says(twin, "not the task (a title)", "not trained")
    left_out = made.get("/rollouts/greeting-1/sequences")["left_out"]
    assert left_out == [{"call": twin["calls"][0], "reason": "role"}]


def test_arguments_are_written_anew(made):
    told = made.told("report")
    large = told["drift_over_threshold"]
    assert large["data"]["causes"] == {"arguments_reserialised": 1}
    says(large, "a tool call's arguments are spelled another way", "more rows", "pinned prefixes end it")
    assert made.get("/rollouts/report-1/graph")["calls"][1]["drift"]["cause"] == "arguments_reserialised"
    rows = {rollout: made.get(f"/rollouts/{rollout}/sequences")["n_rows"] for rollout in ("report-0", "report-1")}
    assert rows == {"report-0": 1, "report-1": 2}


def test_the_weights_changed(made):
    told = made.told("changelog")
    found = told["weights_changed"]
    says(
        found, "changed while 1 call was being sampled (step-7, step-8)", "two versions of the policy", "Pause, update"
    )
    weights = [call["weights"] for call in made.get("/rollouts/changelog-0/graph")["calls"]]
    assert [(each["start"], each["end"]) for each in weights] == [("step-7", "step-7"), ("step-7", "step-8")]


def test_a_limit_stopped_it(made):
    told = made.told("pages")
    says(told["limit_stop"], "stopped by its limit max_calls at call 2", "had not finished", "Raise the limit")
    assert made.get("/rollouts/pages-1")["stopped"] == {"limit": "max_calls", "at_call": 2, "stops": 1}
    assert [call["status"] for call in made.get("/rollouts/pages-1/graph")["calls"]] == ["complete"] * 2 + ["stopped"]


def test_the_agent_s_time_limit(made):
    told = made.told("callers")
    says(told["time_limit"], "given up after about", "the engine is still at work", "Raise the time limit")
    assert 0.5 <= told["time_limit"]["data"]["after_s"] <= 2.5
    assert told["time_limit"]["data"]["tokens"] > 0
    assert told["time_limit"]["calls"] == told["aborted_calls"]["calls"] == told["retries"]["calls"] == [0, 1, 2]
    says(told["nothing_trainable"], "it broke off")
    assert made.get("/rollouts/callers-0/sequences")["n_rows"] == 0


async def test_on_an_appliance_that_runs_it_says_what_was_done(tmp_path):
    served = Served(tmp_path, "--engine", f"scripted={RULES}", "--store", "sqlite:///b.db")
    await served.start()
    try:
        done = await run([sys.executable, str(SCRIPT), "--url", served.control_url, "--key", KEY], tmp_path)
    finally:
        await served.close()
    assert done.code == 0, done.err
    for group, rollout in BROKEN.items():
        assert f"group {group}" in done.out
        assert f"  {rollout} (broken): " in done.out
    assert "    warn role_overruled: Conversation 0 (a title, by what it did) is taken for main" in done.out


async def test_another_engine_is_refused_with_what_to_do(tmp_path):
    served = Served(tmp_path, "--engine", "scripted", "--store", "sqlite:///b.db")
    await served.start()
    try:
        done = await run([sys.executable, str(SCRIPT), "--url", served.control_url, "--key", KEY], tmp_path)
    finally:
        await served.close()
    assert done.code == 1
    assert f"scripted={RULES}" in done.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_it_started_ends_with_it(tmp_path, number):
    argv = (sys.executable, str(SCRIPT), "--serve", "--quiz")
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=tmp_path, env=environment(tmp_path), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(90):
            assert process.stdout is not None
            port = None
            async for line in process.stdout:
                if found := re.search(rb"http://127\.0\.0\.1:(\d+)/#key=", line):
                    port = int(found[1])
                if b"Ctrl-C" in line:
                    break
            assert port is not None
            process.send_signal(number)
            assert await process.wait() == (0 if number == signal.SIGINT else 128 + number)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
