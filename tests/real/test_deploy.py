"""What lies in deploy/, as the linters and schemas of those who read it see it. Nothing of it is run."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.real import program

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# The oldest and the newest that the schemas are there for.
KUBERNETES = ("1.25.0", "1.37.0")
# Of systemd-analyze's scale from 0.0 (least exposed) to 10.0, in tenths: "OK" begins at 20.
EXPOSURE = 20
LIMIT_S = 120


def run(name, *words, cwd):
    """Run a linter to its end; return its code and what it said."""
    path = program.REAL / "deploy" / "bin" / name
    if not path.exists():
        pytest.skip(program.missing_venv("deploy", name) or "")
    return finished(path, *words, cwd=cwd)


def finished(*words, cwd):
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=program.environment(cwd) | {"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_dockerfile(tmp_path):
    assert run("hadolint", "--failure-threshold", "style", DEPLOY / "Dockerfile", cwd=tmp_path) == (0, "")


def test_the_linter_of_dockerfiles_finds_what_is_wrong(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && pip install x\n")
    code, said = run("hadolint", "--failure-threshold", "style", tmp_path / "Dockerfile", cwd=tmp_path)
    assert code == 1
    assert "DL3006" in said


def test_the_compose_file(tmp_path):
    words = ["--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    code, said = run("check-jsonschema", *words, cwd=tmp_path)
    assert code == 0, said


def test_the_schema_of_compose_finds_what_is_wrong(tmp_path):
    text = (DEPLOY / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace("stop_grace_period:", "stop_grace_seconds:"))
    words = ["--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml"]
    code, said = run("check-jsonschema", *words, cwd=tmp_path)
    assert code == 1
    assert "stop_grace_seconds" in said


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("file", ["single.yaml", "replicas.yaml"])
def test_the_manifests_of_kubernetes(file, version, tmp_path):
    words = ["--strict", "-k", version, DEPLOY / "kubernetes" / file]
    code, said = run("kubernetes-validate", *words, cwd=tmp_path)
    assert code == 0, said
    assert said.count("passed") == 5


def test_the_schema_of_kubernetes_finds_what_is_wrong(tmp_path):
    text = (DEPLOY / "kubernetes" / "single.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace("periodSeconds: 5", "periodSecond: 5"))
    code, said = run("kubernetes-validate", "--strict", tmp_path / "wrong.yaml", cwd=tmp_path)
    assert code != 0
    assert "periodSecond" in said


@pytest.fixture
def unit(tmp_path):
    """The unit, with a program that is there; the program's path is looked at too."""
    if finished("sh", "-c", "command -v systemd-analyze", cwd=tmp_path)[0] != 0:
        pytest.skip("systemd-analyze is not on the PATH: install systemd")
    stand_in = tmp_path / "treering"
    stand_in.write_text("#!/bin/sh\n")
    stand_in.chmod(0o755)
    file = tmp_path / "treering.service"
    text = (DEPLOY / "treering.service").read_text()
    file.write_text(text.replace("/opt/treering/bin/treering", str(stand_in)))
    return file


def test_the_unit(unit, tmp_path):
    assert finished("systemd-analyze", "verify", "--man=no", unit, cwd=tmp_path) == (0, "")


def test_the_unit_exposes_little(unit, tmp_path):
    words = ["security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", unit]
    code, said = finished("systemd-analyze", *words, cwd=tmp_path)
    assert code == 0, said[-300:]


def test_systemd_finds_what_is_wrong(unit, tmp_path):
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystems=strict"))
    assert "ProtectSystems" in finished("systemd-analyze", "verify", "--man=no", unit, cwd=tmp_path)[1]
