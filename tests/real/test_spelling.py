"""The text of tokens as real tokenisers and the real vLLM spell it: many at once is the same as each alone."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from capture.engines import spelling
from tests.house import house
from tests.real import library
from tests.real.engine_vllm import ROOT, Vllm

TOKENIZERS = ROOT / ".real" / "tokenizers"
KNOWN = {"deepseek_v3", "gemma3", "gptoss", "llama3_1"}


@pytest.mark.real
@pytest.mark.timeout(library.LIMIT_S)
def test_real_tokenisers_come_apart_at_the_marks(tmp_path: Path) -> None:
    folders = sorted(folder for folder in TOKENIZERS.glob("*") if folder.is_dir())
    if {folder.name for folder in folders} < KNOWN:
        pytest.skip("tokenizers: run bin/setup.py real-templates")
    case = {"folders": list(map(str, folders)), "mark": spelling.MARK, "seed": 1, "batches": 4, "size": spelling.BATCH}
    said = library.ask("trl", "read_spelling.py", case, tmp_path)
    for folder, told in said.items():
        marks = spelling.marks(told["mark"], told["twice"])
        assert marks is not None, folder
        apart = 0
        for batch in told["batches"]:
            pieces = marks.pieces(batch["whole"], len(batch["ids"]))
            if pieces is None:
                # It has to have a sign in one of them.
                assert any(spelling.SIGN in text for text in batch["alone"]), folder
                continue
            apart += 1
            assert list(map(spelling.shown, pieces)) == list(map(spelling.shown, batch["alone"])), folder
        assert apart >= 3, folder


async def test_the_real_vllm_says_of_many_what_it_says_of_each(vllm: Vllm, tmp_path: Path) -> None:
    async with house(f"vllm={vllm.base_url}", tmp_path) as home:
        made = await home.rollout(id="r")
        said = [{"role": "user", "content": "Grüße, 世界! ¶ 🌲"}]
        async with home.chat(made, messages=said, max_tokens=40) as answer:
            assert answer.status == 200
        await home.idle(made)
        told = await home.control("GET", "/rollouts/r/calls/0/text")
        assert (told["source"], told["reason"], told["n_tokens"]) == ("engine", None, len(told["ids"]))
        assert "<|im_start|>" in told["pieces"]
        async with aiohttp.ClientSession() as session:
            for token, piece in dict(zip(told["ids"], told["pieces"], strict=True)).items():
                asked = {"model": vllm.model, "tokens": [token]}
                async with session.post(f"{vllm.base_url}/detokenize", json=asked) as answer:
                    alone = (await answer.json())["prompt"]
                assert piece == spelling.shown(alone), token
