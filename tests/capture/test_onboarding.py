"""From an `--engine` to an engine that may serve."""

from pathlib import Path

import pytest

from capture.errors import EngineError, UsageError
from capture.onboarding import engine_key, given_engines, onboard, scripted_engine
from capture.settings import Settings
from tests.engine import running, whole
from tests.proxy import proxy


@pytest.mark.parametrize(
    ("engines", "found"),
    [
        (("scripted",), [("scripted", None)]),
        (("vllm=http://a:1/v1", "sglang=http://b:2"), [("vllm", "http://a:1"), ("sglang", "http://b:2")]),
    ],
)
def test_engines_are_read_in_their_order(engines, found) -> None:
    assert given_engines(Settings(engine=engines)) == found


@pytest.mark.parametrize("engines", [(), ("scripted", "scripted"), ("vllm=http://a:1", "vllm=http://a:1/v1/")])
def test_none_and_one_twice_are_refused(engines) -> None:
    with pytest.raises(UsageError) as caught:
        given_engines(Settings(engine=engines))
    assert caught.value.hint


def test_a_key_is_its_kinds_alone(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("secret\n")
    settings = Settings(engine=("vllm=http://a:1",), engine_key_file=(f"vllm={tmp_path}/k",))
    assert engine_key(settings, "vllm", "http://a:1") == "secret"
    assert engine_key(settings, "vllm", "http://a:1/v1/") == "secret"
    assert engine_key(settings, "sglang", "http://a:1") is None
    # Not for an engine that a rollout brings along.
    assert engine_key(settings, "vllm", "http://a:2") is None


async def test_an_engine_is_identified_and_probed() -> None:
    async with running() as server:
        engine = await onboard(Settings(), "vllm", server.url)
        assert (engine.tier, engine.models, engine.healthy) == ("train", ("tiny",), True)
        await engine.close()


async def test_an_engine_that_comes_up_late_is_waited_for(unused_tcp_port: int, monkeypatch) -> None:
    from tests.engine import Engine

    monkeypatch.setattr("capture.onboarding.POLL_S", 0.0)
    server = Engine()
    looks = 0

    async def late(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            await server.start(unused_tcp_port)

    monkeypatch.setattr("capture.onboarding.asyncio.sleep", late)
    engine = await onboard(Settings(), "vllm", f"http://127.0.0.1:{unused_tcp_port}", wait_s=20)
    assert (looks, engine.tier) == (3, "train")
    await engine.close()
    await server.close()


async def test_one_that_is_not_good_enough_is_closed_again() -> None:
    def dumb(exchange) -> bool:
        exchange.answer(whole([5]) | {"prompt_token_ids": None})
        return True

    async with running(auto=dumb) as server:
        with pytest.raises(EngineError) as caught:
            await onboard(Settings(), "vllm", server.url)
        assert caught.value.code == "tier_too_low"
        engine = await onboard(Settings(require_tier="eval"), "vllm", server.url)
        assert engine.tier == "eval"
        await engine.close()


@pytest.mark.parametrize("text", ["[[rule]]\nnope = 1\n", "not toml ["])
def test_rules_that_cannot_be_used_are_a_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(UsageError):
        scripted_engine(str(tmp_path / "r.toml"))
    with pytest.raises(UsageError):
        scripted_engine(str(tmp_path / "missing.toml"))


async def test_no_variable_names_a_proxy_for_engines_unless_it_is_asked_for(monkeypatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with proxy() as between, running() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, between.url)
        engine = await onboard(Settings(), "vllm", server.url)
        await engine.check()
        await engine.close()
        assert between.asked == []
        engine = await onboard(Settings(proxy_from_env=True), "vllm", server.url)
        assert await engine.check()
        await engine.close()
        assert between.asked
        assert all(target.startswith(f"{server.url}/") for target in between.asked)
        before = len(between.asked)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        engine = await onboard(Settings(proxy_from_env=True), "vllm", server.url)
        await engine.close()
        assert len(between.asked) == before
