"""Tokens on the page: two hundred thousand in a grid of a few hundred cells; keys; a break beside its parent."""

import asyncio
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from benchmarks.page_store import LONG, LONG_CALLS, fill
from tests.house import house
from tests.real.sight import looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What a screen has of tokens, some rows above and below it, and the legend's samples.
MOST_CELLS = 800
# What the route gives at once (capture/token_text.py).
MOST_AT_ONCE = 2_048


async def detail(sight):
    """Return what is told of the token that is meant."""
    return await sight.tab.locator(".token-detail").inner_text()


async def meant(sight):
    """Return side and position of the cell that assistive programs are told of."""
    return await sight.tab.locator("[role=grid]").get_attribute("aria-activedescendant")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def long(tmp_path_factory):
    """Yield an appliance with the long rollout in its store."""
    folder = tmp_path_factory.mktemp("long")
    await fill(f"sqlite:///{folder}/treering.db", long=True)
    async with house("scripted", folder) as home:
        yield home


async def test_a_long_rollouts_tokens_scroll_and_only_what_is_in_sight_is_asked_for(browser, long):
    async with looking(browser, long) as sight:
        asked = []
        sight.tab.on("request", lambda request: asked.append(request.url))
        await sight.enter(f"/rollouts/{LONG}/tokens/{LONG_CALLS - 1}")
        call = await long.call({"id": LONG}, LONG_CALLS - 1)
        ids = call["prompt_ids"] + call["sampled_ids"]
        assert len(ids) > 160_000
        assert await meant(sight) == f"t0-{len(call['prompt_ids'])}"
        for position in (0, 83_000, len(ids) - 1):
            await sight.tab.get_by_label("Position").fill(str(position))
            await sight.press("Enter")
            cell = sight.tab.locator(f"#t0-{position}:not(.coming)")
            await cell.wait_for()
            assert str(ids[position]) in (await cell.inner_text()).split()
            assert await sight.tab.locator(".token").count() < MOST_CELLS
        windows = [parse_qs(urlsplit(url).query) for url in asked if "/text?" in url]
        assert all(int(each["end"][0]) - int(each["start"][0]) <= MOST_AT_ONCE for each in windows)
        # Three places, each of them one window or two.
        assert len(windows) <= 8
        assert await sight.faults_of_access() == []


async def test_what_flies_by_is_not_asked_for(browser, long):
    async with looking(browser, long) as sight:
        asked = []
        sight.tab.on("request", lambda request: asked.append(request.url))
        await sight.enter(f"/rollouts/{LONG}/tokens/{LONG_CALLS - 1}?at=0")
        await sight.tab.evaluate(
            """async () => {
              const grid = document.querySelector('.tokens');
              for (let i = 1; i <= 60; i += 1) {
                grid.scrollTop = (grid.scrollHeight * i) / 60;
                await new Promise((drawn) => setTimeout(drawn, 5));
              }
            }"""
        )
        await sight.until(
            "() => document.querySelectorAll('.token[data-at]').length && !document.querySelector('.coming')"
        )
        # Sixty windows went by.
        assert len([url for url in asked if "/text?" in url]) < 30


async def test_the_mask_is_the_rows(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0/tokens/3")
        await sight.shown("Trained in row 1.")
        call = await town.call({"id": "bill-0"}, 3)
        rows = await town.control("GET", "/rollouts/bill-0/sequences")
        (row,) = [each for each in rows["sequences"] if 3 in each["calls"]]
        total = len(call["prompt_ids"]) + len(call["sampled_ids"])
        seen = {}
        for position in range(0, total, 60):
            await sight.tab.evaluate("(at) => { location.hash = `#/rollouts/bill-0/tokens/3?at=${at}`; }", position)
            await sight.until("(at) => document.querySelector(`#t0-${at}:not(.coming)`)", position)
            await sight.shown("Trained in row 1.")
            await sight.idle()
            seen |= dict(
                await sight.tab.locator(".token[data-at]:not(.coming)").evaluate_all(
                    "(cells) => cells.map((cell) => [Number(cell.dataset.at), cell.classList.contains('trained')])"
                )
            )
        assert [seen[position] for position in range(total)] == [bool(each) for each in row["loss_mask"][:total]]


async def test_keys_walk_the_grid_and_from_break_to_break(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0/tokens/2")
        drift = (await town.graph({"id": "bill-0"}))["calls"][2]["drift"]
        at = drift["at"]
        assert await meant(sight) == f"t1-{at}"
        assert f"Position {at}" in await detail(sight)
        await sight.press("ArrowRight", "ArrowRight", "ArrowLeft")
        assert await meant(sight) == f"t1-{at + 1}"
        await sight.press("ArrowDown")
        columns = int(await sight.tab.locator(".tokens").evaluate("(grid) => grid.style.getPropertyValue('--columns')"))
        assert await meant(sight) == f"t1-{at + 1 + columns}"
        await sight.press("Home")
        assert await meant(sight) == "t1-0"
        await sight.press("b", "s")
        # On the parent's side.
        assert await meant(sight) == f"t0-{at}"
        assert "of parent, call 1" in await detail(sight)
        await sight.press("s", "r")
        call = await town.call({"id": "bill-0"}, 2)
        assert await meant(sight) == f"t1-{len(call['prompt_ids'])}"
        await sight.shown(f"id {call['sampled_ids'][0]}, text")
        assert f"logprob {call['logprobs'][0]:.4f}" in await detail(sight)
        # The address follows, so that it can be given to somebody else.
        await sight.until(f"() => location.hash.includes('at={len(call['prompt_ids'])}')")
        await sight.tab.get_by_role("link", name="Break of #9").wait_for()
        await sight.press("n")
        await sight.until("() => location.hash.startsWith('#/rollouts/bill-0/tokens/9')")


async def test_at_a_break_both_sides_are_level_and_the_first_difference_is_named(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0/tokens/2")
        parent, child = [await town.call({"id": "bill-0"}, n) for n in (1, 2)]
        at = (await town.graph({"id": "bill-0"}))["calls"][2]["drift"]["at"]
        before, after = (parent["prompt_ids"] + parent["sampled_ids"])[at], child["prompt_ids"][at]
        await sight.shown(f"(id {before})")
        await sight.shown(f"(id {after})")
        boxes = [await sight.tab.locator(f"#t{side}-{at}").bounding_box() for side in (0, 1)]
        assert boxes[0]["y"] == boxes[1]["y"]
        assert boxes[0]["x"] < boxes[1]["x"]
        marked = await sight.tab.locator(".first-differs[data-at]").evaluate_all("(all) => all.map((each) => each.id)")
        assert marked == [f"t0-{at}", f"t1-{at}"]
        # What the parent read and sampled beyond it is struck, to the end; nothing before it is.
        struck = sight.tab.locator(".lost[data-at]")
        lost = await struck.evaluate_all("(cells) => cells.map((cell) => Number(cell.dataset.at))")
        assert lost
        assert min(lost) == at + 1


async def test_a_reply_is_read_as_text(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0/tokens/3")
        await sight.tab.get_by_text("The reply as text").click()
        await sight.tab.locator(".inline-token").first.wait_for()
        text = await sight.tab.locator(".token-text").inner_text()
        assert "ask_helper" in text
        call = await town.call({"id": "bill-0"}, 3)
        assert await sight.tab.locator(".inline-token").count() == len(call["sampled_ids"])
        await sight.tab.locator(".inline-token").nth(5).click()
        assert await meant(sight) == f"t0-{len(call['prompt_ids']) + 5}"
        assert await sight.faults_of_access() == []


async def test_a_call_that_runs_is_shown_when_it_has_ended(browser, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = { text = "slow" }\nreply = { text = "A long word.", pace_s = 0.05 }\n')
    async with house(f"scripted={rules}", tmp_path) as home, looking(browser, home) as sight:
        rollout = await home.rollout(id="running")

        async def ask():
            async with home.chat(rollout, messages=[{"role": "user", "content": "be slow"}], stream=True) as answer:
                await answer.read()

        asking = asyncio.ensure_future(ask())  # noqa: TID251 -- awaited below; the page is looked at meanwhile
        await sight.enter("/rollouts/running")
        await sight.shown("running")
        await sight.go("/rollouts/running/calls/0")
        await asking
        await sight.shown("complete")
        assert "A long word." in await sight.text("main")


async def test_a_rollout_that_is_deleted_says_so(browser, tmp_path):
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        rollout = await home.rollout(id="gone")
        async with home.chat(rollout) as answer:
            await answer.read()
        await sight.enter("/rollouts/gone")
        await sight.shown("live")
        await sight.shown("trained tokens")
        await home.control("DELETE", "/rollouts/gone", status=204)
        await sight.shown("This rollout was deleted.")
