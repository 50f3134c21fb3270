"""Captured sequences handed back to the real vLLM that sampled them: it scores every token as it did then."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from capture import cli
from tests.house import house
from tests.real.engine_vllm import Vllm

# The engine of these tests gives processed logprobs, in float32: at temperature 1 they are the model's own, and a
# prefill gives what decoding gave.
MOST = "0.001"


async def test_the_engine_scores_every_captured_token_as_it_sampled_it(vllm: Vllm, tmp_path: Path, monkeypatch, capsys):
    async with house(f"vllm={vllm.base_url}", tmp_path, sampling={"temperature": 1.0}) as home:
        made = await home.rollout(id="r")
        said = [{"role": "user", "content": "Say something."}]
        for stream in (False, True):
            async with home.chat(made, messages=said, max_tokens=24, stream=stream) as answer:
                assert answer.status == 200
                await answer.read()
            await home.idle(made)
            last = (await home.call(made, (await home.graph(made))["calls"][-1]["n"]))["reply"]
            said += [last["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        await home.control("POST", "/rollouts/r/close", json={})
        form = await home.control("GET", "/rollouts/r/sequences")
        monkeypatch.setenv("TREERING_ADMIN_KEY", home.appliance.admin_key)
        words = ["verify", "r", "--json", "--largest", MOST, "--mean", MOST, "--url", home.appliance.control_url]
        code = await asyncio.to_thread(cli.main, words)
        (one,) = json.loads(capsys.readouterr().out)["rollouts"]
        assert (code, one["tokens"], one["missing"]) == (0, form["n_trained_tokens"], 0)
        assert one["largest"] <= float(MOST)
        assert one["because"] == []

        hot = await home.rollout(id="hot", sampling={"temperature": 0.5})
        async with home.chat(hot, max_tokens=24, stream=False) as answer:
            assert answer.status == 200
            await answer.read()
        await home.control("POST", "/rollouts/hot/close", json={})
        words[1] = "hot"
        code = await asyncio.to_thread(cli.main, words)
        (one,) = json.loads(capsys.readouterr().out)["rollouts"]
        # At another temperature what it sampled with is another distribution than what it scores a prompt with.
        assert (code, one["largest"] > float(MOST)) == (1, True)
        assert any("temperature is 0.5" in because for because in one["because"])
