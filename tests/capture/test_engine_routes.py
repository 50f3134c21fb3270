"""The control plane's routes about engines, over an engine in name only."""

from pathlib import Path

import aiohttp

from tests.plane import KEY, control_plane


async def test_an_engine_is_shown_whole(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with session.get(plane.url + "/engines", headers=headers) as response:
            page = await response.json()
    assert page == {
        "engines": [
            {
                "name": "vllm=http://e", "kind": "vllm", "url": "http://e", "version": "0.32.0", "models": ["tiny"],
                "max_model_len": 2048, "tier": "train", "tier_reason": "ids", "logprobs_mode": "raw", "healthy": True,
                "reason": None, "in_flight": 0, "queued": 0, "held": False, "weights": None,
            }
        ],
        "next": None,
    }  # fmt: skip
