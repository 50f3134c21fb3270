"""The Pythons that a release is for, and the packages that it stands on, for the tests of packaging. Standard library.

    python3 bin/setup.py real-pythons        .real/pythons: pythons.json, each version's interpreter; wheels/; oldest/

A Python that is not found (`find_python`) is fetched by uv into .real/pythons/fetched. The wheels are those of the
project's own dependencies, for each Python, at the versions that the tests run with, and what builds the project; those
in oldest/, for the oldest Python, are the first that pyproject.toml allows. From them an environment is
made without a network, and so always the same one.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSIONS = ((3, 11), (3, 12), (3, 13))

FETCH_LIMIT_S = 600


def fetched(tools: Any, version: tuple[int, int], folder: Path) -> str:
    """Have uv fetch a Python into `folder` and return its interpreter. Raises `tools.SetupError`."""
    name = "{}.{}".format(*version)
    uv = tools.find_uv()
    if uv is None:
        raise tools.SetupError(f"there is no Python {name} here, and no uv to fetch one: put python{name} on the PATH")
    env = tools.install_environment() | {"UV_PYTHON_DOWNLOADS": "manual", "UV_PYTHON_INSTALL_DIR": str(folder)}
    try:
        tools.run([uv, "python", "install", "-q", "--no-bin", name], env=env, limit_s=FETCH_LIMIT_S)
    except tools.SetupError as error:
        raise tools.SetupError(
            f"there is no Python {name} here, and uv could not fetch one: put python{name} on the PATH"
        ) from error
    for place in sorted(folder.glob(f"cpython-{name}*/bin/python{name}")):
        if (found := tools.started(str(place), version)) is not None:
            return str(found)
    raise tools.SetupError(f"the Python {name} that uv fetched does not start")


def dependencies(tools: Any) -> list[str]:
    """Return the project's own dependencies, as pyproject.toml has them."""
    import tomllib  # not at the top, as in bin/setup.py

    return [str(each) for each in tomllib.loads(tools.PROJECT.read_text())["project"]["dependencies"]]


def first(requirement: str) -> tuple[str, str]:
    """Return name and first version of what a requirement allows: `x>=1.2,<2; marker` gives `x` and `1.2`."""
    found = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,.*)?", requirement.partition(";")[0].strip())
    if found is None:
        raise ValueError(f"{requirement!r} names no first version")
    return re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]


def download(tools: Any, version: tuple[int, int], folder: Path, *wanted: str) -> None:
    """Put the wheels that `wanted` (pip's words) names on a Python into `folder`. Raises `tools.SetupError`."""
    builder = f"setuptools=={tools.versions('tool')['setuptools']}"
    # The pip of .venv, whatever Python it is of: a Debian's own Python comes without one.
    pip = [str(tools.VENV / "bin" / "python"), "-m", "pip", "download", "-q", "--only-binary=:all:"]
    which = ["--python-version", "{}.{}".format(*version), "-d", str(folder)]
    tools.run([*pip, *which, *wanted, builder], env=tools.install_environment())


def install(tools: Any, folder: Path) -> None:
    """Find or fetch every Python, and download the wheels. Raises `tools.SetupError`."""
    shutil.rmtree(folder, ignore_errors=True)
    for place in ("wheels", "oldest"):
        (folder / place).mkdir(parents=True)
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        tested, oldest = (str(tools.pins(table, Path(scratch))) for table in ("test", "oldest"))
        for version in VERSIONS:
            found["{}.{}".format(*version)] = tools.find_python(version) or fetched(tools, version, folder / "fetched")
            download(tools, version, folder / "wheels", "-c", tested, *dependencies(tools))
        download(tools, VERSIONS[0], folder / "oldest", "--no-deps", "-r", oldest)
    (folder / "pythons.json").write_text(json.dumps(found))


def set_up(tools: Any) -> None:
    """Make the part, unless it is there; it stands on .venv, and makes that first."""
    tools.set_up_project("test", "demo")
    pinned = [sorted(tools.versions(table).items()) for table in ("test", "oldest", "tool")]
    key = tools.digest(Path(__file__).resolve(), tools.PROJECT, str(tools.ROOT), VERSIONS, pinned)
    what = "finding Pythons and fetching the project's dependencies for each into .real/pythons"
    tools.make(tools.REAL / "pythons.stamp", lambda: key, what, lambda: install(tools, tools.REAL / "pythons"))


def parts(tools: Any) -> dict[str, Callable[[], None]]:
    """Return the part that bin/setup.py has of this; `tools` is that module itself, as for `bin.trainers`."""
    return {"real-pythons": functools.partial(set_up, tools)}
