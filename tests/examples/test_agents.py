"""The examples that run an agent elsewhere: opencode in a sandbox through a tunnel, and Harbor.

opencode is real where it is installed, and so are sshd and the other machine; Harbor's own reader takes the job's file,
and a stand-in for Harbor runs it, since Docker is not at hand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from capture.settings import load
from tests.examples.runs import environment, run
from tests.netns import machine
from tests.processes import descendants
from tests.real import agent_opencode, program
from tests.served import KEY, ROOT, Served
from tests.sshd import MISSING, sshd
from tunnel.spec import parse

OPENCODE = ROOT / "examples" / "opencode_tunnel"
HARBOR = ROOT / "examples" / "harbor"
RULES = ROOT / "tests" / "real" / "tunnel_rules.toml"

# -- opencode through a tunnel ----------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.skipif(MISSING is not None and not os.environ.get("TREERING_REQUIRE_REAL"), reason=str(MISSING))
async def test_opencode_on_another_machine(tmp_path, capsys):
    if reason := agent_opencode.missing():
        pytest.skip(reason)
    with machine() as far:
        with capsys.disabled():
            print(f"\nopencode runs {far.told}")
        async with sshd(tmp_path / "ssh", extra="GatewayPorts clientspecified", machine=far) as server:
            spec = f"{server.spec},bind={far.host}" if far.other else server.spec
            served = Served(
                tmp_path, "--engine", f"scripted={RULES}", "--tunnel", spec, "--store", "sqlite:///o.db",
                env={"PATH": server.program()},
            )  # fmt: skip
            await served.start()
            try:
                await through(served, far.prefix, tmp_path)
            finally:
                served.signal(15)
                await served.ended()
        assert descendants(word="leash.py") == {}


async def through(served: Served, prefix: tuple[str, ...], folder: Path) -> None:
    # A stranger's home in the sandbox, with opencode on the PATH and no way out.
    home = folder / "sandbox"
    (home / "project").mkdir(parents=True)
    (home / "tmp").mkdir()
    there = agent_opencode.environment(home)
    there["PATH"] = f"{agent_opencode.PROGRAM.parent}{os.pathsep}{there['PATH']}"
    given = [f"{name}={value}" for name, value in there.items()]
    done = await run(
        [
            sys.executable, str(OPENCODE / "run.py"), "--url", served.control_url, "--key", KEY,
            "--sandbox", shlex.join([*prefix, "env", "-i", *given]), "--folder", str(home / "project"),
            "--task", "Say two words.", "--grade", "test -d .",
        ],
        folder, limit_s=240,
    )  # fmt: skip
    assert done.code == 0, done.err + done.out
    assert "opencode ended with 0" in done.out
    assert "Both words came through." in done.out
    rows = re.search(r"^(\d+) rows, (\d+) trained tokens, reward 1\.0$", done.out, re.MULTILINE)
    assert rows, done.out
    assert int(rows[2]) > 0


async def test_without_a_tunnel_it_is_refused_and_says_why(tmp_path):
    served = Served(tmp_path, "--engine", "scripted", "--store", "sqlite:///o.db")
    await served.start()
    try:
        done = await run(
            [sys.executable, str(OPENCODE / "run.py"), "--url", served.control_url, "--key", KEY, "--sandbox", "env",
             "--task", "Say two words."],
            tmp_path,
        )  # fmt: skip
    finally:
        await served.close()
    assert done.code == 1
    assert "--tunnel" in done.err


# -- Harbor -----------------------------------------------------------------------------------------------------------

STAND_IN = '''#!{python}
"""In place of harbor: reads a job, lets an agent make one call, and leaves what Harbor leaves."""
import json, os, sys, urllib.request
from pathlib import Path
run, flag, config = sys.argv[1:]
assert (run, flag) == ("run", "--config")
job = json.loads(Path(config).read_text())
(agent,) = job["agents"]
assert "sk-" not in Path(config).read_text(), "no key stands in the file"
url = agent.get("kwargs", {{}}).get("api_base") or os.environ["OPENAI_BASE_URL"]
task = Path(job["tasks"][0]["path"], "instruction.md").read_text()
body = json.dumps({{"model": agent["model_name"].partition("/")[2], "messages": [{{"role": "user", "content": task}}]}})
headers = {{"Authorization": f"Bearer {{os.environ['OPENAI_API_KEY']}}", "Content-Type": "application/json"}}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
opener.open(urllib.request.Request(url + "/chat/completions", body.encode(), headers)).read()
folder = Path(job["jobs_dir"], job["job_name"], "hello__1")
folder.mkdir(parents=True)
(folder / "result.json").write_text(json.dumps({{"verifier_result": {{"rewards": {{"reward": 1.0, "lint": 0.5}}}}}}))
'''


def task(folder: Path) -> Path:
    made = folder / "tasks" / "hello"
    made.mkdir(parents=True)
    (made / "instruction.md").write_text("Say hello.")
    return made


async def test_attempts_are_rollouts_of_one_group(tmp_path):
    stand_in = tmp_path / "harbor"
    stand_in.write_text(STAND_IN.format(python=sys.executable))
    stand_in.chmod(0o755)
    served = Served(tmp_path, "--engine", "scripted", "--store", "sqlite:///h.db")
    await served.start()
    try:
        # terminus-2 runs here, so it needs no address that a container reaches.
        done = await run(
            [sys.executable, str(HARBOR / "run.py"), "--url", served.control_url, "--key", KEY, "--task",
             str(task(tmp_path)), "--n", "2", "--agent", "terminus-2", "--harbor", str(stand_in)],
            tmp_path,
        )  # fmt: skip
    finally:
        await served.close()
    logs = "".join(path.read_text() for path in (tmp_path / "jobs").glob("*.log"))
    assert done.code == 0, done.err + logs
    rollouts = re.findall(r"^(\S+): reward 1\.0, (\d+) tokens in 1 rows$", done.out, re.MULTILINE)
    assert len(rollouts) == 2, done.out + logs
    assert all(int(tokens) > 0 for _, tokens in rollouts)


@pytest.mark.real
async def test_harbor_itself_takes_the_job(tmp_path):
    if reason := program.missing_venv("harbor", "harbor"):
        pytest.skip(reason)
    harbor = program.REAL / "harbor" / "bin" / "harbor"
    stand_in = tmp_path / "harbor"
    # The real program, asked to print what it read instead of running it.
    home = environment(tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True")
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in home.items() if name != "TREERING_STORE")
    stand_in.write_text(f'#!/bin/sh\nexec env -i {given} OPENAI_API_KEY=any {harbor} "$@" --print-config\n')
    stand_in.chmod(0o755)
    served = Served(tmp_path, "--engine", "scripted", "--store", "sqlite:///h.db")
    await served.start()
    try:
        done = await run(
            [sys.executable, str(HARBOR / "run.py"), "--url", served.control_url, "--key", KEY, "--task",
             str(task(tmp_path)), "--n", "1", "--agent", "terminus-2", "--harbor", str(stand_in)],
            tmp_path,
        )  # fmt: skip
    finally:
        await served.close()
    # No call was made, and the verifier ran on nothing: ungraded, and said to be.
    assert done.code == 1
    assert "reward None, 0 tokens in 0 rows" in done.out
    assert "error no_calls: " in done.out
    (log,) = (tmp_path / "jobs").glob("*.log")
    read = json.loads(log.read_text()[log.read_text().index("{") :])
    (agent,) = read["agents"]
    assert agent["name"] == "terminus-2"
    assert agent["kwargs"]["api_base"].startswith("http://127.0.0.1:")
    assert read["job_name"] == log.stem


# -- what their pages tell people to type -----------------------------------------------------------------------------


def serving(page: Path) -> list[list[str]]:
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"^ +bin/treering (?:serve|doctor) (.+)$", text, re.MULTILINE)
    return [shlex.split(line) for line in found]


@pytest.mark.parametrize(("page", "n"), [(OPENCODE / "README.md", 2), (HARBOR / "README.md", 1)])
def test_what_the_pages_serve_with_can_be_read(page, n):
    lines = serving(page)
    assert len(lines) == n
    for words in lines:
        flags = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
        assert parse(flags["tunnel"]).kind in ("ssh", "direct")
        given = {name: (value,) if name in ("engine", "tunnel") else value for name, value in flags.items()}
        assert load(given, {}).tunnel == (flags["tunnel"],)


@pytest.mark.parametrize("folder", [OPENCODE, HARBOR], ids=lambda folder: folder.name)
async def test_the_options_that_the_pages_name_are_there(folder, tmp_path):
    done = await run([sys.executable, str(folder / "run.py"), "--help"], tmp_path)
    assert done.code == 0
    text = (folder / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^ +python3 examples/\S+/run\.py (.+)$", text, re.MULTILINE)
    for flag in re.findall(r"--[a-z-]+", re.sub(r"'[^']*'", "", line)):
        assert f"  {flag} " in done.out, flag
