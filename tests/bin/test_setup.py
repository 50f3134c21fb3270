"""Environments are made once, whole, and without telling a log what it must not hold."""

import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bin import setup


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("see https://user:secret@index.example.org/simple/torch/ for it", "see <address> for it"),
        ("git+ssh://git@host/x (from -r a.txt)", "<address> (from -r a.txt)"),
        ("reason: getaddrinfo ENOTFOUND registry.example.com", "reason: getaddrinfo ENOTFOUND <host>"),
        ("connect ECONNREFUSED 10.1.2.3:443", "connect ECONNREFUSED <host>"),
        (f"{setup.ROOT}/pyproject.toml is wrong", "./pyproject.toml is wrong"),
        ("looked in /opt/some-wheels/torch-2.13.0+cpu.whl", "looked in <path>"),
        ("No solution: torch==2.13.0+cpu has no wheel", "No solution: torch==2.13.0+cpu has no wheel"),
        ("pip 23.2.1 and setup.py", "pip 23.2.1 and setup.py"),
    ],
)
def test_output_of_others_loses_addresses_and_paths(line, left):
    assert setup.scrub(line) == left


def test_a_failing_program_is_one_sentence_and_the_end_of_its_output(capfd):
    script = "import sys; print('at https://k@h.example.net/x'); sys.exit(3)"
    with pytest.raises(setup.SetupError, match=r"-c failed with exit code 3$"):
        setup.run([sys.executable, "-c", script])
    assert capfd.readouterr().err == "    at <address>\n"


def test_a_missing_program_is_named():
    with pytest.raises(setup.SetupError, match=r"^no-such-program is not on the PATH$"):
        setup.run(["no-such-program"])


def test_an_environment_is_built_once(tmp_path):
    built: list[str] = []
    keys = ["a"]

    def build() -> None:
        built.append(keys[0])

    for keys[0] in ("a", "a", "b"):
        setup.make(tmp_path / "stamp", lambda: keys[0], "making it", build)
    assert built == ["a", "b"]


def test_a_build_that_broke_is_done_again(tmp_path):
    def fail() -> None:
        raise setup.SetupError("no")

    stamp = tmp_path / "stamp"
    stamp.write_text("old")
    with pytest.raises(setup.SetupError):
        setup.make(stamp, lambda: "new", "making it", fail)
    assert not setup.is_stamped(stamp, "old")
    built: list[int] = []
    setup.make(stamp, lambda: "new", "making it", lambda: built.append(1))
    assert built == [1]
    assert setup.is_stamped(stamp, "new")


def test_two_at_once_build_once(tmp_path):
    built: list[int] = []
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(setup.make, tmp_path / "stamp", lambda: "key", "making it", lambda: built.append(1))
            for _ in range(8)
        ]
        for job in jobs:
            job.result(timeout=30)
    assert built == [1]


def test_the_digest_sees_content_and_order(tmp_path):
    file = tmp_path / "a"
    file.write_text("1")
    before = setup.digest(file, "x", "y")
    assert before == setup.digest(file, "x", "y")
    assert before != setup.digest(file, "y", "x")
    file.write_text("2")
    assert before != setup.digest(file, "x", "y")


def test_pip_variables_reach_uv_under_its_names(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "TREERING_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    monkeypatch.setenv("TREERING_TORCH_LINKS", "/c")
    monkeypatch.setenv("PIP_INDEX_URL", "http://localhost/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://localhost/more")
    monkeypatch.setenv("UV_INDEX", "http://localhost/mine")
    env = setup.install_environment()
    assert env["PIP_FIND_LINKS"] == "/a /b /c"
    assert env["UV_FIND_LINKS"] == "/a,/b,/c"
    assert env["UV_DEFAULT_INDEX"] == "http://localhost/simple"
    assert env["UV_INDEX"] == "http://localhost/mine", "what the caller says in uv's own words stands"


def test_no_version_of_the_engine_can_be_a_cuda_build():
    pins = setup.versions("vllm")
    assert pins["torch"].endswith("+cpu")
    assert not [name for name in pins if name.startswith(("nvidia", "cuda", "torchvision", "torchaudio"))]


def test_an_unknown_part_is_refused():
    done = subprocess.run(
        [sys.executable, str(Path(setup.__file__)), "app2"], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: bin/setup.py {app|demo|test|real-vllm|real-opencode|")


def test_a_python_is_started_before_it_is_taken(tmp_path):
    """pyenv's stand-ins lie on the PATH for versions that are not switched on."""
    version = sys.version_info[:2]
    stand_in = tmp_path / "python{}.{}".format(*version)
    stand_in.write_text("#!/bin/sh\nexit 127\n")
    stand_in.chmod(0o755)
    assert setup.started(str(stand_in), version) is None
    assert setup.started(sys.executable, version) == sys.executable
    assert setup.started(sys.executable, (version[0], version[1] + 1)) is None
    assert setup.started(str(tmp_path / "none"), version) is None


def test_a_python_is_found_among_pyenvs(tmp_path, monkeypatch):
    folder = tmp_path / "versions" / "3.99.1" / "bin"
    folder.mkdir(parents=True)
    python = folder / "python3.99"
    python.write_text(f"#!/bin/sh\necho 3 99 {python}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert setup.need_python((3, 99), "it") == str(python)


def test_a_python_that_there_is_none_of_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(setup, "find_uv", lambda: None)
    with pytest.raises(
        setup.SetupError, match=r"^Harbor needs Python 3\.99, and none was found: put python3\.99 on the"
    ):
        setup.need_python((3, 99), "Harbor")


def test_harbor_says_what_it_lacks(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(setup.SetupError, match="tmux"):
        setup.install_python_agent("harbor")


def test_an_extension_is_compiled_where_there_are_a_compiler_and_headers(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert not setup.can_compile(sys.executable)
    monkeypatch.setenv("CC", sys.executable)
    there = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    assert setup.can_compile(sys.executable) == there
