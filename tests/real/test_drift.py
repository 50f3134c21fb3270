"""`treering drift` with the real vLLM: before a run, and on a rollout with the model's own tokeniser beside it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from capture import cli
from tests.house import house
from tests.real.engine_vllm import PYTHON, ROOT, Vllm

TOKENIZER = ROOT / ".real" / "qwen3-tokenizer" / "models"


async def test_an_engine_is_tried_before_a_run(vllm: Vllm, capsys, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    code = await asyncio.to_thread(cli.main, ["drift", "--engine", f"vllm={vllm.base_url}", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["unpinnable"] is None
    by_name = {case["name"]: case["measured"] for case in told["cases"]}
    # A random model's words are other ids when they are rendered anew; and thinking off has a template's own drift.
    assert by_name["thinking off, engine"]["exact"] < 3
    pinned = {name: one for name, one in by_name.items() if name.endswith(", pinned")}
    assert len(pinned) == 5
    for name, one in pinned.items():
        # It may end by the model's other end token, which no template knows: that has a name, and any drift is there.
        assert set(one["fallbacks"]) <= {"end-token-mismatch"}, name
        assert one["exact"] + sum(one["fallbacks"].values()) >= one["transitions"], name
    assert told["advice"][0]["setting"] == "tokens=pinned"


async def test_the_models_own_tokeniser_says_how_often_rendering_again_is_right(vllm: Vllm, tmp_path: Path):
    async with house(f"vllm={vllm.base_url}", tmp_path) as home:
        made = await home.rollout(id="r")
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Say something."}]
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        for turn in range(2):
            async with home.chat(made, messages=messages, max_tokens=12, **off) as answer:
                reply = (await answer.json())["choices"][0]["message"]
            await home.idle(made)
            messages += [
                {"role": "assistant", "content": reply["content"]},
                {"role": "user", "content": f"And {turn}?"},
            ]
        # In the environment that has transformers, as a trainer's own would.
        words = ["drift", "r", "--tokenizer", str(TOKENIZER), "--url", home.appliance.control_url, "--json"]
        env = {
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1",
            "TREERING_ADMIN_KEY": str(home.appliance.admin_key),
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            str(PYTHON), "-m", "capture.cli", *words, env=env, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0
    (case,) = json.loads(out)["cases"]
    again = case["rerendered"]
    # The prompts are right here, with the very template and text alone; the sampled ids are not those of their text.
    assert (again["turns"], again["prompts_right"], again["left_out"]) == (2, 2, 0)
    assert again["turns_right"] < 2
