"""Run the agent of a Harbor job on this machine, without a container, and write what it collected.

    .real/harbor/bin/python tests/real/harbor_job.py FOLDER INSTRUCTION JOB [--installed]

JOB is the file that `harbor run --config` takes. The commands run in FOLDER, which gets `logs` and `collected.json`:
the rollout details that Harbor 0.25.0 hands to a trainer, and its token counts. With `--installed` the agent's program
is on the PATH already: Harbor itself would fetch it from the internet.

It runs in Harbor's environment; the project's own has no Harbor. That is also why Harbor is imported by name inside
`collect`: this file is then importable, and typed, everywhere.
"""

import asyncio
import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

# Where Harbor keeps logs in the container that it expects.
LOGS = "/logs/agent"
EXEC_LIMIT_S = 60.0


async def shell(
    command: str, folder: Path, *, env: dict[str, str] | None = None, limit_s: float = EXEC_LIMIT_S
) -> tuple[int, str, str]:
    """Run a command line in the folder; return its exit code, stdout and stderr."""
    logs = str(folder / "logs")
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        command.replace(LOGS, logs),
        cwd=folder,
        env={**os.environ, **{name: value.replace(LOGS, logs) for name, value in (env or {}).items()}},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def local_environment(folder: Path) -> Any:
    """Return an environment in Harbor's sense that is this machine, without a container."""
    base = importlib.import_module("harbor.environments.base")
    paths = importlib.import_module("harbor.models.trial.paths")
    config = importlib.import_module("harbor.models.task.config")

    class Local(base.BaseEnvironment):  # type: ignore[name-defined, misc]  # Harbor has no types here
        """Commands run in the folder, files are copied."""

        @staticmethod
        def type() -> str:
            return "local"

        def _validate_definition(self) -> None:
            pass

        async def start(self, force_build: bool) -> None:
            pass

        async def stop(self, delete: bool) -> None:
            pass

        async def upload_file(self, source_path: Any, target_path: str) -> None:
            shutil.copy(source_path, target_path)

        async def download_file(self, source_path: str, target_path: Any) -> None:
            shutil.copy(source_path, target_path)

        async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
            shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

        async def download_dir(self, source_dir: str, target_dir: Any) -> None:
            shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

        async def exec(self, command: str, cwd: Any = None, env: Any = None, timeout_sec: Any = None, user: Any = None):
            code, out, err = await shell(command, folder, env=env, limit_s=timeout_sec or EXEC_LIMIT_S)
            return base.ExecResult(stdout=out, stderr=err, return_code=code)

    return Local(
        environment_dir=folder,
        environment_name="local",
        session_id="local",
        trial_paths=paths.TrialPaths(folder / "trial"),
        task_env_config=config.EnvironmentConfig(),
    )


@contextlib.asynccontextmanager
async def own_tmux() -> AsyncIterator[None]:
    """Have a tmux server that is our child, with a socket of its own, for as long as the context lasts.

    One that a client starts would be a daemon, outside of our process group, and outlive whoever kills that. The
    socket's folder is a short one, since a socket's path may have 107 characters.
    """
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["TMUX_TMPDIR"] = folder
        server = await asyncio.create_subprocess_exec("tmux", "-D", stdin=asyncio.subprocess.DEVNULL)
        try:
            # Before it listens, a client would start a server itself.
            async with asyncio.timeout(EXEC_LIMIT_S):
                await listening(Path(folder) / f"tmux-{os.getuid()}" / "default")
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                server.kill()
            await server.wait()


async def listening(socket: Path) -> None:
    """Wait until a server accepts at a socket that it makes itself."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_unix_connection(socket)
            writer.close()
            return
        await asyncio.sleep(0.02)


async def collect(folder: Path, instruction: str, job: dict[str, Any], *, installed: bool) -> dict[str, Any]:
    """Run the job's one agent to its end and return what it collected."""
    factory = importlib.import_module("harbor.agents.factory")
    job_module = importlib.import_module("harbor.models.job.config")
    context_module = importlib.import_module("harbor.models.agent.context")
    for made in ("logs", "trial"):
        (folder / made).mkdir(parents=True)
    environment = local_environment(folder)
    (config,) = job_module.JobConfig.model_validate(job).agents
    agent = factory.AgentFactory.create_agent_from_config(config, logs_dir=folder / "logs")
    context = context_module.AgentContext()
    async with own_tmux():
        if not installed:
            await agent.setup(environment)
        await agent.run(instruction, environment, context)
    return {
        "details": context.rollout_details,
        "n_input_tokens": context.n_input_tokens,
        "n_output_tokens": context.n_output_tokens,
    }


def main(arguments: list[str]) -> None:
    """Run it as the command line says."""
    folder, instruction, job = Path(arguments[0]).resolve(), arguments[1], json.loads(Path(arguments[2]).read_text())
    collected = asyncio.run(collect(folder, instruction, job, installed="--installed" in arguments[3:]))
    (folder / "collected.json").write_text(json.dumps(collected))


if __name__ == "__main__":
    main(sys.argv[1:])
