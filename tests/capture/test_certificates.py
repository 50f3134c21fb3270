"""TLS: real handshakes with a certificate that is thrown away, on both planes, and what the command line trusts."""

import asyncio
import contextlib
import ssl
import subprocess
from pathlib import Path

import pytest

from capture import certificates
from capture.client import client
from capture.errors import UsageError
from capture.settings import Settings, load
from tests.house import ASK, house
from tests.wire import wired


def make(
    folder: Path, name: str, *, subject: str = "/CN=treering.example", password: str | None = None
) -> tuple[str, str]:
    """Make a certificate that vouches for itself; return its file and its key's."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2",
        "-subj", subject, "-addext", "subjectAltName=DNS:treering.example", "-keyout", str(key), "-out", str(cert),
        *(["-passout", f"pass:{password}"] if password else ["-nodes"]),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return str(cert), str(key)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make(tmp_path_factory.mktemp("tls"), "one")


async def test_both_planes_speak_tls(made: tuple[str, str], tmp_path: Path) -> None:
    cert, key = made
    async with wired() as engine, house(engine, tmp_path, tls_cert=cert, tls_key=key) as home:
        one = home.appliance
        assert one.data_url.startswith("https://")
        assert one.control_url.startswith("https://")
        trust = ssl.create_default_context(cafile=cert)
        trust.check_hostname = False
        headers = {"Authorization": f"Bearer {one.admin_key}"}
        async with home.session.post(f"{one.control_url}/rollouts", json={}, headers=headers, ssl=trust) as answer:
            rollout = await answer.json()
        assert rollout["base_url"] == f"{one.data_url}/v1"
        assert rollout["env"]["ANTHROPIC_BASE_URL"] == one.data_url
        headers = {"Authorization": f"Bearer {rollout['secret']}"}
        url = f"{rollout['base_url']}/chat/completions"
        for _ in range(2):
            async with home.session.post(url, json=ASK, headers=headers, ssl=trust) as answer:
                assert answer.status == 200
        # The command line, on the very machine: the certificate of its own settings, by whatever name.
        plane = client(one.settings, one.control_url)
        plane._key = one.admin_key
        shown = await asyncio.to_thread(plane.json, "GET", "/rollouts")
        assert [each["id"] for each in shown["rollouts"]] == [rollout["id"]]


async def test_plain_http_gets_nothing_there(made: tuple[str, str], tmp_path: Path) -> None:
    cert, key = made
    async with wired() as engine, house(engine, tmp_path, tls_cert=cert, tls_key=key) as home:
        for url in (home.appliance.data_url, home.appliance.control_url):
            port = int(url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                async with asyncio.timeout(10):
                    with contextlib.suppress(ConnectionError):
                        assert b"200" not in await reader.read()
            finally:
                writer.close()


def test_the_least_version_is_1_2(made: tuple[str, str]) -> None:
    context = certificates.serving(Settings(tls_cert=made[0], tls_key=made[1]))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_another_certificate_is_not_trusted(made: tuple[str, str], tmp_path: Path) -> None:
    other, _ = make(tmp_path, "other")
    async with wired() as engine, house(engine, tmp_path, tls_cert=made[0], tls_key=made[1]) as home:
        plane = client(Settings(tls_cert=other, tls_key="k", admin_key="k"), home.appliance.control_url)
        with pytest.raises(UsageError, match=r"(?i)certificate"):
            await asyncio.to_thread(plane.json, "GET", "/rollouts")
        # Nor, elsewhere than on loopback, one with another name: what a name is checked against isn't ours to relax.
        assert certificates.trusting(Settings(tls_cert=made[0], tls_key=made[1]), "treering.example").check_hostname
        assert certificates.trusting(Settings(), "127.0.0.1").check_hostname


def test_without_files_there_is_no_tls() -> None:
    assert certificates.serving(Settings()) is None


@pytest.mark.parametrize("which", ["missing", "no-pem", "mismatch", "encrypted"])
def test_files_of_no_use_are_named_and_none_is_quoted(which: str, made: tuple[str, str], tmp_path: Path) -> None:
    cert, key = made
    if which == "missing":
        cert = str(tmp_path / "none.pem")
    elif which == "no-pem":
        key = str(tmp_path / "key")
        Path(key).write_text("word-of-the-key")
    elif which == "mismatch":
        _, key = make(tmp_path, "other")
    else:
        cert, key = make(tmp_path, "locked", password="word-of-the-key")
    with pytest.raises(UsageError) as caught:
        certificates.serving(Settings(tls_cert=cert, tls_key=key))
    assert "word-of-the-key" not in f"{caught.value.message} {caught.value.hint}"


def test_a_key_needs_a_certificate_and_may_lie_in_its_file(made: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="goes with"):
        load({"tls_key": "a"}, {})
    assert load({"tls_cert": "a", "tls_key": "b"}, {}).tls_key == "b"
    # The command line needs the certificate alone, to trust it.
    assert load({"tls_cert": "a"}, {}).tls_key is None
    both = tmp_path / "both.pem"
    both.write_text(Path(made[0]).read_text() + Path(made[1]).read_text())
    assert certificates.serving(Settings(tls_cert=str(both))) is not None
    with pytest.raises(UsageError):
        certificates.serving(Settings(tls_cert=made[0]))
