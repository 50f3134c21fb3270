"""The recipes of docs/tunnels.md, run as they stand there: a network namespace is the other machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from capture.settings import load
from tests.netns import machine
from tests.processes import descendants
from tests.replicas import replica
from tests.served import KEY, ROOT
from tests.sshd import MISSING, sshd
from tunnel.spec import parse

PAGE = (ROOT / "docs" / "tunnels.md").read_text()
BLOCKS = {(found[1], found[2]): found[3] for found in re.finditer(r"^```sh (\w+) (\w+)\n(.*?)^```$", PAGE, re.M | re.S)}

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(MISSING is not None and not os.environ.get("TREERING_REQUIRE_REAL"), reason=str(MISSING)),
]


def words(block: str, **names: str) -> list[str]:
    """The words of a `treering serve …`, its variables in place, without the first two."""
    for name, value in names.items():
        block = block.replace(f"${name}", value)
    first, second, *rest = shlex.split(block)
    assert (first, second) == ("treering", "serve")
    return rest


def test_every_command_that_serves_can_be_read():
    serving = {key: block for key, block in BLOCKS.items() if block.startswith("treering serve")}
    assert len(serving) == 5
    for block in serving.values():
        given = words(block, NODE="10.1.2.3", BRIDGE="172.17.0.1", LOGIN="me@login", VM="me@vm")
        tunnel = given[given.index("--tunnel") + 1]
        assert parse(tunnel).kind in ("direct", "gradio", "ssh")
        assert load({"tunnel": (tunnel,), "engine": (given[given.index("--engine") + 1],)}, {}).tunnel == (tunnel,)


async def shell(block: str, folder: Path, *, prefix=(), **env: str) -> str:
    """Run a block as a person would, with `treering` on the PATH."""
    program = folder / "bin" / "treering"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m capture.cli "$@"\n')
    program.chmod(0o755)
    path = env.pop("PATH", os.environ["PATH"])
    made = {"PATH": f"{program.parent}{os.pathsep}{path}", "HOME": str(folder), **env}
    process = await asyncio.create_subprocess_exec(
        *prefix, "bash", "-euo", "pipefail", "-c", block, cwd=folder, env=made,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(90):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def bridge(host: str, prefix) -> str:
    """Our end of the wire to the other machine: the lower of its two addresses; without one, loopback."""
    if not prefix:
        return host
    head, _, last = host.rpartition(".")
    return f"{head}.{int(last) - 1}"


@pytest.mark.parametrize("recipe", ["cluster", "login", "docker"])
async def test_a_recipe_as_it_stands(recipe, tmp_path, capsys):
    with machine() as far:
        with capsys.disabled():
            print(f"\n{recipe}: {far.told}")
        if not far.other and recipe != "login":
            # `direct` is refused there, as tests/test_tunnels.py has it.
            return
        async with sshd(tmp_path / "ssh", extra="GatewayPorts clientspecified", machine=far) as server:
            near = bridge(far.host, far.prefix)
            names = {"NODE": far.host if recipe == "login" else near, "BRIDGE": near,
                     "LOGIN": server.spec.removeprefix("ssh=")}  # fmt: skip
            given = words(BLOCKS[recipe, "serve"], **names)
            # Free ports: this machine may have the usual ones in use.
            given = [word.replace(":8400", ":0") for word in given]
            async with replica(tmp_path / "one", *given, env={"PATH": server.program()}) as one:
                access = {"TREERING_ADMIN_KEY": KEY, "TREERING_ADMIN_LISTEN": one.control_url.removeprefix("http://")}
                await shell(BLOCKS[recipe, "register"], tmp_path, **access)
                if recipe == "docker":
                    # As `docker run --env-file` reads it: a variable a line, its value as it stands.
                    lines = (tmp_path / "rollout.list").read_text().splitlines()
                    env = dict(line.split("=", 1) for line in lines)
                    block = BLOCKS["cluster", "agent"].split("\n", 1)[1]
                else:
                    env, block = {}, BLOCKS[recipe, "agent"]
                said = json.loads(await shell(block, tmp_path, prefix=far.prefix, **env))
                assert said["choices"][0]["message"]["content"]
                (shown,) = (await one.control("GET", "/tunnels"))["tunnels"]
                assert (shown["healthy"], shown["rollouts"]) == (True, 1)
                (rollout,) = (await one.control("GET", "/rollouts"))["rollouts"]
                assert rollout["n_calls"] == 1
        assert descendants(word="leash.py") == {}


async def test_the_doctor_tries_a_way_to_another_machine(tmp_path, capsys):
    with machine() as far:
        with capsys.disabled():
            print(f"\ndoctor: {far.told}")
        if not far.other:
            # All that loopback gets is a warning, as tests/capture/test_doctor.py has it.
            return
        async with sshd(tmp_path / "ssh", extra="GatewayPorts clientspecified", machine=far) as server:
            near = bridge(far.host, far.prefix)
            ways = (("direct", near), (f"{server.spec},bind={far.host}", "127.0.0.1"))
            levels = []
            for tunnel, listen in ways:
                block = f"treering doctor --json --engine scripted --listen {listen}:0 --tunnel {tunnel} || true"
                checks = json.loads(await shell(block, tmp_path, PATH=server.program()))
                (found,) = [each for each in checks["checks"] if each["name"] == "tunnel"]
                levels.append(found["level"])
            assert levels == ["ok", "ok"]
        assert descendants(word="leash.py") == {}


def test_what_the_page_says_of_messages_is_what_the_code_says():
    """Each message of the table stands in the code, or is ssh's or gradio's own."""
    table = PAGE[PAGE.index("## When it fails") : PAGE.index("## Measured")]
    said = [cell for row in re.findall(r"^\| (.+?) \|", table, re.M)[2:] for cell in re.findall(r"`([^`]+)`", row)]
    theirs = {
        "Permission denied", "Host key verification failed", "Could not resolve hostname", "Connection refused",
        "timed out", "remote port forwarding failed", "Could not get share link", "login to server failed",
    }  # fmt: skip
    code = "".join(path.read_text() for path in (*(ROOT / "tunnel").glob("*.py"), ROOT / "capture" / "reach.py"))
    code = re.sub(r'"\s+f?"', "", code)
    unknown = [
        each for each in said if each not in theirs and not all(part.strip() in code for part in each.split("…"))
    ]
    assert unknown == []
