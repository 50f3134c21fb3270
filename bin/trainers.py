"""The trainers' libraries, each in an environment of its own under .real. Standard library only.

    python3 bin/setup.py real-trainers       all of them: real-openenv, real-trl, real-verifiers, real-tinker

Harbor, which is a trainer's library too, is among the agents (real-harbor); pyarrow is in the project's own environment
with the extra `test`. verl, SkyRL, slime, miles, AReaL and prime-rl bring CUDA, ray or a checkout of their own: their
own code is held to our exports by hand, see docs/trainers/.

An environment is made from pins alone, without resolving, so that nothing can pull a CUDA build of torch. A table of
tests/versions.toml may stand on another: TRL takes OpenEnv's classes, so its environment is OpenEnv's and more.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Trainer(NamedTuple):
    """One library."""

    # Tables of tests/versions.toml; together they are the whole environment.
    tables: tuple[str, ...]
    # What has to import for it to be whole.
    imports: str
    python: tuple[int, int] = (3, 11)


TRAINERS = {
    "openenv": Trainer(("openenv",), "openenv.core.harness"),
    "trl": Trainer(("openenv", "trl"), "trl.experimental.async_grpo.openenv_harness"),
    "verifiers": Trainer(("verifiers",), "verifiers.v1"),
    "tinker": Trainer(("tinker",), "tinker"),
}

# A first import compiles what it reads, on a machine that does other things too.
IMPORT_LIMIT_S = 300


def install(tools: Any, name: str) -> None:
    """Make a library's environment, and see that it imports. Raises `tools.SetupError`."""
    trainer = TRAINERS[name]
    folder = tools.REAL / name
    tools.make_venv(folder, tools.need_python(trainer.python, name), f"== {trainer.python}")
    env = tools.install_environment()
    with tempfile.TemporaryDirectory() as scratch:
        wanted = [word for table in trainer.tables for word in ("-r", str(tools.pins(table, Path(scratch))))]
        try:
            tools.run([*tools.installer(folder, env), "--no-deps", *wanted], env=env)
        except tools.SetupError as error:
            raise tools.SetupError(f"{error}{torch_hint(tools, trainer)}") from error
        quiet = {"PATH": env.get("PATH", ""), "HOME": scratch, "HF_HUB_OFFLINE": "1"}
        tools.run(
            [str(folder / "bin" / "python"), "-c", f"import {trainer.imports}"], env=quiet, limit_s=IMPORT_LIMIT_S
        )


def torch_hint(tools: Any, trainer: Trainer) -> str:
    """Say where the CPU build of torch may be had, for a library that needs it."""
    torch = [tools.versions(table)["torch"] for table in trainer.tables if "torch" in tools.versions(table)]
    if not torch:
        return ""
    return (
        f": if torch {torch[0]} is what it lacks, which the public index does not have, set {tools.TORCH_LINKS} (or "
        "PIP_FIND_LINKS) to a folder or page with that wheel"
    )


def set_up(tools: Any, name: str) -> None:
    """Make one library's part, unless it is there."""
    trainer = TRAINERS[name]
    pinned = [sorted(tools.versions(table).items()) for table in trainer.tables]
    key = tools.digest(Path(__file__).resolve(), str(tools.ROOT), pinned)
    what = f"installing {name} into .real/{name}"
    tools.make(tools.REAL / f"{name}.stamp", lambda: key, what, lambda: install(tools, name))


def parts(tools: Any) -> dict[str, Callable[[], None]]:
    """Return the parts that bin/setup.py has for trainers.

    `tools` is that module itself: it runs as a script, and importing it from here would make a second one.
    """
    return {f"real-{name}": functools.partial(set_up, tools, name) for name in TRAINERS}
