"""The list of rollouts on the page: what is wrong with how many, filters, keys alone, live, ten thousand of them."""

import asyncio
import contextlib

import pytest

from benchmarks.browser import NARROW, WIDE
from benchmarks.page_store import fill
from tests.house import house
from tests.real.sight import looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

MANY = 10_000
SLOW = """
[[rule]]
match = { text = "slow" }
reply = { thinking = "Well.", text = "A long word that takes its time.", pace_s = 0.05 }
"""


async def ids(sight):
    """Return the rollouts that the list has in sight, in order."""
    found = await sight.tab.locator("[role=grid] tbody tr:not([hidden])").evaluate_all(
        """(rows) => rows.map((row) => [Number(row.ariaRowIndex ?? row.getAttribute('aria-rowindex')),
                                        row.querySelector('.c-id a')?.innerText])"""
    )
    return [name for _, name in sorted(found)]


async def active(sight):
    """Return the rollout that the keys stand on, as assistive programs are told."""
    return await sight.tab.evaluate(
        """() => document.getElementById(document.querySelector('[role=grid]').getAttribute('aria-activedescendant'))
                 ?.querySelector('.c-id a')?.innerText"""
    )


async def test_the_newest_come_first_with_what_is_wrong_with_each(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        assert await ids(sight) == [
            "callers-1", "callers-0", "pages-1", "pages-0", "changelog-1", "changelog-0", "report-1", "report-0",
            "greeting-1", "greeting-0", "files-1", "files-0", "bill-1", "bill-0",
        ]  # fmt: skip
        row = sight.tab.get_by_role("row").filter(has_text="files-1")
        assert "no_calls" in await row.inner_text()
        row = sight.tab.get_by_role("row").filter(has_text="pages-1")
        assert "limit" in await row.inner_text()


async def test_the_strip_filters_and_the_address_holds_the_filter(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        strip = sight.tab.get_by_role("region", name="Health")
        button = strip.get_by_role("button", name="no_calls", exact=False)
        assert await button.inner_text() == "✕1 no_calls"
        await button.click()
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '2'")
        assert await ids(sight) == ["files-1"]
        assert "finding=no_calls" in sight.tab.url
        assert await button.get_attribute("aria-pressed") == "true"
        # A reload shows the same, and a second press lets go.
        await sight.tab.reload()
        await sight.settled()
        assert await ids(sight) == ["files-1"]
        await sight.tab.get_by_role("region", name="Health").get_by_role("button", name="no_calls", exact=False).click()
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '15'")


async def test_state_group_label_and_words_narrow_the_list(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        await sight.tab.get_by_label("Group").select_option("bill")
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '3'")
        assert await ids(sight) == ["bill-1", "bill-0"]
        await sight.tab.get_by_role("button", name="Clear").click()
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '15'")
        await sight.tab.get_by_label("Label").select_option("task:bill")
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '3'")
        await sight.tab.get_by_role("button", name="Clear").click()
        await sight.tab.get_by_label("State").select_option("open")
        await sight.shown("No rollout fits: open.")
        await sight.tab.get_by_role("button", name="Show all").click()
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '15'")


async def test_with_keys_alone(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        await sight.press("j", "j")
        await sight.tab.wait_for_function("() => document.querySelector('tr.active')?.innerText.includes('callers-0')")
        assert await active(sight) == "callers-0"
        await sight.press("k")
        await sight.tab.wait_for_function("() => document.querySelector('tr.active')?.innerText.includes('callers-1')")
        await sight.press("Enter")
        await sight.until("() => location.hash.startsWith('#/rollouts/callers-1')")
        await sight.settled()
        # Back, at the same row.
        await sight.tab.go_back()
        await sight.settled()
        await sight.tab.wait_for_function("() => document.querySelector('tr.active')?.innerText.includes('callers-1')")
        await sight.press("/")
        await sight.tab.keyboard.type("greet")
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '3'")
        assert await ids(sight) == ["greeting-1", "greeting-0"]
        # Two are picked and compared.
        await sight.press("Escape", "Escape", "Tab")
        await sight.tab.locator("[role=grid]").focus()
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '15'")
        await sight.press("Home", "x", "j", "x")
        await sight.until("() => document.querySelectorAll('tr[aria-selected=true]').length === 2")
        await sight.press("c")
        await sight.until("() => location.hash === '#/compare/callers-1/callers-0'")
        await sight.settled()
        await sight.press("?")
        keys = await sight.tab.get_by_role("dialog", name="Keys").inner_text()
        assert "this list" in keys


async def test_it_is_live_and_nothing_moves(browser, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(SLOW)
    async with house(f"scripted={rules}", tmp_path) as home, looking(browser, home) as sight:
        rollout = await home.rollout(id="first", group="g")
        async with home.chat(rollout) as answer:
            await answer.read()
        await home.idle(rollout)
        await sight.enter()
        assert await ids(sight) == ["first"]
        await sight.line("live")
        await sight.tab.evaluate("() => { window.__same = document.querySelector('main').firstElementChild; }")
        await sight.shifts()

        async def ask():
            body = [{"role": "user", "content": "be slow"}]
            async with home.chat(rollout, messages=body, stream=True) as answer:
                await answer.read()

        asking = asyncio.ensure_future(ask())  # noqa: TID251 -- awaited below; the page is looked at meanwhile
        await sight.shown("1 call")
        await asking
        await sight.until("() => document.querySelector('tbody .c-calls')?.innerText.includes('/ 2')")
        # A new one does not push the others away: it is told of, and shown when the reader wants it.
        await home.rollout(id="second", group="g")
        await sight.shown("1 new: show")
        assert await ids(sight) == ["first"]
        assert [each for each in await sight.shifts() if each["value"] > 0] == []
        await sight.press("n")
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '3'")
        assert await ids(sight) == ["second", "first"]
        assert await sight.tab.evaluate("() => window.__same === document.querySelector('main').firstElementChild")


async def test_an_empty_list_says_how_to_begin_and_takes_in_the_first_by_itself(browser, tmp_path):
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        await sight.enter()
        await sight.shown("No rollouts yet")
        assert await sight.faults_of_access() == []
        await sight.line("live")
        await home.rollout(id="first")
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '2'")


async def test_it_comes_back_with_the_appliance(browser, tmp_path):
    # The key lies beside the store, so it is the same after a restart; only the port has to be.
    gone = ("net::ERR_", "Failed to load resource: net::ERR_", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    async with contextlib.AsyncExitStack() as running:
        home = await running.enter_async_context(house("scripted", tmp_path))
        await home.rollout(id="before")
        port = home.appliance.control_url.rpartition(":")[2]
        async with looking(browser, home, allowed=gone) as sight:
            await sight.enter()
            await sight.line("live")
            await running.aclose()
            await sight.line("reconnecting…")
            # What was read stays to be read.
            assert await ids(sight) == ["before"]
            home = await running.enter_async_context(house("scripted", tmp_path, admin_listen=f"127.0.0.1:{port}"))
            await sight.line("live")
            await home.rollout(id="after")
            await sight.shown("1 new: show")
            assert await ids(sight) == ["before"]


@pytest.mark.timeout(240)
async def test_ten_thousand_rollouts_are_a_few_dozen_rows(browser, tmp_path):
    await fill(f"sqlite:///{tmp_path}/treering.db", crowd=MANY)
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        # What each is in a line is kept once it was asked for; a store that was filled by hand has none of it yet.
        after = ""
        while after is not None:
            told = await home.control("GET", f"/rollouts?limit=500{after and f'&after={after}'}")
            after = told["next"]
        await sight.enter()
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '10001'")
        assert (await ids(sight))[0] == f"run-{MANY - 1:05}"

        async def in_document():
            return await sight.tab.locator("[role=grid] tr").count()

        rows = await in_document()
        assert rows < 100
        await sight.tab.locator("[role=grid]").focus()
        await sight.shifts()
        await sight.press("End")
        await sight.until("() => document.querySelector('tr.active')?.innerText.includes('run-00000')")
        assert await in_document() == rows
        await sight.press("Home")
        await sight.until(f"() => document.querySelector('tr.active')?.innerText.includes('run-{MANY - 1:05}')")
        # By the wheel, too: whatever is in sight has been read.
        await sight.tab.locator("[role=grid]").hover()
        await sight.tab.mouse.wheel(0, 120_000)
        await sight.until(
            """() => { const rows = [...document.querySelectorAll('[role=grid] tbody tr:not([hidden])')];
                       return rows.length > 5 && rows.every((row) => row.querySelector('.c-id a')); }"""
        )
        assert await in_document() == rows
        assert [each for each in await sight.shifts() if each["value"] > 0] == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_no_view_of_many_has_a_serious_fault_of_access(browser, town, size, dark):
    async with looking(browser, town, size=size, dark=dark) as sight:
        await sight.enter()
        for place in ("/", "/?finding=no_calls", "/groups/bill", "/groups/report", "/compare/bill-0/bill-1"):
            await sight.go(place)
            assert await sight.faults_of_access() == [], place
            # No sideways scrolling of the page as a whole.
            assert await sight.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), place
