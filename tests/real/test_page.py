"""The page in a real browser: how it is entered, and what holds in every place of it.

A tab that saw an error or a warning on its console, a request that failed, one to another origin, or a violation of the
policy fails its test at its end (tests/real/sight.py), whatever the test is about.
"""

from pathlib import Path

import pytest

from benchmarks.browser import NARROW, WIDE
from tests.house import house
from tests.real.sight import looking

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def quiet():
    """What chromium itself says when the server refuses a request that a test makes it refuse."""
    return ("refused: 401", "Failed to load resource: the server responded with a status of 401")


async def test_the_key_comes_with_the_address_and_leaves_it(browser, tmp_path):
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        await sight.enter()
        assert sight.tab.url == f"{sight.url}/#/"
        assert await sight.tab.title() == "Rollouts – Treering"
        # A reload needs no key again: it stays in this tab.
        await sight.tab.reload()
        await sight.settled()
        assert await sight.tab.locator("input[type=password]").count() == 0
        assert home.appliance.admin_key not in await sight.tab.evaluate("() => JSON.stringify(localStorage)")
        assert await sight.tab.evaluate("() => document.cookie") == ""
        assert await sight.tab.evaluate("() => history.length") <= 2


async def test_without_a_key_it_asks_and_a_wrong_one_is_asked_for_again(browser, tmp_path, quiet):
    async with house("scripted", tmp_path) as home, looking(browser, home, allowed=quiet) as sight:
        await sight.tab.goto(sight.url)
        field = sight.tab.get_by_label("Key")
        await field.wait_for()
        assert await sight.tab.evaluate("() => document.activeElement.id") == await field.get_attribute("id")
        assert await sight.faults_of_access() == []
        await field.fill("wrong")
        await sight.press("Enter")
        await sight.shown("The admin key is wrong.")
        await sight.tab.get_by_label("Key").fill(home.appliance.admin_key)
        await sight.tab.get_by_role("button", name="Go on").click()
        await sight.until("() => !document.querySelector('input[type=password]')")
        await sight.settled()
        assert await sight.tab.title() == "Rollouts – Treering"


async def test_where_the_server_wants_no_key_none_is_asked_for(browser, tmp_path):
    async with house("scripted", tmp_path, no_admin_key=True) as home, looking(browser, home) as sight:
        await sight.tab.goto(sight.url)
        await sight.settled()
        assert await sight.tab.title() == "Rollouts – Treering"


async def test_an_address_that_leads_nowhere_says_so(browser, tmp_path):
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        await sight.enter("/nowhere")
        await sight.shown("There is no such place in this page.")
        await sight.tab.get_by_role("link", name="All rollouts").click()
        await sight.settled()
        assert sight.tab.url == f"{sight.url}/#/"


async def test_the_policy_refuses_what_is_not_ours(browser, tmp_path):
    # That the watch itself sees: what the other tests rely on.
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        await sight.enter()
        await sight.tab.evaluate("""() => {
          try { document.body.innerHTML = "<script>window.ran = true</script>"; } catch { /* trusted types */ }
          document.body.append(Object.assign(document.createElement("iframe"), {src: "http://example.invalid/"}));
          document.body.append(Object.assign(new Image(), {src: "http://example.invalid/x.png"}));
          document.body.setAttribute("style", "color: red");
          console.warn("a warning");
        }""")
        await sight.until("() => window.__notes.violations.length >= 4")
        assert await sight.tab.evaluate("() => window.ran") is None
        await sight.watch.look(sight.tab)
        told = "\n".join(sight.watch.faults)
        directives = ("require-trusted-types-for", "frame-src", "img-src", "style-src")
        for part in (*(f"policy: {name}" for name in directives), "console warning: a warning"):
            assert part in told
        sight.watch.allow("")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_the_keys_are_told(browser, tmp_path, size):
    async with house("scripted", tmp_path) as home, looking(browser, home, size=size) as sight:
        await sight.enter()
        await sight.press("?")
        dialog = sight.tab.get_by_role("dialog", name="Keys")
        await dialog.wait_for()
        assert "to the list of rollouts" in await dialog.inner_text()
        assert await sight.faults_of_access() == []
        await sight.press("Escape")
        await dialog.wait_for(state="detached")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_nothing_moves_while_a_view_is_loading(browser, town, size):
    async with looking(browser, town, size=size) as sight:
        await sight.enter()
        for place in (
            "/", "/rollouts/bill-0", "/rollouts/report-1", "/rollouts/bill-0/calls/3", "/rollouts/bill-0/tokens/2",
            "/groups/bill", "/compare/bill-0/bill-1",
        ):  # fmt: skip
            await sight.tab.goto("about:blank")
            await sight.tab.goto(f"{sight.url}/#{place}")
            await sight.settled()
            await sight.idle()
            assert [each for each in await sight.shifts() if each["value"] > 0] == [], place


@pytest.mark.parametrize(
    ("place", "section"),
    [
        ("/", "The list"), ("/rollouts/bill-0", "A rollout"), ("/rollouts/bill-0/calls/2", "A call"),
        ("/rollouts/bill-0/tokens/2", "Tokens"), ("/groups/bill", "A group, and two beside each other"),
    ],
)  # fmt: skip
async def test_the_docs_have_every_key(browser, town, place, section):
    told = (DOCS / "page.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    async with looking(browser, town) as sight:
        await sight.enter(place)
        await sight.tab.evaluate("() => document.activeElement?.blur()")
        await sight.press("?")
        dialog = sight.tab.get_by_role("dialog", name="Keys")
        keys = await dialog.locator("kbd").all_inner_texts()
    assert keys[:3] == ["?", "g", "u"]
    assert len(keys) > 3
    assert [key for key in keys[3:] if f"`{key}`" not in told] == []
