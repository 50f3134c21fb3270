"""`treering rollout …` against a control plane on a real store, as a shell runs it."""

import asyncio
import io
import json
import re
from types import SimpleNamespace

import pytest

from capture import cli
from tests.plane import KEY, control_plane


@pytest.fixture
async def plane(tmp_path):
    async with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture
def run(plane, monkeypatch, capsys, tmp_path):
    """Return a function that runs a verb and gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREERING_ADMIN_KEY", KEY)

    async def run(*words):
        code = await asyncio.to_thread(cli.main, ["rollout", *words, "--url", plane.url])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
async def rollout(plane, run):
    await run("new", "--id", "r")
    await plane.call("r", 0, [1, 2, 3], [4, 5])
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "reply 0"}]
    await plane.call("r", 1, [1, 2, 3, 4, 5, 6], [7], messages=[*said, {"role": "user", "content": "more"}])
    return "r"


async def test_new(run):
    code, out, err = await run(
        "new", "--id", "a", "--label", "split=train", "--limit", "max_calls=3", "--task", "Do it"
    )
    assert code == 0
    assert re.search(r"^id +a$", out, re.M)
    assert re.search(r"^secret +sk-treering-\S+$", out, re.M)
    assert "shown this once" in err
    assert "sk-treering" not in err
    code, out, _ = await run("show", "a", "--json")
    shown = json.loads(out)
    assert (shown["labels"], shown["budget_left"]) == ({"split": "train"}, {"max_calls": 3})


async def test_new_as_an_environment(run):
    code, out, _ = await run("new", "--env")
    assert code == 0
    assert all(line.startswith("export ") for line in out.splitlines())
    assert "export OPENAI_BASE_URL=http://127.0.0.1:8400/v1\n" in out
    code, _, err = await run("new", "--env", "--n", "2")
    assert code == 2
    assert "one rollout" in err


async def test_new_says_where_its_consumers_run(run):
    code, _, err = await run("new", "--reach", "agent=remote", "--reach", "tools=local")
    assert code == 1
    assert "`reach.agent` is remote" in err
    code, _, err = await run("new", "--reach", "agent=afar")
    assert "reach.agent" in err
    assert (await run("new", "--reach", "agent=local"))[0] == 0


async def test_new_from_a_whole_registration(run, tmp_path):
    (tmp_path / "body.json").write_text('{"rollouts": [{"id": "a"}, {"id": "b"}]}')
    code, out, _ = await run("new", "--body", str(tmp_path / "body.json"), "--json")
    assert code == 0
    assert [one["id"] for one in json.loads(out)["rollouts"]] == ["a", "b"]
    for words, said in ((["--id", "c"], "leave the other flags out"), ([], "")):
        code, _, err = await run("new", "--body", str(tmp_path / "body.json"), *words)
        assert code == (2 if words else 1)
        assert said in err
    (tmp_path / "body.json").write_text("{")
    assert (await run("new", "--body", str(tmp_path / "body.json")))[0] == 2
    assert (await run("new", "--body", str(tmp_path / "none.json")))[0] == 2


async def test_list(run, rollout):
    code, out, err = await run("list", "--limit", "1")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:7] == ["r", "-", "open", "train", "2", "3", "-"]
    await run("new", "--id", "s")
    assert "--after" in (await run("list", "--limit", "1"))[2]
    for flags, found in (
        (("--order", "newest"), ["s", "r"]), (("--q", "S"), ["s"]), (("--finding", "no_calls"), []),
        (("--trouble", "--state", "closed"), []),
    ):  # fmt: skip
        assert [one["id"] for one in json.loads((await run("list", *flags, "--json"))[1])["rollouts"]] == found
    assert [one["id"] for one in json.loads((await run("list", "--state", "open", "--json"))[1])["rollouts"]] == [
        "r",
        "s",
    ]


async def test_show_waits(run, rollout):
    code, out, err = await run("show", "r", "--wait", "closed", "--timeout-s", "0")
    assert (code, out, err) == (1, "", "not closed after 0 s\n")
    assert (await run("show", "r", "--timeout-s", "1"))[0] == 2
    assert (await run("show", "r"))[0] == 0


async def test_graph(run, rollout):
    code, out, _ = await run("graph", "r")
    assert code == 0
    assert out.splitlines()[:3] == [
        "   call  role  link   prompt + sampled  status",
        "●     0  main  root              3 + 2  complete",
        "●     1  main  exact             6 + 1  complete",
    ]
    assert "conversation 0: main" in (await run("graph", "r", "--evidence"))[1]
    assert json.loads((await run("graph", "r", "--json"))[1])["version"] == 1
    # Nothing parts.
    assert await run("graph", "r", "--why") == (0, out, "")
    assert json.loads((await run("graph", "r", "--why", "--json"))[1]) == {"forks": [], "breaks": []}


async def test_graph_says_why(run, rollout, plane):
    said = [{"role": "user", "content": "hi"}]
    for n in (2, 3):
        request = json.dumps({"model": "any", "messages": said, "max_tokens": n, "user": "\x9b1m"}).encode()
        await plane.call("r", n, [8, 8], [n], messages=said, request=request)
    _, out, _ = await run("graph", "r", "--why")
    assert "The requests of calls 2 and 3 differ in `max_tokens`." in out
    assert out.splitlines()[-1] == "  max_tokens: 2 -> 3"


async def test_findings_decide_the_exit_code(run, rollout):
    await run("new", "--id", "empty")
    await run("close", "empty")
    code, out, _ = await run("findings", "empty")
    assert code == 0
    assert "no_calls" in out
    assert (await run("findings", "empty", "--fail-on", "info"))[0] == 1
    found = json.loads((await run("findings", "empty", "--json"))[1])["findings"]
    levels = {each["level"] for each in found}
    assert (await run("findings", "empty", "--fail-on", "error"))[0] == int("error" in levels)


async def test_sequences(run, rollout):
    code, out, err = await run("sequences", "r")
    assert (code, out) == (1, "")
    assert "open" in err
    code, out, _ = await run("sequences", "r", "--open")
    assert code == 0
    assert out.endswith("1 rows, 3 trained tokens; not final\n")
    assert json.loads((await run("sequences", "r", "--open", "--roles", "main", "--json"))[1])["n_rows"] == 1


async def test_sequences_as_a_tree_and_across_drifts(run, rollout):
    code, out, _ = await run("sequences", "r", "--open", "--format", "tree")
    assert code == 0
    assert re.search(r"^ +1 +0 +0 +sampled +yes +", out, re.M)
    assert out.endswith("nodes, 7 tokens, 3 trained tokens; not final\n")
    code, out, _ = await run("sequences", "r", "--open", "--drift", "realign", "--threshold", "7")
    assert code == 0
    assert out.endswith("1 rows, 3 trained tokens; not final\n")
    code, _, err = await run("sequences", "r", "--open", "--format", "tree", "--drift", "split")
    assert code == 1
    assert "format=tree has no drift=split" in err


async def test_sequences_in_a_trainer_s_own_format_are_printed(run, rollout):
    code, out, _ = await run("sequences", "r", "--open", "--format", "verl")
    assert code == 0
    assert json.loads(out)["format"] == "verl"
    code, out, err = await run("sequences", "r", "--open", "--format", "skyrl")
    assert (code, out) == (1, "")
    assert "no reward" in err
    code, _, err = await run("sequences", "r", "--format", "verifier")
    assert (code, "did you mean verifiers" in err) == (2, True)


async def test_sequences_that_are_none_say_why(run):
    await run("new", "--id", "empty")
    await run("close", "empty")
    code, out, _ = await run("sequences", "empty")
    assert code == 0
    assert "Rollout empty made no calls." in out


async def test_parquet_goes_to_a_file_as_it_is(run, rollout, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=written, isatty=lambda: False))
    assert (await run("sequences", "r", "--open", "--format", "parquet"))[0] == 0
    assert written.getvalue()[:4] == written.getvalue()[-4:] == b"PAR1"
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    assert (await run("sequences", "r", "--open", "--format", "parquet"))[0] == 2


async def test_close_and_reward(run, rollout):
    code, out, _ = await run("reward", "r", "0.5", "--per-call", "chatcmpl-1=2", "--detail", "why=tests pass")
    assert code == 0
    assert re.search(r"^reward +0.5$", out, re.M)
    code, out, _ = await run("close", "r", "--wait-s", "0", "--reward", "null", "--json")
    closed = json.loads(out)["rollout"]
    assert (code, closed["state"], closed["reward"]) == (0, "closed", None)
    assert (await run("reward", "r"))[0] == 2
    assert (await run("reward", "r", "much"))[0] == 2
    assert (await run("reward", "r", "--per-call", "x=1"))[0] == 1


async def test_delete(run, rollout):
    assert await run("delete", "r") == (0, "", "deleted r\n")
    code, out, err = await run("show", "r")
    assert (code, out) == (1, "")
    assert err.startswith("treering: There is no rollout 'r'.\n")


async def test_a_wrong_key_is_a_matter_of_configuration(run, monkeypatch):
    monkeypatch.setenv("TREERING_ADMIN_KEY", "wrong")
    code, _, err = await run("list")
    assert code == 2
    assert "admin key is wrong" in err
    assert KEY not in err
