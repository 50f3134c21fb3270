"""The commands of quickstart, README and FAQ, run as they stand there.

`bin/treering` is this Python's, and ports are free ones; nothing else is changed. A block runs where the page marks it
`run`; what needs a vLLM, an agent or a browser is not marked, and is read in tests/test_docs.py alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.examples.made import Made
from tests.examples.runs import Done, run
from tests.pages import ROOT, blocks
from tests.served import KEY, Served

DOCS = ROOT / "docs"


def clone(folder: Path) -> dict[str, str]:
    """Make a folder look like the clone to whoever types commands in it; return the environment for that."""
    (folder / "bin").mkdir()
    for name, words in (("bin/treering", "-m capture.cli"), ("bin/python3", "")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/client exec {sys.executable} {words} "$@"\n')
        program.chmod(0o755)
    (folder / "examples").symlink_to(ROOT / "examples")
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder), "LANG": "C.UTF-8"}


async def shell(text: str, folder: Path, env: Mapping[str, str]) -> Done:
    done = await run(["bash", "-euo", "pipefail", "-c", text], folder, env)
    assert done.code == 0, f"{text}\n{done.out}\n{done.err}"
    return done


def at(served: Served, text: str) -> str:
    """Put an appliance's own addresses in the place of the usual ones."""
    for usual, own in (("127.0.0.1:8400", served.data_url), ("127.0.0.1:8401", served.control_url)):
        text = text.replace(usual, own.removeprefix("http://"))
    return text


@pytest.fixture
async def served(tmp_path: Path):
    """An appliance started as the pages say, in the folder that looks like the clone."""
    one = Served(tmp_path, "--engine", "scripted", "--store", "sqlite:///treering.db")
    (tmp_path / "treering.db.key").write_text(KEY)
    await one.start()
    yield one
    await one.close()


async def test_the_quickstart(served, tmp_path):
    page = list(blocks(DOCS / "quickstart.md"))
    assert [block.text for block in page if block.info == "sh serve"] == ["bin/treering serve --engine scripted\n"]
    steps = []
    for block in page:
        if block.info == "sh run":
            steps.append(block.text)
        elif block.info == "python run":
            steps.append(f"python3 - <<'BLOCK'\n{block.text}BLOCK\n")
    assert len(steps) >= 6
    env = clone(tmp_path) | {"TREERING_ADMIN_LISTEN": served.control_url.removeprefix("http://")}
    # In one shell: what one block sets, the next one uses.
    done = await shell(at(served, "".join(steps)), tmp_path, env)
    *rows, end = [json.loads(line) for line in (tmp_path / "hello.jsonl").read_text().splitlines()]
    assert end["end"] is True
    # What the text says of it: two calls, two rows, and a drift that says why.
    (hello,) = rows
    assert (hello["rollout"], hello["reward"], hello["n_rows"]) == ("hello", 1.0, 2)
    assert re.search(r"^info +drift +1 ", done.out, re.MULTILINE)
    assert "thinking is gone" in done.out
    assert "opencode run --model" in done.out
    assert re.findall(r"^(g1-\d) ", done.out, re.MULTILINE) == ["g1-0", "g1-1", "g1-2", "g1-3"]
    assert "step 2: 4 rollouts" in done.out


async def test_the_readme_s_curl(served, tmp_path):
    text = (ROOT / "README.md").read_text()
    begin = text[: text.index("\n## Or with curl")].count("\n")
    steps = [block for block in blocks(ROOT / "README.md") if block.line > begin]
    serve, curl = steps[0].text.split("\n", 1)
    assert serve.startswith("bin/treering serve --engine scripted ")
    done = await shell(at(served, curl), tmp_path, clone(tmp_path))
    answers, place = [], 0
    while place < len(done.out.rstrip()):
        answer, place = json.JSONDecoder().raw_decode(done.out, place)
        answers.append(answer)
    reply, graph, closed, sequences = answers
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert [call["status"] for call in graph["calls"]] == ["complete"]
    assert closed["rollout"]["reward"] == 1.0
    assert sequences["n_trained_tokens"] > 0


# -- the FAQ ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    found = Made(tmp_path_factory.mktemp("faq"))
    yield found
    assert found.end() == 0


FAQ = [block for block in blocks(DOCS / "faq.md") if block.info == "sh run"]


async def test_the_faq_begins_with_what_makes_the_six():
    first = next(block for block in blocks(DOCS / "faq.md") if block.language == "sh")
    assert first.text == "python3 examples/broken.py --serve\n"
    # Every section that shows something shows it by a command that runs.
    sections = re.split(r"^## ", (DOCS / "faq.md").read_text(), flags=re.MULTILINE)[1:]
    without = [each.splitlines()[0] for each in sections if "```sh run" not in each]
    assert without == ["A reward of null became 0"]


@pytest.mark.parametrize("block", FAQ, ids=lambda block: block.where)
async def test_the_faq_s_commands(block, made, tmp_path):
    (line,) = re.findall(r"export (TREERING_ADMIN_LISTEN=\S+) (TREERING_ADMIN_KEY=\S+)", made.printed)
    access = dict(each.split("=", 1) for each in line)
    done = await shell(block.text, tmp_path, clone(tmp_path) | access)
    assert done.out.strip()


async def test_what_the_faq_says_is_what_its_commands_print(made, tmp_path):
    env = clone(tmp_path)
    env |= {"TREERING_ADMIN_LISTEN": made.url.removeprefix("http://"), "TREERING_ADMIN_KEY": made.key}
    for rollout, code in (
        ("files-1", "no_calls"), ("greeting-0", "role_overruled"), ("report-1", "drift_over_threshold"),
        ("changelog-0", "weights_changed"), ("pages-1", "limit_stop"), ("callers-0", "time_limit"),
    ):  # fmt: skip
        # The title may have been ruled a title again by a block above, as the page says.
        if code == "role_overruled":
            ruling = '{"conversation": 0, "role": "main"}'
            put = f"-X PUT -H \"Authorization: Bearer $TREERING_ADMIN_KEY\" -d '{ruling}'"
            await shell(f'curl -sf {put} "http://$TREERING_ADMIN_LISTEN/rollouts/{rollout}/roles"', tmp_path, env)
        done = await shell(f"bin/treering rollout findings {rollout}", tmp_path, env)
        assert re.search(rf"^(?:warn|error) +{code} ", done.out, re.MULTILINE), done.out
