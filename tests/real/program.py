"""Run an agent's real program by the recipe that `treering agents` prints for it.

The program gets the recipe's files in a home of its own, the recipe's variables and few others, an empty project, no
input, and no way out but to this machine's loopback: a proxy that nobody listens on. It runs in a process group of its
own, which is killed with the context. Programs that bin/setup.py puts into .real.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from capture.agents import TASK, Recipe
from tests.real.orphans import end_with_parent

REAL = Path(__file__).resolve().parent.parent.parent / ".real"
# A whole run: seconds alone, and as much as a busy machine takes.
RUN_LIMIT_S = 120.0
STOP_LIMIT_S = 10.0
NOWHERE = "http://127.0.0.1:9"


class AgentError(Exception):
    """The agent did not end in time, or ended badly; the message holds the end of what it said."""


def program(name: str, command: str) -> Path:
    """Return where bin/setup.py puts an agent's program from npm."""
    return REAL / name / "node_modules" / ".bin" / command


def missing(name: str, command: str) -> str | None:
    """Say in a sentence why an agent from npm cannot be run here, or return None."""
    return None if program(name, command).exists() else _why(name)


def missing_venv(name: str, command: str) -> str | None:
    """Say in a sentence why an agent with an environment of its own cannot be run here, or return None."""
    return None if (REAL / name / "bin" / command).exists() else _why(name)


def _why(name: str) -> str:
    why = REAL / f"{name}.why"
    reason = (
        why.read_text().strip() if why.exists() else f"it is not installed: run bin/test, or bin/setup.py real-{name}"
    )
    return f"{name}: {reason}"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What is left of a run."""

    # Negative: the signal that ended it.
    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Running:
    """A program that runs, and its folders."""

    process: asyncio.subprocess.Process
    home: Path
    project: Path

    async def ended(self, *, limit_s: float = RUN_LIMIT_S) -> Ended:
        """Wait for its end. Raises `AgentError` past `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self.process.wait()
        except TimeoutError:
            raise AgentError(f"it had not ended after {limit_s:.0f} s:\n{self._tail()}") from None
        assert self.process.returncode is not None, "wait() waits for the end"
        return Ended(code=self.process.returncode, out=self.said("out"), err=self.said("err"))

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def said(self, stream: str) -> str:
        """Return what it has written to `out` or `err` so far."""
        return (self.home / f"std{stream}").read_text(errors="replace")

    def _tail(self) -> str:
        return f"{self.said('out')[-2000:]}\n{self.said('err')[-2000:]}"


def prepare(recipe: Recipe, folder: Path) -> tuple[Path, Path]:
    """Make a home with the recipe's files, and an empty project, or use those of an earlier run; return both."""
    home, project = folder / "home", folder / "project"
    for made in (home / "tmp", project):
        made.mkdir(parents=True, exist_ok=True)
    for name, content in recipe.files.items():
        file = Path(name.replace("~", str(home), 1))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return home, project


@contextlib.asynccontextmanager
async def running(
    path: Path, recipe: Recipe, prompt: str, folder: Path, *, more: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """Run a recipe with `prompt` in an empty project under `folder`; killed with all its children at the end.

    `more` are variables beside the recipe's.
    """
    home, project = prepare(recipe, folder)
    words = [prompt if word == TASK else word for word in recipe.command[1:]]
    with (home / "stdout").open("wb") as out, (home / "stderr").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            str(path),
            *words,
            cwd=project,
            env={**environment(home), **recipe.env, **(more or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    try:
        yield Running(process=process, home=home, project=project)
    finally:
        await stop(process)


async def run(path: Path, recipe: Recipe, prompt: str, folder: Path, *, limit_s: float = RUN_LIMIT_S) -> Ended:
    """Run a recipe to its end."""
    async with running(path, recipe, prompt, folder) as agent:
        return await agent.ended(limit_s=limit_s)


def environment(home: Path) -> dict[str, str]:
    """Return the variables that every program gets: a home of its own, and no way out."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
    }


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a program and what its tools started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT_S):
                await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
