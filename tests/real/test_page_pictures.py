"""The pictures in docs/page.md: of the page as it is, on the stories of tests/real/town.py.

    TREERING_WRITE_PICTURES=1 bin/test tests/real/test_page_pictures.py

writes them anew. Without that a picture is taken and made small all the same, so that the way to it does not rot, and
the one in docs/ is held to its size. Pixels are not compared: durations are of the run, and fonts of the machine.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.real import pictures
from tests.real.sight import looking

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000

PICTURES = {
    "page-list": ("/", (1280, 900), False),
    "page-rollout": ("/rollouts/bill-0", (1280, 1000), False),
    "page-call": ("/rollouts/bill-0/calls/2", (1280, 900), False),
    "page-tokens": ("/rollouts/report-1/tokens/1?at=235", (1280, 900), False),
    "page-group": ("/groups/callers", (1280, 900), False),
    "page-narrow": ("/rollouts/changelog-0", (390, 844), True),
}
"""Name → place, screen, and whether it is dark."""


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", PICTURES)
async def test_a_picture_is_taken(browser, town, name):
    place, screen, dark = PICTURES[name]
    newest = await town.control("GET", "/rollouts?order=-created&limit=1")
    then = datetime.fromisoformat(newest["rollouts"][0]["created_at"]).astimezone(UTC) + timedelta(minutes=4)
    async with looking(browser, town, size=screen, dark=dark) as sight:
        # So much was ago in every picture, however long the stories took.
        await sight.tab.add_init_script(f"Date.now = () => {int(then.timestamp() * 1000)};")
        await sight.enter(place)
        await sight.idle()
        made = pictures.small(await sight.tab.screenshot(animations="disabled", caret="hide"))
    assert pictures.size(made) == screen
    assert len(made) < MOST_BYTES
    if os.environ.get("TREERING_WRITE_PICTURES", "") not in ("", "0"):
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.png").write_bytes(made)


def test_the_docs_show_each_of_them_and_none_is_large():
    text = (ROOT / "docs" / "page.md").read_text()
    for name, (_, screen, _) in PICTURES.items():
        assert f"](pictures/{name}.png)" in text
        kept = (FOLDER / f"{name}.png").read_bytes()
        assert pictures.size(kept) == screen
        assert len(kept) < MOST_BYTES


def test_a_small_picture_shows_the_same():
    # Three lines, each by another filter; few colours, so none is lost.
    import struct
    import zlib

    import numpy as np

    pixels = np.array([[[255, 0, 0], [0, 255, 0]], [[255, 0, 0], [9, 9, 9]], [[1, 2, 3], [9, 9, 9]]], np.uint8)
    lines = [
        bytes([0, 255, 0, 0, 0, 255, 0]),
        bytes([2, 0, 0, 0, 9, 10, 9]),
        bytes([1, 1, 2, 3, 8, 7, 6]),
    ]
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 2, 3, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(b"".join(lines)))]
    png = pictures.SIGNATURE + b"".join(pictures._chunk(name, body) for name, body in [*parts, (b"IEND", b"")])
    assert (pictures._pixels(png) == pixels).all()
    small = pictures.small(png)
    assert pictures.size(small) == (2, 3)
    told = dict(pictures._chunks(small))
    palette = np.frombuffer(told[b"PLTE"], np.uint8).reshape(-1, 3)
    rows = np.frombuffer(zlib.decompress(told[b"IDAT"]), np.uint8).reshape(3, 3)[:, 1:]
    assert (palette[rows] == pixels).all()
