"""What the page is for: with it alone, a person finds why each of six broken rollouts is broken.

Each of examples/broken.py's six has a healthy twin in its group. From the list a person sees which of the two needs a
look; one Enter later the view of that rollout says why in its first screen. What is asserted is the text that is in
sight, at 1280 × 900 pixels, without a click more.
"""

import pytest

from tests.real.sight import looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

SIX = {
    "files-1": ("no_calls", ["made no model call", "another rollout's key, or an old one", "graded"]),
    "greeting-0": ("role_overruled", ["a title", "taken for main", "trained"]),
    "report-1": ("drift_over_threshold", ["tool call's arguments are spelled another way", "1,047"]),
    "changelog-0": ("weights_changed", ["weights changed while 1 call was being sampled", "step-7", "step-8"]),
    "pages-1": ("limit_stop", ["stopped by its limit max_calls at call 2", "had not finished"]),
    "callers-0": ("time_limit", ["given up after about", "waits no longer than that and asks again"]),
}
"""The broken one → the finding that names it, and words that say why."""

TWINS = {"files-1": "files-0", "greeting-0": "greeting-1", "report-1": "report-0", "changelog-0": "changelog-1",
         "pages-1": "pages-0", "callers-0": "callers-1"}  # fmt: skip


async def test_the_list_shows_which_of_two_is_broken(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        for broken, (code, _) in SIX.items():
            row = await sight.tab.get_by_role("row").filter(has_text=broken).inner_text()
            twin = await sight.tab.get_by_role("row").filter(has_text=TWINS[broken]).inner_text()
            hidden = await sight.tab.get_by_role("row").filter(has_text=broken).locator(".c-found").evaluate(
                "(cell) => [...cell.querySelectorAll('[title]')].map((each) => each.title).join(' ')"
            )  # fmt: skip
            assert code in row + hidden, (broken, row)
            assert "!" in row or "✕" in row, (broken, row)
            assert "!" not in twin, (broken, twin)
            assert "✕" not in twin, (broken, twin)
        # One press, and they alone are left (with what of bin/demo's agent needs a look).
        await sight.press("t")
        await sight.until("() => location.hash.includes('trouble=1')")
        await sight.settled()
        # The list of before stands until the one that was asked for has come.
        await sight.until(
            "(twins) => !twins.some((twin) => document.querySelector('[role=grid]').innerText.includes(twin))",
            list(TWINS.values()),
        )
        left = await sight.text("[role=grid]")
        assert all(broken in left for broken in SIX)
        assert not any(twin in left for twin in TWINS.values())


@pytest.mark.parametrize("broken", SIX)
async def test_its_first_screen_says_why(browser, town, broken):
    async with looking(browser, town) as sight:
        await sight.enter()
        await sight.tab.get_by_role("link", name=broken, exact=True).click()
        await sight.until("(id) => location.hash.startsWith(`#/rollouts/${id}`)", broken)
        await sight.settled()
        seen = await sight.in_sight()
        code, words = SIX[broken]
        for word in words:
            assert word in seen, (broken, word, seen)
        assert code in seen
        assert "What to do" in seen


async def test_the_healthy_ones_are_said_to_be_sound(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        for twin in TWINS.values():
            await sight.go(f"/rollouts/{twin}")
            assert "Sound" in await sight.in_sight(), twin


async def test_the_retokenised_tokens_are_side_by_side(browser, town):
    # In five minutes, the very tokens.
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/report-1")
        await sight.tab.get_by_role("link", name="Tokens side by side").click()
        await sight.until("() => location.hash.startsWith('#/rollouts/report-1/tokens/1')")
        await sight.settled()
        seen = await sight.in_sight()
        # The parent's tokens begin with one key of the arguments, the child's with another: they were sorted.
        assert "arguments reserialised" in seen
        assert "the parent has" in seen
        for piece in ("path", "con", "parent, call 0", "462", "875"):
            assert piece in seen
