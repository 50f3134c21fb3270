"""Run the real opencode that bin/setup.py puts into .real: as a headless server, and as one command.

opencode 1.18 speaks OpenAI chat completions, streamed always. For one prompt it makes a title call beside its main
loop, runs two `task` calls of one turn as two concurrent subagents, and compacts once the usage that the engine
reports passes `context_limit - output_limit`. Each run has a home of its own and the variables named here alone, so
that nothing of the machine's user is read or written, and a proxy that nobody listens on, so that nothing is fetched.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.real.orphans import end_with_parent

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / ".real" / "opencode" / "node_modules" / ".bin" / "opencode"

# opencode's names for our endpoint; both are free.
PROVIDER = "rl"
MODEL = "test-model"

# It starts in 5 s, in 40 s on a busy machine.
START_LIMIT_S = 120.0
MESSAGE_LIMIT_S = 180.0
STOP_LIMIT_S = 10.0

LISTENING = re.compile(rb"listening on (http://\S+)")


class AgentError(Exception):
    """The agent did not start or answered with an error; the message holds the end of its log."""


def missing() -> str | None:
    """Say in a sentence why opencode cannot be run here, or return None."""
    if PROGRAM.exists():
        return None
    why = ROOT / ".real" / "opencode.why"
    reason = (
        why.read_text().strip() if why.exists() else "it is not installed: run bin/test, or bin/setup.py real-opencode"
    )
    return f"opencode: {reason}"


def configuration(
    *, base_url: str, api_key: str, context_limit: int = 131072, output_limit: int = 8192
) -> dict[str, Any]:
    """Return opencode.json: one provider at `base_url` (with /v1), every tool allowed, nothing updated or shared.

    opencode counts context by the usage that replies report, so a small `context_limit` (tokens) brings a compaction.
    """
    limits = {"context": context_limit, "output": output_limit}
    model = {"name": MODEL, "tool_call": True, "reasoning": True, "limit": limits}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": {"baseURL": base_url, "apiKey": api_key},
        "models": {MODEL: model},
    }
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": f"{PROVIDER}/{MODEL}",
        "permission": {"*": "allow"},
        "provider": {PROVIDER: provider},
    }


def environment(home: Path) -> dict[str, str]:
    """Return the agent's variables: a home of its own, and no way out but to this machine's loopback."""
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "TMPDIR": str(home / "tmp"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def prepare(home: Path, config: dict[str, Any]) -> Path:
    """Make a home with the configuration and an empty project; return the project's folder."""
    for folder in (home / ".config" / "opencode", home / "tmp", home / "project"):
        folder.mkdir(parents=True)
    (home / ".config" / "opencode" / "opencode.json").write_text(json.dumps(config))
    return home / "project"


@dataclass(frozen=True, kw_only=True)
class OpenCode:
    """A running `opencode serve`, its folders, and the calls that tests make on it."""

    url: str
    # Of the process and of its group.
    pid: int
    project: Path
    log: Path
    http: aiohttp.ClientSession

    async def session(self) -> str:
        """Open a session; return its id."""
        reply = await self._post("/session", {}, limit_s=30)
        return str(reply["id"])

    async def message(self, session: str, text: str, *, limit_s: float = MESSAGE_LIMIT_S) -> dict[str, Any]:
        """Send a prompt and wait for the main loop to end; return the last message: `info` and `parts`."""
        model = {"providerID": PROVIDER, "modelID": MODEL}
        body = {"model": model, "parts": [{"type": "text", "text": text}]}
        reply: dict[str, Any] = await self._post(f"/session/{session}/message", body, limit_s=limit_s)
        return reply

    async def abort(self, session: str) -> None:
        """Stop what a session is doing: opencode drops its connection to the engine at once."""
        await self._post(f"/session/{session}/abort", {}, limit_s=30)

    async def messages(self, session: str) -> list[dict[str, Any]]:
        """Return all of a session's messages, oldest first."""
        async with self.http.get(f"{self.url}/session/{session}/message", timeout=limit(30)) as reply:
            found: list[dict[str, Any]] = await self._read(reply)
            return found

    async def _post(self, path: str, body: dict[str, Any], *, limit_s: float) -> Any:
        async with self.http.post(self.url + path, json=body, timeout=limit(limit_s)) as reply:
            return await self._read(reply)

    async def _read(self, reply: aiohttp.ClientResponse) -> Any:
        text = await reply.text()
        if reply.status >= 400:
            raise AgentError(f"opencode answered {reply.status}: {text[:500]}\n{tail(self.log)}")
        return json.loads(text) if text else None


def limit(seconds: float) -> aiohttp.ClientTimeout:
    """Return a limit for a whole exchange."""
    return aiohttp.ClientTimeout(total=seconds)


def tail(log: Path, *, lines: int = 20) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.asynccontextmanager
async def running(home: Path, **settings: Any) -> AsyncIterator[OpenCode]:
    """Run `opencode serve` in a home of its own for as long as the context lasts.

    `settings` are those of `configuration`. Raise AgentError when it does not listen within START_LIMIT_S.
    """
    project = prepare(home, configuration(**settings))
    log = home / "serve.log"
    argv = ["serve", "--hostname", "127.0.0.1", "--port", "0", "--print-logs"]
    with log.open("wb") as output:
        process = await spawn(argv, home, project, output=output.fileno())
    try:
        url = await listening(process, log)
        async with aiohttp.ClientSession() as http:
            yield OpenCode(url=url, pid=process.pid, project=project, log=log, http=http)
    finally:
        await stop(process)


async def run_once(home: Path, prompt: str, *, limit_s: float = MESSAGE_LIMIT_S, **settings: Any) -> tuple[int, str]:
    """Run `opencode run PROMPT` to its end; return the exit code and all that it printed.

    Mind that it puts a prompt with spaces into literal double quotes. Raise AgentError past `limit_s`.
    """
    project = prepare(home, configuration(**settings))
    process = await spawn(["run", prompt], home, project, output=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    except TimeoutError:
        raise AgentError(f"opencode run had not ended after {limit_s:.0f} s") from None
    finally:
        await stop(process)
    assert process.returncode is not None, "communicate() waits for the end"
    return process.returncode, output.decode(errors="replace")


async def spawn(arguments: list[str], home: Path, project: Path, *, output: int) -> asyncio.subprocess.Process:
    """Start opencode in a process group of its own, stdout and stderr both to `output`."""
    return await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *arguments,
        cwd=project,
        env=environment(home),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


async def listening(process: asyncio.subprocess.Process, log: Path) -> str:
    """Return the address that opencode says it listens on; raise AgentError when it ends, or says none in time."""
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while process.returncode is None:
                match = LISTENING.search(log.read_bytes())  # noqa: ASYNC240 - a few lines from the page cache
                if match:
                    return match[1].decode()
                # The wait between two looks, which ends at once when the process does.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), timeout=0.1)
    except TimeoutError:
        raise AgentError(f"opencode did not listen within {START_LIMIT_S:.0f} s:\n{tail(log)}") from None
    raise AgentError(f"opencode ended with code {process.returncode} while starting:\n{tail(log)}")


async def stop(process: asyncio.subprocess.Process) -> None:
    """End the agent and what its tools started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT_S):
                await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
