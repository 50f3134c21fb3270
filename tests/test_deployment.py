"""What lies in deploy/ beside the dashboard: its settings are settings, its limits fit, its probes are answered.

Linters look at the same files in tests/real/test_deploy.py; nothing of it is run in a container here.
"""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from capture import cli, settings
from capture.commands.serve import CLOSE_GRACE_S
from capture.settings import BY_NAME, OTHER_VARIABLES, Settings
from tests.served import Served

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = (DEPLOY / "compose.yaml").read_text()
UNIT = (DEPLOY / "treering.service").read_text()
SINGLE = (DEPLOY / "kubernetes" / "single.yaml").read_text()
REPLICAS = (DEPLOY / "kubernetes" / "replicas.yaml").read_text()
FILES = {"Dockerfile": DOCKERFILE, "compose": COMPOSE, "unit": UNIT, "single": SINGLE, "replicas": REPLICAS}
UID = "10001"
STOPS_S = 2 * Settings().shutdown_timeout + CLOSE_GRACE_S
"""From the signal to the end, at most: what `treering serve` takes by itself."""


def plain(text):
    """A file without its comments."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


@pytest.mark.parametrize("name", FILES)
def test_every_variable_is_a_settings(name):
    known = {row.variable for row in BY_NAME.values()} | set(OTHER_VARIABLES)
    # The two of compose.yaml's own, which stand for an address.
    known |= {"TREERING_PUBLIC_URL", "TREERING_AGENTS_ADDRESS"} if name == "compose" else set()
    named = set(re.findall(r"\bTREERING_[A-Z_]+\b(?!…)", plain(FILES[name])))
    assert named
    assert named <= known


def compose_environment():
    """The variables of Treering in compose.yaml, with its own defaults filled in."""
    block = re.search(r"^  treering:\n(?:    .*\n|\n)+", COMPOSE, re.M)[0]
    lines = re.search(r"    environment:\n((?:      .*\n)+)", block)[1]
    pairs = dict(re.findall(r'^      (TREERING_\w+): "?(.+?)"?$', lines, re.M))
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in pairs.items()}


def image_environment():
    return dict(re.findall(r"\b(TREERING_\w+)=(\S+)", plain(DOCKERFILE)))


def test_the_container_of_compose_has_settings_that_are_taken():
    found = settings.load({}, image_environment() | compose_environment(), folder=DEPLOY)
    assert found.engine == ("vllm=http://vllm:8000",)
    assert (found.listen, found.admin_listen) == ("0.0.0.0:8400", "0.0.0.0:8401")
    assert found.store == "sqlite:////var/lib/treering/treering.db"
    assert found.admin_key_file == "/run/secrets/admin_key"


def toml_of(manifest):
    text = re.search(r"  treering\.toml: \|\n((?:    .*\n)+)", manifest)[1]
    return re.sub(r"^    ", "", text, flags=re.M)


@pytest.mark.parametrize("manifest", [SINGLE, REPLICAS], ids=["single", "replicas"])
def test_the_settings_of_kubernetes_are_taken(manifest, tmp_path):
    (tmp_path / "treering.toml").write_text(toml_of(manifest))
    found = settings.load({}, {}, folder=tmp_path)
    assert "treering-control.treering.svc.cluster.local" in found.admin_name
    (tunnel,) = found.tunnel
    assert tunnel == "custom=http://treering-agents.treering.svc.cluster.local:8400"
    assert found.engine_wait == 1800
    # A probe gives up no earlier than Treering does.
    startup = re.search(r"startupProbe:\n(?: {12}.*\n)+", manifest)[0]
    period, failures = (int(re.search(rf"{word}: (\d+)", startup)[1]) for word in ("periodSeconds", "failureThreshold"))
    assert period * failures >= found.engine_wait


def test_the_unit_starts_what_there_is():
    line = re.search(r"^ExecStart=/opt/treering/bin/treering (.*)$", UNIT, re.M)[1]
    verb, given = cli.read(shlex.split(line), {})
    assert verb.name == "serve"
    assert given.settings.shutdown_timeout == Settings().shutdown_timeout


def test_whoever_stops_it_leaves_it_the_time():
    graces = [
        int(re.search(r"stop_grace_period: (\d+)s", COMPOSE)[1]),
        int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)[1]),
        *(int(re.search(r"terminationGracePeriodSeconds: (\d+)", text)[1]) for text in (SINGLE, REPLICAS)),
    ]
    assert min(graces) >= STOPS_S


def test_one_user_that_is_not_root():
    assert f"USER {UID}:{UID}" in DOCKERFILE
    assert f"--uid {UID}" in DOCKERFILE
    assert f'uid: "{UID}"' in COMPOSE
    for manifest in (SINGLE, REPLICAS):
        assert f"runAsUser: {UID}" in manifest
        assert "runAsNonRoot: true" in manifest
        assert "readOnlyRootFilesystem: true" in manifest
        assert "allowPrivilegeEscalation: false" in manifest
    assert "DynamicUser=yes" in UNIT


@pytest.mark.parametrize("manifest", [SINGLE, REPLICAS], ids=["single", "replicas"])
def test_no_secret_stands_in_a_manifest_and_no_service_fills_the_environment(manifest):
    assert "kind: Secret" not in manifest
    assert "secretKeyRef: {name: treering, key: admin-key}" in manifest
    assert "postgresql://" not in plain(manifest)
    # Kubernetes would set TREERING_AGENTS_SERVICE_HOST and its like, at which Treering ends with 2.
    assert "enableServiceLinks: false" in manifest


@pytest.mark.parametrize("manifest", [SINGLE, REPLICAS], ids=["single", "replicas"])
def test_each_probe_asks_what_it_is_for(manifest):
    probes = dict(re.findall(r"(\w+)Probe:\n\s+httpGet: ({path: \S+, port: \w+})", manifest))
    assert probes == {
        "startup": "{path: /ready, port: control}",
        "liveness": "{path: /health, port: control}",
        "readiness": "{path: /healthz, port: agents}",
    }


def test_the_image_is_built_from_what_there_is_and_sees_nothing_else():
    allowed = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    assert sorted(copied) == sorted(allowed)
    for name in copied:
        assert (ROOT / name).exists(), name
    # The environment is moved from one stage to the other, so both have one Python.
    assert len(set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M))) == 1


async def test_the_health_check_passes_while_it_lives_and_fails_when_not(tmp_path):
    words = json.loads(re.search(r"CMD (\[.*import urllib.*\])", DOCKERFILE)[1])

    async def check(url):
        code = words[2].replace("http://127.0.0.1:8401", url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words[1:2], code, stderr=asyncio.subprocess.DEVNULL, env={"PATH": os.environ["PATH"]}
        )
        async with asyncio.timeout(60):
            return await process.wait()

    assert words[:2] == ["python", "-c"]
    served = Served(tmp_path, "--engine", "scripted")
    await served.start()
    try:
        assert await check(served.control_url) == 0
        # And what Kubernetes' probes ask, which have no key either.
        async with aiohttp.ClientSession() as session:
            for url in ("/ready", "/health"):
                async with session.get(served.control_url + url) as answer:
                    assert answer.status == 200
            async with session.get(served.data_url + "/healthz") as answer:
                assert answer.status == 200
    finally:
        await served.close()
    assert await check(served.control_url) == 1


async def test_it_is_asked_by_its_services_name_and_by_no_other(tmp_path):
    text = toml_of(SINGLE)
    text = re.sub(r"^(engine|tunnel|store|listen|admin_listen|engine_wait) = .*\n", "", text, flags=re.M)
    (tmp_path / "treering.toml").write_text('engine = ["scripted"]\n' + text)
    served = Served(tmp_path)
    await served.start()
    try:
        async with aiohttp.ClientSession() as session:
            for host, status in (("treering-control.treering:8401", 200), ("treering-agents:8401", 403)):
                async with session.get(served.control_url + "/ready", headers={"Host": host}) as answer:
                    assert answer.status == status
    finally:
        await served.close()


def test_the_service_links_of_kubernetes_are_what_is_refused(tmp_path):
    # Why enableServiceLinks is false: this is what a Service called treering-agents does to a pod.
    done = subprocess.run(
        [sys.executable, "-m", "capture.cli", "config"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "TREERING_AGENTS_SERVICE_HOST": "10.0.0.1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "TREERING_AGENTS_SERVICE_HOST" in done.stderr
