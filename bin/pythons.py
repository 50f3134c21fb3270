"""The Pythons that a release is for, and the packages that it stands on, for the tests of packaging. Standard library.

    python3 bin/setup.py real-pythons        .real/pythons: pythons.json, each version's interpreter; wheels/

A Python that is not found (`find_python`) is fetched by uv into .real/pythons/fetched. The wheels are those of the
project's own dependencies, for each Python, at the versions that the tests run with, and what builds the project: from
them an environment is made without a network, and so always the same one.
"""

from __future__ import annotations

import functools
import json
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


def download(tools: Any, version: tuple[int, int], folder: Path) -> None:
    """Put the wheels that the project needs on a Python into `folder`. Raises `tools.SetupError`."""
    import tomllib  # not at the top, as in bin/setup.py

    project = tomllib.loads(tools.PROJECT.read_text())["project"]
    builder = f"setuptools=={tools.versions('tool')['setuptools']}"
    with tempfile.TemporaryDirectory() as scratch:
        exact = ["-c", str(tools.pins("test", Path(scratch)))]
        # The pip of .venv, whatever Python it is of: a Debian's own Python comes without one.
        pip = [str(tools.VENV / "bin" / "python"), "-m", "pip", "download", "-q", "--only-binary=:all:"]
        which = ["--python-version", "{}.{}".format(*version), "-d", str(folder), *exact]
        tools.run([*pip, *which, *project["dependencies"], builder], env=tools.install_environment())


def install(tools: Any, folder: Path) -> None:
    """Find or fetch every Python, and download the wheels. Raises `tools.SetupError`."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    found = {}
    for version in VERSIONS:
        found["{}.{}".format(*version)] = tools.find_python(version) or fetched(tools, version, folder / "fetched")
        download(tools, version, folder / "wheels")
    (folder / "pythons.json").write_text(json.dumps(found))


def set_up(tools: Any) -> None:
    """Make the part, unless it is there; it stands on .venv, and makes that first."""
    tools.set_up_project("test", "demo")
    tested, builder = sorted(tools.versions("test").items()), tools.versions("tool")["setuptools"]
    key = tools.digest(Path(__file__).resolve(), tools.PROJECT, str(tools.ROOT), VERSIONS, tested, builder)
    what = "finding Pythons and fetching the project's dependencies for each into .real/pythons"
    tools.make(tools.REAL / "pythons.stamp", lambda: key, what, lambda: install(tools, tools.REAL / "pythons"))


def parts(tools: Any) -> dict[str, Callable[[], None]]:
    """Return the part that bin/setup.py has of this; `tools` is that module itself, as for `bin.trainers`."""
    return {"real-pythons": functools.partial(set_up, tools)}
