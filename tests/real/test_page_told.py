"""What the page tells somebody who sees it for the first time: nothing is cut, hidden in JSON, or said in two words."""

import asyncio
import importlib

import pytest

from benchmarks.browser import NARROW, WIDE
from tests.house import house
from tests.real import town as towns
from tests.real.sight import looking
from tests.real.test_page_taken import copied, in_a_shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVERYWHERE = (
    "/", "/?q=nosuch", "/rollouts/bill-0", "/rollouts/greeting-0", "/rollouts/files-1", "/rollouts/changelog-0",
    "/rollouts/pages-1", "/rollouts/callers-0", "/rollouts/report-1", "/rollouts/changelog-0/calls/1",
    "/rollouts/pages-1/calls/2", "/rollouts/report-1/tokens/1", "/groups/changelog", "/groups/pages",
    "/compare/greeting-0/greeting-1", "/compare/pages-0/pages-1", "/docs/findings", "/docs/pinned", "/docs/tunnels",
)  # fmt: skip

CUT = """() => [...document.querySelectorAll('body *')].filter((each) => {
  if (!each.textContent.trim() || each.closest('.hidden, .unseen, .skip, pre, select, svg') || !each.checkVisibility()) return false;
  if (!['hidden', 'clip'].includes(getComputedStyle(each).overflowX) || each.scrollWidth <= each.clientWidth + 1) return false;
  return !each.closest('[title]') && !each.querySelector('[title]');
}).map((each) => `${each.tagName}.${each.className}: ${each.textContent}`)"""  # noqa: E501 -- a condition a line


async def colours(sight, what):
    """Return the colours of what is found, as the browser computes them."""
    return await sight.tab.locator(what).evaluate_all(
        "(all) => [...new Set(all.map((e) => getComputedStyle(e).color))]"
    )


async def lines(sight, part):
    """Return the texts of all parts of a sort, each on one line."""
    return [" ".join(text.split()) for text in await sight.tab.locator(part).all_inner_texts()]


# -- everywhere -------------------------------------------------------------------------------------------------------


async def test_no_text_is_cut_without_a_way_to_read_it(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        for place in EVERYWHERE:
            await sight.go(place)
            await sight.idle()
            assert await sight.tab.evaluate(CUT) == [], place


async def test_nor_are_long_names(browser, tmp_path):
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        made = [
            await home.rollout(
                id=f"{'a-long-name-' * 15}{n}", group="a-long-group-" * 12,
                labels={"a-long-label": "a-long-value-" * 12}, task={"text": "A long task. " * 40},
                limits={"max_total_tokens": 10**9, "deadline_s": 86_400},
            )
            for n in range(2)
        ]  # fmt: skip
        for rollout in made:
            async with home.chat(rollout) as answer:
                await answer.read()
            await home.idle(rollout)
            await home.control("POST", f"/rollouts/{rollout['id']}/close", json={"reward": 1.0})
        one, other = (rollout["id"] for rollout in made)
        await sight.enter()
        for place in (
            "/", f"/?q={'x' * 200}", f"/?group={'a-long-group-' * 12}&finding=drift", f"/rollouts/{one}",
            f"/rollouts/{one}/calls/0", f"/rollouts/{one}/tokens/0", f"/groups/{'a-long-group-' * 12}",
            f"/compare/{one}/{other}",
        ):  # fmt: skip
            await sight.go(place)
            await sight.idle()
            await sight.unfold()
            assert await sight.tab.evaluate(CUT) == [], place
            assert await sight.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), place


async def test_no_mark_of_code_is_left_in_a_sentence(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        for place in EVERYWHERE:
            await sight.go(place)
            await sight.idle()
            await sight.unfold()
            # What a broken example's model writes has such marks, and is nobody's sentence.
            texts = await sight.tab.evaluate(
                """() => { const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
                   while (walker.nextNode()) if (!walker.currentNode.parentElement.closest('pre, .message')) found.push(walker.currentNode.data);
                   return [...found, ...[...document.querySelectorAll('[title]')].map((each) => each.title)].filter((text) => text.includes('`')); }"""  # noqa: E501 -- a walk is one thing
            )
            assert texts == [], place


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_documents_dialogs_and_empty_lists_have_no_serious_fault_of_access(browser, town, size, dark):
    async with looking(browser, town, size=size, dark=dark) as sight:
        await sight.enter()
        for place in ("/?q=nosuch&state=open", "/rollouts/greeting-0", "/rollouts/changelog-0", "/docs/findings"):
            await sight.go(place)
            await sight.idle()
            await sight.unfold()
            assert await sight.faults_of_access() == [], place
            assert await sight.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), place


# -- the list ---------------------------------------------------------------------------------------------------------


async def test_the_list_calls_a_finding_by_one_name(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        strip = sight.tab.get_by_role("region", name="Health")
        for code in ("no_calls", "drift", "capture_incomplete", "limit_stop", "role_overruled"):
            assert await strip.get_by_role("button", name=code, exact=False).count() >= 1, code
        seen = await sight.text("main")
        for other in ("without a call", "drifted", "stopped by a limit", "troubled"):
            assert other not in seen, other
        # The sign, and the button that does the same.
        await sight.tab.get_by_role("button", name="Need a look", exact=True).click()
        await sight.shown("8 rollouts, that need a look")


async def test_the_list_says_what_each_was_asked_and_finds_it_by_that(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        row = sight.tab.get_by_role("row").filter(has_text="pages-1")
        assert "Make the tests pass." in await row.inner_text()
        await sight.press("/")
        await sight.tab.keyboard.type("every CALLER")
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '3'")
        assert await lines(sight, "[role=grid] tbody tr:not([hidden]) .c-id a") == ["callers-1", "callers-0"]


async def test_a_search_that_finds_nothing_says_what_was_looked_for_and_lets_go(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/?q=nosuch&group=pages")
        seen = await sight.text("main")
        assert "“nosuch” stands in no id, group, label's value, model or task (narrowed to: in group pages)." in seen
        assert "No rollouts" not in seen
        assert "No rollout fits." in seen
        await sight.tab.get_by_role("button", name="Without the search for “nosuch”").click()
        await sight.until("() => document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '3'")
        assert "group=pages" in sight.tab.url
        assert await sight.tab.get_by_label("Search").input_value() == ""


async def test_a_state_has_one_word_and_one_colour_in_every_view(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        row = sight.tab.get_by_role("row").filter(has_text="pages-1").locator(".c-state")
        assert await row.inner_text() == "closed, stopped"
        warn = await colours(sight, "[role=grid] .state-warning")
        await sight.go("/groups/pages")
        assert (await lines(sight, ".group-glance tbody td:nth-child(3)"))[1] == "closed, stopped"
        assert await colours(sight, ".group-glance .state-warning") == warn
        await sight.go("/rollouts/pages-1")
        assert await lines(sight, "h1 .tag") == ["closed", "stopped"]
        assert await colours(sight, "h1 .tag.warning") == warn
        # So has the call that the limit answered.
        assert await colours(sight, ".status-stopped") == warn
        await sight.go("/rollouts/pages-1/calls/2")
        assert await colours(sight, "h1 .tag.warning") == warn
        await sight.go("/rollouts/callers-0")
        bad = await colours(sight, ".status-aborted")
        await sight.go("/rollouts/callers-0/calls/0")
        assert await colours(sight, "h1 .tag.error") == bad


# -- a rollout --------------------------------------------------------------------------------------------------------

FIRST_SIGHT = {
    "files-1": ["Likely why: Calls with a key that nobody has came", "Rows: not usable: no call was made",
                "Reward: not usable: it grades nothing", "between", "from not recorded"],
    "greeting-0": ["Task: Write hello.txt", "Rows: usable with care: a title is trained in them",
                   "Reward: usable with care: it goes to a title too", '{"conversation": 0, "role": "title"}'],
    "report-1": ["another way, by the agent (arguments_reserialised)", "Rows: usable: each is exactly what the",
                 "Reward: usable ."],
    "changelog-0": ["Rows: usable with care: tokens of call #1 are of two versions of the weights", "Reward: usable ."],
    "pages-1": ["Limit max_calls 2 calls, 0 left", "at call 2 (it allows 2 calls)", "value 2 calls",
                "Reward: usable with care: it grades work that a limit cut"],
    "callers-0": ["Likely why: 3 tries of requests were each given up after about", "Rows: not usable",
                  "Reward: not usable"],
}  # fmt: skip
"""Broken rollout → what its first screen says beyond the finding's name."""


@pytest.mark.parametrize("name", FIRST_SIGHT)
async def test_a_rollout_says_at_once_what_can_be_used_of_it_and_why_not(browser, town, name):
    async with looking(browser, town) as sight:
        await sight.enter(f"/rollouts/{name}")
        seen = " ".join(part for part in (await sight.in_sight()).split() if part)
        for words in FIRST_SIGHT[name]:
            assert words in seen, (words, seen)
        assert "by the agent or by the template" not in seen


async def test_a_sound_one_is_usable(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/pages-0")
        assert await lines(sight, ".usable") == ["Rows: usable. Reward: usable."]


async def test_a_call_across_a_change_of_weights_is_marked_wherever_it_is(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/changelog-0")
        await sight.idle()
        notes = sight.tab.locator(".forest tbody .notes-of.attention")
        assert await lines(sight, ".forest tbody .notes-of.attention") == ["weights step-7 → step-8"]
        assert await notes.count() == 1
        assert await sight.tab.locator(".forest-drawing .mixed").count() == 1
        # The key that leads to what is worth a look leads to it, and what the row says is there in full.
        await sight.press("n")
        assert await sight.until("() => document.querySelector('.forest tr[aria-current=true]')?.dataset.n") == "1"
        assert await lines(sight, ".forest-detail") == ["Call 1: main; exact on #0; complete; weights step-7 → step-8."]
        # In its row, too, with the tokens that it is about.
        assert await sight.tab.locator(".bars .part-mixed").count() == 1
        rows = await sight.text(".sequences")
        assert "step-7, step-7 → step-8" in rows
        assert "85 trained tokens across a change of the weights (#1)" in rows
        assert "weights: null" in rows
        await sight.go("/rollouts/changelog-0/calls/1")
        assert "The weights changed while it was sampled: step-7 → step-8" in await sight.text("main")
        # The twin, whose weights were one, says nothing of it.
        await sight.go("/rollouts/changelog-1")
        await sight.idle()
        assert await sight.tab.locator(".mixed, .part-mixed").count() == 1  # the legend's own
        assert "across a change" not in await sight.text(".sequences")


async def test_a_document_that_a_sentence_names_is_a_link_to_it(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/callers-0")
        await sight.tab.get_by_role("link", name="docs/findings.md#reasons").first.click()
        await sight.until("() => location.hash === '#/docs/findings?at=reasons'")
        await sight.settled()
        assert await sight.until("() => document.activeElement?.innerText") == "Reasons"
        assert "it broke off, and no later prompt proves that the agent used it" in await sight.in_sight()
        # A finding's own name leads to what there is to say of it.
        await sight.tab.go_back()
        await sight.settled()
        await sight.tab.get_by_role("link", name="time_limit").first.click()
        await sight.settled()
        assert await sight.until("() => document.activeElement?.innerText") == "time_limit"
        await sight.go("/rollouts/files-1")
        await sight.tab.get_by_role("link", name="docs/tunnels.md").first.click()
        await sight.settled()
        assert "Reach: agents on other machines" in await sight.in_sight()
        await sight.press("g")
        await sight.until("() => location.hash === '#/'")


async def test_a_document_that_is_not_there_says_where_it_is(browser, town):
    refused = ("refused: 404", "Failed to load resource: the server responded with a status of 404")
    async with looking(browser, town, allowed=refused) as sight:
        await sight.enter("/docs/none")
        await sight.shown("This appliance was installed without its documents")


# -- two rollouts -----------------------------------------------------------------------------------------------------


async def test_a_rollout_is_compared_with_its_twin_in_one_step(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/greeting-0")
        await sight.tab.get_by_role("button", name="Compare", exact=True).click()
        await sight.until("() => location.hash === '#/compare/greeting-0/greeting-1'")


async def test_a_title_that_was_ruled_main_is_compared_with_a_title(browser, town):
    async with looking(browser, town) as sight:
        # Of two that were run within other limits that is said, too.
        await sight.enter("/compare/pages-0/pages-1")
        told = await sight.text("section[aria-labelledby=compare-apart]")
        assert "limit max_calls: 8 calls in pages-0, 2 calls in pages-1" in told
        await sight.go("/compare/greeting-0/greeting-1")
        told = " ".join((await sight.text("section[aria-labelledby=compare-apart]")).split())
        assert "conversation 0, by what it did a title, is taken for main because somebody ruled so: 33 of its" in told
        assert "All 2 requests that both made are alike." in told
        assert "not given the same task" not in told
        seen = await sight.text("main")
        assert "Calls: auxiliary, title" in seen
        assert "Taken for main in greeting-0, because somebody ruled so." in seen
        assert "1 of them because somebody ruled so (call 0)" in seen


async def test_of_several_one_is_chosen(browser, tmp_path):
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        for name in ("a", "b", "c"):
            await home.rollout(id=name, group="g", task={"text": "Do it."})
        await home.rollout(id="alone", task={"text": "Do it."})
        await home.rollout(id="bare")
        await sight.enter("/rollouts/a")
        button = sight.tab.get_by_role("button", name="Compare", exact=True)
        await button.click()
        dialog = sight.tab.get_by_role("dialog", name="Compare a with")
        await dialog.wait_for()
        assert await lines(sight, "dialog li a") == ["b", "c"]
        assert await sight.faults_of_access() == []
        await dialog.get_by_role("link", name="c").click()
        await sight.until("() => location.hash === '#/compare/a/c'")
        # Without a group, those with the same task.
        await sight.go("/rollouts/alone")
        await button.click()
        await dialog.or_(sight.tab.get_by_role("dialog")).wait_for()
        assert await lines(sight, "dialog li a") == ["a", "b", "c"]
        await sight.press("Escape")
        await sight.go("/rollouts/bare")
        assert await button.is_disabled()


# -- what was ruled ---------------------------------------------------------------------------------------------------


async def test_what_was_ruled_is_seen_and_a_copied_command_rules_again(browser, tmp_path):
    async with house(f"scripted={towns.rules(tmp_path)}", tmp_path) as home:
        examples, appliance = towns.broken(), importlib.import_module("appliance")
        client = importlib.import_module("treering_client")

        def make() -> None:
            with client.Client(home.appliance.control_url, home.appliance.admin_key) as hand:
                examples.title_trained(appliance.Appliance(home.appliance.control_url, home.appliance.admin_key, hand))

        await asyncio.to_thread(make)
        async with looking(browser, home) as sight:
            await sight.enter("/rollouts/greeting-0")
            await sight.idle()
            assert await lines(sight, ".forest tbody td:nth-child(3)") == ["main, ruled", "main", "main"]
            await sight.unfold()
            conversations = " ".join((await sight.text(".conversations")).split())
            assert "0: main, 1 call ruled" in conversations
            assert "who, and when, is not kept" in conversations
            assert "main, where the flow of data says auxiliary (a title)" in conversations
            await sight.tab.get_by_label("Role of conversation 0").select_option("probe")
            assert '{"conversation": 0, "role": "probe"}' in await sight.text(".conversations")
            # The remedy of the finding, as it stands there.
            finding = sight.tab.locator(".finding").filter(has_text="role_overruled")
            command = await copied(sight, finding.get_by_role("button", name="Copy as curl"))
            assert home.appliance.admin_key not in command
            await in_a_shell(command, home, tmp_path)
            await sight.tab.reload()
            await sight.settled()
            assert "role_overruled" not in await sight.text("main")
            assert (await home.graph({"id": "greeting-0"}))["conversations"][0]["role"] == "auxiliary"
