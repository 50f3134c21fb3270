"""What drives a browser, and what judges the page's accessibility, for the tests of the page. Standard library only.

    python3 bin/setup.py real-browser        .real/browser: python/, playwright; axe.min.js, axe-core

The browser is Debian's chromium (`apt-get install chromium`); playwright's own browsers are never fetched. Playwright
lies in a folder of its own and not in .venv: its driver is 150 MB, and only the tests of the page need it, which put
that folder at the end of `sys.path` (benchmarks/browser.py).
"""

from __future__ import annotations

import functools
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = ("chromium", "chromium-browser")
"""The browser's names on the PATH, on Debian and on some of those that came from it."""

START_LIMIT_S = 60


def find_chromium() -> str | None:
    """Return the browser's path, None where there is none."""
    return next((found for name in CHROMIUM if (found := shutil.which(name))), None)


def fetch(tools: Any, folder: Path) -> None:
    """Put playwright and axe-core into `folder`, and see that both are whole. Raises `tools.SetupError`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = tools.install_environment()
    with tempfile.TemporaryDirectory() as scratch:
        wanted = ["--no-deps", "--target", str(folder / "python"), "-r", str(tools.pins("browser", Path(scratch)))]
        tools.run([*tools.installer(tools.VENV, env), *wanted], env=env)
        named = f"axe-core@{tools.versions('npm')['axe-core']}"
        tools.run(["npm", "pack", "--silent", "--pack-destination", scratch, named], limit_s=300)
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        shutil.move(Path(scratch) / "package" / "axe.min.js", folder / "axe.min.js")
    code = "import sys; sys.path.append(sys.argv[1]); import playwright.async_api"
    python = str(tools.VENV / "bin" / "python")
    tools.run([python, "-c", code, str(folder / "python")], env=env, limit_s=START_LIMIT_S)


def set_up(tools: Any) -> None:
    """Make the part, unless it is there; it is made for .venv's Python, and makes that first."""
    chromium = find_chromium()
    if chromium is None:
        raise tools.SetupError("the browser is not on the PATH: install Debian's package chromium")
    tools.run([chromium, "--version"], limit_s=START_LIMIT_S)
    tools.set_up_project("test", "demo")
    python = (tools.VENV / "pyvenv.cfg").read_text()
    pinned = sorted(tools.versions("browser").items())
    key = tools.digest(Path(__file__).resolve(), python, pinned, tools.versions("npm")["axe-core"])
    what = "fetching playwright and axe-core into .real/browser"
    tools.make(tools.REAL / "browser.stamp", lambda: key, what, lambda: fetch(tools, tools.REAL / "browser"))


def parts(tools: Any) -> dict[str, Callable[[], None]]:
    """Return the part that bin/setup.py has of this; `tools` is that module itself, as for `bin.trainers`."""
    return {"real-browser": functools.partial(set_up, tools)}
