"""The examples of docs/trainers/: those that can run do, in their library's environment, on exported rollouts.

A page's first block of Python reads `rollouts.jsonl`, as `treering export --plain` writes it, and ends by saying how
many tokens it would train. A block that is marked `not-run` needs a GPU or a library that does not install lightly: it
has to be Python all the same.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.real import library, program
from tests.real.engine_vllm import ROOT
from tests.real.handmade import Made
from tests.real.library import encoded

FOLDER = ROOT / "docs" / "trainers"
BLOCK = re.compile(r"^```python( not-run)?\n(.*?)^```$", re.M | re.S)
# Page → the environment that its example runs in.
RUN = {
    "trl": "trl",
    "openenv": "openenv",
    "verifiers": "verifiers",
    "harbor": "harbor",
    "tinker": "tinker",
    "areal": "trl",
}
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem not in ("README", "proof"))


def text(page: str) -> str:
    """Return a page."""
    return (FOLDER / f"{page}.md").read_text()


def blocks(page: str) -> list[tuple[bool, str]]:
    """Return a page's blocks of Python: whether it runs, and its text."""
    return [(not mark, block) for mark, block in BLOCK.findall(text(page))]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_a_whole_example(page):
    found = blocks(page)
    assert found
    for _, block in found:
        ast.parse(block)
    assert [run for run, _ in found].count(True) == (page in RUN)
    assert f"--format {page} " in text(page)
    assert "\n## Alignment\n" in text(page)
    assert "\n## Traps\n" in text(page)


def test_every_format_for_a_trainer_has_a_page():
    assert {"atif", *PAGES} >= {"trl", "openenv", "verifiers", "prime-rl", "atif", "harbor", "tinker", "verl",
                                "skyrl", "slime", "areal"}  # fmt: skip


def test_the_proof_stands_in_the_docs():
    """Each check of tests/real/test_trl_step.py, measured, with the verdict that the test demands."""
    rows = dict(re.findall(r"^\| ([a-z, 0-9']+?) \| \d+ \| [\d.]+ \| [\d.]+ \| (\w+) \|$", text("proof"), re.M))
    assert rows == {
        "captured": "passes",
        "captured, transformers row by row": "passes",
        "captured, recomputed in bfloat16": "fails",
        "logprobs shifted by one": "fails",
        "mask shifted by one": "fails",
        "history rendered again": "fails",
        "captured, in the trainer's own step": "passes",
    }


@pytest.mark.real
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", RUN)
def test_an_example_runs(page: str, made: list[Made], tmp_path: Path):
    library.needed(RUN[page])
    # Graded rollouts of main whose calls have all that a format asks for.
    rollouts = [one for one in made if one.roles == ("main",) and one.graph.rollout.reward is not None]
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(encoded(one.form(page)) + b"\n" for one in rollouts))
    ((_, block),) = [each for each in blocks(page) if each[0]]
    (tmp_path / "example.py").write_text(block)
    done = subprocess.run(
        [str(program.REAL / RUN[page] / "bin" / "python"), "example.py"],
        cwd=tmp_path,
        env=program.environment(tmp_path) | {"HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=library.LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trained = sum(one.form("native")["n_trained_tokens"] for one in rollouts)
    assert done.stdout.splitlines()[-1] == f"{trained} trained tokens"
