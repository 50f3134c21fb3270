import asyncio
import json
from pathlib import Path

import pytest

from benchmarks import peers, systems, wire
from benchmarks.corpus import Corpus
from benchmarks.peers import LiteLLM, OpenEnv
from benchmarks.rounds import Bench
from benchmarks.upstream import Flow, Request, ask_of, serve
from benchmarks.wire import Ask


class Ended:
    """A process that is not there."""

    pid = 0


def test_a_proxy_that_passes_no_headers_on_is_told_in_the_body() -> None:
    ask = Ask(start=3, n_prompt=600, streamed=True)
    body = OpenEnv(Ended(), "http://127.0.0.1:1").told(b'{"model":"bench","stream":true}', ask.header())
    assert json.loads(body) == {"user": "3,600,1,1,", "model": "bench", "stream": True}
    assert ask_of(Request(b"/v1/chat/completions", {}, body)) == ask


def test_a_peer_without_ids_is_the_same_process() -> None:
    litellm = LiteLLM("litellm", Ended(), "http://127.0.0.1:1")
    other = litellm.without_ids()
    assert (other.name, other.ids, other.url, other.open(2)) == (
        "litellm, no ids",
        False,
        litellm.url,
        ["sk-bench"] * 2,
    )
    assert (litellm.name, litellm.ids) == ("litellm", True)


def test_one_that_cannot_be_had_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(upstream: str, folder: Path) -> LiteLLM:
        raise RuntimeError("pip is not on the PATH")

    def found(upstream: str, folder: Path) -> LiteLLM:
        return LiteLLM("litellm", Ended(), upstream)

    monkeypatch.setattr(peers, "PEERS", {"openenv": refuse, "litellm": found})
    started, why = peers.start("http://127.0.0.1:1", tmp_path)
    assert [each.name for each in started] == ["litellm"]
    assert why == ["openenv is left out: pip is not on the PATH"]


def test_an_environment_that_fails_to_install_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = peers._setup()

    def fail(*_: object) -> None:
        raise setup.SetupError("uv pip failed with exit code 1")

    monkeypatch.setattr(setup, "REAL", tmp_path)
    monkeypatch.setattr(setup, "make_venv", fail)
    monkeypatch.setattr(peers, "_setup", lambda: setup)
    with pytest.raises(RuntimeError, match=r"^uv pip failed with exit code 1$"):
        peers.environment("nothing", "nothing==1", "1 MB")
    assert not (tmp_path / "bench-nothing.stamp").exists()


@pytest.mark.real
@pytest.mark.parametrize("name", ["openenv", "verifiers"])
async def test_a_real_one_passes_calls_on_and_counts_them(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = systems.ROOT / ".real" / name
    if not (found / "bin" / "python").exists():
        pytest.skip(f"{name} is not installed; bin/setup.py real-{name}")
    # As the tests of the formats have it, instead of installing another.
    monkeypatch.setattr(peers, "environment", lambda *_: found)
    corpus, flow = Corpus(20_000), Flow()
    server, upstream = await serve(wire.Wire(corpus), flow)
    peer = await asyncio.to_thread(peers.PEERS[name], upstream, tmp_path)
    try:
        # Streamed and not; what is said must come back, and every call must have been seen.
        await Bench([peer], corpus, flow, paced=False).check()
    finally:
        peer.stop()
        server.close()
