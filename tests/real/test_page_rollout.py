"""A rollout on the page: the forest, live; findings; a call whole; its tokens; training rows; and a hostile one."""

import asyncio
import json
from urllib.parse import quote

import pytest

from benchmarks.browser import NARROW, WIDE
from benchmarks.page_store import LONG, fill
from tests.house import house
from tests.real import hostile
from tests.real.sight import looking

pytestmark = pytest.mark.asyncio(loop_scope="session")


SLOW = """
[[rule]]
match = { text = "slow" }
reply = { thinking = "Well.", text = "A long word.", pace_s = 0.05 }
"""

# What must be so of a document with bad words in it: a question, and its answer.
HARMLESS = {
    "() => window.ran ?? null": None,
    "() => document.querySelectorAll('script:not([src]), iframe, img, object, embed, svg[onload]').length": 0,
    "() => [...document.links].filter((link) => !link.href.startsWith(`${location.origin}/`)).length": 0,
    """() => [...document.querySelectorAll('*')].flatMap((each) => [...each.attributes])
             .filter((each) => each.name.startsWith('on')).length""": 0,
    # A mark that turns what follows round is shown as what it is.
    "() => document.body.textContent.includes('\u202e')": False,
}


async def rows_of(sight):
    """Return the calls as a person reads them: by number, the cells of the row, without the drawing."""
    texts = await sight.tab.locator(".forest tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].slice(1).map((cell) => cell.innerText.trim()))"
    )
    return {text[0]: text[1:] for text in texts}


async def test_the_forest_is_there_in_words_and_as_a_drawing(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0")
        rows = await rows_of(sight)
        graph = await town.graph({"id": "bill-0"})
        assert list(rows) == [f"#{call['n']}" for call in graph["calls"]]
        assert rows["#0"][:2] == ["auxiliary: title", "root"]
        assert rows["#2"][:2] == ["main", "drift 22 turn boundary on #1"]
        assert rows["#3"][:2] == ["main", "exact on #2"]
        assert rows["#4"][0] == "subagent"
        assert rows["#4"][-1] == "started by 3"
        assert rows["#6"][5] == "× aborted"
        assert rows["#6"][-1] == "retry · discarded"
        assert rows["#7"][-1] == "retry, kept"
        assert rows["#9"][:2] == ["main", "compaction on #7"]
        drawing = sight.tab.get_by_role("img", name="11 calls in 4 conversations, 1 fork")
        assert await drawing.locator("circle.node, path.node.cross").count() == 11
        assert await drawing.locator("path.break").count() == 1
        assert await drawing.locator("path.fold").count() == 1
        # The colour of a lane is its role's, and no other's.
        colours = await drawing.locator(".node").evaluate_all("(all) => all.map((each) => getComputedStyle(each).fill)")
        by_role = {}
        for text, colour in zip(rows.values(), colours, strict=True):
            if text[5] != "× aborted":
                by_role.setdefault(text[0].split(":")[0], set()).add(colour)
        assert {len(each) for each in by_role.values()} == {1}
        assert len(set.union(*by_role.values())) == 3


async def test_forks_and_breaks_are_told_in_words(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/report-1")
        told = sight.tab.get_by_role("region", name="Forks and breaks")
        await told.wait_for()
        text = await told.inner_text()
        # Which field the agent changed.
        assert "arguments" in text
        assert "messages[1]" in text
        await sight.go("/rollouts/bill-0")
        text = await sight.tab.get_by_role("region", name="Forks and breaks").inner_text()
        assert "retry" in text
        assert "compaction" in text


async def test_training_rows_are_bars_with_what_is_trained_of_them(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0")
        rows = sight.tab.get_by_role("region", name="Training rows", exact=True)
        await rows.locator("tbody tr").first.wait_for()
        told = await town.control("GET", "/rollouts/bill-0/sequences")
        lines = await rows.locator("tbody tr").all_inner_texts()
        assert len(lines) == told["n_rows"]
        for line, row in zip(lines, told["sequences"], strict=True):
            assert f"{len(row['input_ids']):,}" in line
            assert f"{row['n_trained_tokens']:,}" in line
        # Each bar's trained parts are as wide as their share of the longest row.
        longest = max(len(row["input_ids"]) for row in told["sequences"])
        for at, row in enumerate(told["sequences"]):
            bar = rows.locator("tbody tr").nth(at).locator("svg")
            view, parts = await bar.evaluate(
                """(svg) => [svg.viewBox.baseVal.width, [...svg.querySelectorAll('.part-trained')].map((each) =>
                              each.width.baseVal.value)]"""
            )
            assert sum(parts) / view == pytest.approx(row["n_trained_tokens"] / longest, abs=0.01)
        text = await rows.inner_text()
        assert f"{told['n_trained_tokens']:,} trained tokens" in text
        # And what is in none of them, with the reason.
        assert "In no row" in text
        assert "it broke off, and no later prompt proves that the agent used it" in text


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_two_hundred_calls_and_two_hundred_thousand_tokens(browser, tmp_path, size):
    await fill(f"sqlite:///{tmp_path}/treering.db", long=True)
    async with house("scripted", tmp_path) as home, looking(browser, home, size=size) as sight:
        await sight.enter()
        await sight.shifts()
        await sight.go(f"/rollouts/{LONG}")
        graph = await home.graph({"id": LONG})
        last = len(graph["calls"]) - 1
        await sight.until("(n) => document.querySelectorAll('.forest tbody tr').length === n", last + 1)
        assert await sight.faults_of_access() == []
        await sight.idle()
        # Of 200,000 tokens the document holds those that are in sight, wherever one is.
        held = []
        for at in (0, 100_000, graph["calls"][last]["n_prompt"]):
            await sight.go(f"/rollouts/{LONG}/tokens/{last}?at={at}")
            await sight.idle()
            held.append(await sight.tab.evaluate("() => document.querySelectorAll('*').length"))
            assert f"{at:,}" in await sight.text("main") or str(at) in await sight.text("main")
            assert await sight.faults_of_access() == []
        assert max(held) < 3_000
        assert [each for each in await sight.shifts() if each["value"] > 0] == []


async def test_keys_alone_walk_the_forest_open_a_call_and_go_back(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0")
        await sight.press("j", "j", "j")
        assert await sight.until("() => document.querySelector('.forest tr[aria-current=true]')?.dataset.n") == "2"
        await sight.press("k")
        assert await sight.until("() => document.querySelector('.forest tr[aria-current=true]')?.dataset.n") == "1"
        await sight.press("j", "p")
        assert await sight.until("() => document.querySelector('.forest tr[aria-current=true]')?.dataset.n") == "1"
        await sight.press("Enter")
        await sight.until("() => location.hash.startsWith('#/rollouts/bill-0/calls/1')")
        await sight.settled()
        await sight.press("u")
        await sight.until("() => location.hash.startsWith('#/rollouts/bill-0') && !location.hash.includes('calls')")
        await sight.press("g")
        await sight.until("() => location.hash === '#/'")


async def test_a_call_is_shown_whole(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0/calls/3")
        text = await sight.text("main")
        call = await town.call({"id": "bill-0"}, 3)
        for part in (
            "You are a careful programmer.",
            "Repair shares() so that the tests pass.",
            "I begin with the tests, to see what fails.",
            "The remainder of the division is dropped.",
            "ask_helper",
            "What do the tests in test_bill.py ask of the shares, in one sentence?",
            "Replace a text in a file.",
            "temperature",
            call["id"],
        ):
            assert part in text, part


async def test_a_rollouts_calls_come_in_live_and_nothing_moves(browser, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(SLOW)
    async with house(f"scripted={rules}", tmp_path) as home, looking(browser, home) as sight:
        rollout = await home.rollout(id="live", group="g")
        async with home.chat(rollout) as answer:
            await answer.read()
        await home.idle(rollout)
        await sight.enter("/rollouts/live")
        assert len(await rows_of(sight)) == 1
        await sight.line("live")
        await sight.shifts()
        await sight.tab.evaluate("() => { window.__same = document.querySelector('.forest'); }")

        async def ask():
            async with home.chat(rollout, messages=[{"role": "user", "content": "be slow"}], stream=True) as answer:
                await answer.read()

        asking = asyncio.ensure_future(ask())  # noqa: TID251 -- awaited below; the page is looked at meanwhile
        await sight.until("() => document.querySelectorAll('.forest tbody tr').length === 2")
        assert (await rows_of(sight))["#1"][5] == "… running"
        await asking
        await sight.until("() => document.querySelectorAll('.forest tbody tr')[1].innerText.includes('complete')")
        assert await sight.tab.evaluate("() => window.__same === document.querySelector('.forest')")
        moved = [each for each in await sight.shifts() if each["value"] > 0]
        assert moved == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_no_view_of_a_rollout_has_a_serious_fault_of_access(browser, town, size, dark):
    async with looking(browser, town, size=size, dark=dark) as sight:
        await sight.enter()
        for place in ("", "/calls/2", "/calls/6", "/tokens/2", "/tokens/9"):
            await sight.go(f"/rollouts/bill-0{place}")
            assert await sight.faults_of_access() == [], place
            # No sideways scrolling of the page as a whole.
            assert await sight.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), place


async def test_what_agents_and_models_wrote_is_text_and_nothing_of_it_runs(browser, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(hostile.RULES)
    async with house(f"scripted={rules}", tmp_path) as home, looking(browser, home) as sight:
        await hostile.play(home)
        await sight.enter()
        seen = {}
        group = f"/groups/{quote(hostile.IMAGE + hostile.TURNED, safe='')}"
        places = ("/", "/rollouts/hostile", "/rollouts/hostile/calls/0", "/rollouts/hostile/calls/2")
        places += ("/rollouts/hostile/tokens/0", "/rollouts/hostile/tokens/2", group, "/compare/hostile/hostile")
        for place in places:
            await sight.go(place)
            await sight.unfold()
            seen[place] = await sight.text()
            for question, answer in HARMLESS.items():
                assert await sight.tab.evaluate(question) == answer, (place, question)
            assert await sight.faults_of_access() == [], place
        assert hostile.IMAGE in seen["/"]
        call = seen["/rollouts/hostile/calls/2"]
        for text in (hostile.IMAGE, hostile.SCRIPT, hostile.LINK, hostile.SVG, hostile.BREAKER):
            assert text in call, text
        assert json.dumps(hostile.SCRIPT)[1:-1] in call or hostile.SCRIPT in call
