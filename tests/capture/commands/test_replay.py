"""`treering replay`, as a shell runs it."""

import asyncio
import json

import pytest

from capture import cli
from tests.plane import KEY, control_plane

CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
MESSAGES = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
]


@pytest.fixture
async def plane(tmp_path):
    async with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture
async def run(plane, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREERING_ADMIN_KEY", KEY)

    async def run(*words):
        code = await asyncio.to_thread(cli.main, [*words, "--url", plane.url])
        return code, *capsys.readouterr()

    assert (await run("rollout", "new", "--id", "r", "--label", "split=train"))[0] == 0
    await plane.call("r", 0, [1, 2], [3], messages=MESSAGES, text="Done.")
    return run


async def test_points(run):
    code, out, _ = await run("replay", "r")
    assert code == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["0", "tool_result", "0", "3", "reply"],
        ["whole", "whole", "0", "4", "user"],
    ]
    assert json.loads((await run("replay", "r", "--json"))[1])["rollout"] == "r"


async def test_a_seed_goes_to_stdout_or_to_a_file(run, tmp_path):
    code, out, _ = await run("replay", "r", "--at", "0")
    assert code == 0
    assert json.loads(out)["messages"] == MESSAGES
    code, out, err = await run("replay", "r", "--at", "whole", "--instruction", "Sure?", "--out", "seed.json")
    assert (code, out) == (0, "")
    assert "r at whole: 5 messages, awaits reply" in err
    assert json.loads((tmp_path / "seed.json").read_text())["messages"][-1] == {"role": "user", "content": "Sure?"}


async def test_saved_and_drawn(run, tmp_path):
    (tmp_path / "saved").mkdir()
    code, out, err = await run("replay", "r", "--save", "saved/a.jsonl")
    assert (code, out) == (0, "")
    assert "r: 1 points" in err
    code, out, _ = await run("replay", "--from", "saved", "--group", "g", "--label", "split=train")
    assert code == 0
    assert json.loads(out)["messages"] == MESSAGES
    code, _, err = await run("replay", "--from", "saved", "--group", "g", "--kind", "fork")
    assert code == 1
    assert "kinds=fork" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "takes a rollout's ID, or --from"),
        (["r", "--from", "saved"], "takes a rollout's ID, or --from"),
        (["--from", "saved"], "takes --group"),
        (["--from", "saved", "--group", "g", "--at", "0"], "go with a rollout's ID"),
        (["--from", "saved", "--group", "g", "--kind", "forks"], "a kind is one of"),
        (["--from", "saved", "--group", "g", "--label", "a"], "KEY=VALUE"),
        (["r", "--kind", "fork"], "--kind goes with --from"),
        (["r", "--least-reward", "0"], "--least-reward goes with --from"),
        (["r", "--out", "x"], "go with --at"),
        (["r", "--at", "0", "--out", "none/x"], "--out"),
        (["r", "--save", "none/x"], "--save"),
    ],
)
async def test_words_that_do_not_go_together(run, words, says):
    code, out, err = await run("replay", *words)
    assert (code, out) == (2, "")
    assert says in err


async def test_a_point_that_is_not_there(run):
    code, _, err = await run("replay", "r", "--at", "5")
    assert code == 1
    assert "no resume point '5'" in err
