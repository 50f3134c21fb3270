"""What a release is made of: wheels and sdists that install clean into every Python that it is for, and work there.

Built from a copy of what git has, installed from the wheels of `bin/setup.py real-pythons`, without a network.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from bin import pythons, setup
from tests.real import program

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PART = program.REAL / "pythons"
HERE = Path(__file__).parent
NAMES = ["{}.{}".format(*version) for version in pythons.VERSIONS]
RELEASE = (ROOT / "client" / "VERSION").read_text().strip()
LIMIT_S = 120

# Modules of an extra, and what they need.
EXTRAS = {"asyncpg", "fsspec", "gradio", "opentelemetry", "openenv", "harbor", "pyarrow", "trl", "verifiers"}


def run(*words, cwd, **more):
    """Run a program in a clean environment; return what it printed. It must end well, and complain of nothing."""
    environ = program.environment(cwd) | {"PATH": os.environ["PATH"], "UV_CACHE_DIR": str(cwd / "cache"), **more}
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


def uv(*words, cwd, wheels="wheels"):
    return run(setup.find_uv(), *words, "--offline", "--no-index", "--find-links", PART / wheels, cwd=cwd)


@pytest.fixture(scope="module")
def at_hand():
    """Each Python's interpreter; skips, with the reason, where not all can be had."""
    if not (PART / "pythons.json").exists() or setup.find_uv() is None:
        why = setup.reason_file("real-pythons")
        pytest.skip(f"pythons: {why.read_text().strip() if why.exists() else 'run bin/setup.py real-pythons'}")
    return json.loads((PART / "pythons.json").read_text())


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of what git has, so that nothing which lies about here can get in."""
    folder = tmp_path_factory.mktemp("clone")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(at_hand, clone, tmp_path_factory):
    """The folder with the four files of a release. Each wheel is built from its sdist, as uv and `build` do."""
    folder = tmp_path_factory.mktemp("built")
    for source in (clone, clone / "client"):
        uv("build", "-q", "--python", at_hand["3.11"], "-o", folder / "dist", source, cwd=folder)
    return folder / "dist"


def one(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_a_release_is_four_files_of_one_version(built):
    assert {file.name for file in built.iterdir() if file.name != ".gitignore"} == {
        f"{name}-{RELEASE}{end}" for name in ("treering", "treering_client") for end in (".tar.gz", "-py3-none-any.whl")
    }


def test_a_wheel_holds_what_runs_and_nothing_else(built, clone):
    rooms = ("capture", "graph", "tunnel")
    ours = {str(file.relative_to(clone)) for room in rooms for file in (clone / room).rglob("*") if file.is_file()}
    assert names(one(built, "treering-*.whl")) == ours
    assert {"capture/page/index.html", "capture/py.typed", "graph/py.typed", "tunnel/gradio_share.py"} <= ours
    client = {
        str(f.relative_to(clone / "client")) for f in (clone / "client/treering_client").rglob("*") if f.is_file()
    }
    assert names(one(built, "treering_client-*.whl")) == client


def test_an_sdist_holds_what_builds_the_wheel_and_no_halves_of_tests(built, clone):
    with tarfile.open(one(built, "treering-*.tar.gz")) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "client/VERSION"} <= held
    tops = {name.partition("/")[0] for name in held if name}
    assert tops <= {
        "capture",
        "graph",
        "tunnel",
        "client",
        "treering.egg-info",
        "setup.cfg",
        "PKG-INFO",
        "MANIFEST.in",
    } | {name for name in held if "/" not in name and (clone / name).is_file()}
    assert {name for name in held if name.startswith("client/")} <= {"client/VERSION"}


def test_what_the_dockerfile_copies_builds_the_same_wheel(at_hand, built, clone, tmp_path):
    source = tmp_path / "src"
    for words in re.findall(r"^COPY (?!--from)(.+) \S+$", (clone / "deploy" / "Dockerfile").read_text(), re.M):
        for name in words.split():
            copy = shutil.copytree if (clone / name).is_dir() else shutil.copy
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            copy(clone / name, source / name)
    uv("build", "-q", "--wheel", "--python", at_hand["3.13"], "-o", tmp_path / "dist", source, cwd=tmp_path)
    assert names(one(tmp_path / "dist", "treering-*.whl")) == names(one(built, "treering-*.whl"))


def test_asked_for_it_the_wheel_has_what_can_be_compiled(at_hand, built, tmp_path):
    words = ["build", "-q", "--wheel", "--offline", "--no-index", "--find-links", PART / "wheels"]
    source = one(built, "treering-*.tar.gz")
    uv_build = [setup.find_uv(), *words, "--python", at_hand["3.13"], "-o", tmp_path / "dist", source]
    run(*uv_build, cwd=tmp_path, COMPILE_TREERING="1")
    wheel = one(tmp_path / "dist", "treering-*.whl")
    digests, plain, lane, lists = sorted(names(wheel) - names(one(built, "treering-*.whl")))
    assert re.fullmatch(r"capture/_digests\.cpython-313-.+\.so", digests)
    assert re.fullmatch(r"capture/dialects/_plain\.cpython-313-.+\.so", plain)
    assert re.fullmatch(r"capture/engines/_lane\.cpython-313-.+\.so", lane)
    assert re.fullmatch(r"capture/engines/_lists\.cpython-313-.+\.so", lists)
    run(setup.find_uv(), "venv", "-q", "--python", at_hand["3.13"], tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    uv("pip", "install", "-q", "--python", python, wheel, cwd=tmp_path)
    look = (
        "from capture import digests; from capture.dialects import plain; from capture.engines import id_text, stamp;"
    )
    look += "print(*(each.compiled.__name__ for each in (digests, plain, stamp, id_text)))"
    compiled = "capture._digests capture.dialects._plain capture.engines._lane capture.engines._lists\n"
    assert run(python, "-W", "error", "-c", look, cwd=tmp_path) == compiled


@pytest.mark.parametrize("form", ["wheel", "sdist"])
@pytest.mark.parametrize("name", NAMES)
def test_it_installs_clean_and_works(name, form, at_hand, clone, built, tmp_path):
    end = "-*.whl" if form == "wheel" else "-*.tar.gz"
    files = [one(built, f"{each}{end}") for each in ("treering", "treering_client")]
    told = used(at_hand[name], files, tmp_path)
    assert told["python"] == name
    assert told["page"] == (clone / "capture" / "page" / "index.html").read_text()


def test_it_works_with_the_oldest_that_it_allows(at_hand, built, tmp_path):
    files = [one(built, f"{each}-*.whl") for each in ("treering", "treering_client")]
    used(at_hand["3.11"], files, tmp_path, wheels="oldest")


def used(interpreter, files, folder, *, wheels="wheels"):
    """Install what was built into a fresh environment, use it there, and return what `packaged.py` saw."""
    run(setup.find_uv(), "venv", "-q", "--python", interpreter, folder / "venv", cwd=folder)
    python, treering = folder / "venv" / "bin" / "python", folder / "venv" / "bin" / "treering"
    uv("pip", "install", "-q", "--python", python, *files, cwd=folder, wheels=wheels)
    run(setup.find_uv(), "pip", "check", "--python", python, cwd=folder)

    assert "serve" in run(treering, "--help", cwd=folder, PYTHONWARNINGS="error")
    assert run(treering, "version", cwd=folder, PYTHONWARNINGS="error") == f"treering {RELEASE}\n"
    told = json.loads(run(python, "-W", "error", HERE / "packaged.py", folder, cwd=folder))
    assert told["version"] == told["client"] == RELEASE
    assert {Path(place).parts[-1] for place in told["from"]} == {"site-packages"}
    assert told["modules"] > 200
    assert set(told["unmet"].values()) <= EXTRAS, told["unmet"]
    assert [line.split()[0] for line in told["said"]] == ["agents", "engine", "control"]
    assert (told["code"], told["rest"]) == (0, "stopping; a second signal stops at once\n")
    assert told["reply"]
    assert told["trained"] > 0
    assert "<html" in told["page"]
    return told
