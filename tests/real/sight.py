"""What a test sees of the page, and does to it, as a person would: by text, by names, by keys."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from benchmarks import browser as browsers
from tests.house import House


class Sight:
    """One tab with the page in it."""

    def __init__(self, home: House, tab: Any, watch: browsers.Watch) -> None:
        self.home = home
        # playwright's Page.
        self.tab = tab
        self.watch = watch

    @property
    def url(self) -> str:
        """The control plane's address."""
        return self.home.appliance.control_url

    async def enter(self, place: str = "/") -> None:
        """Open the page by the address that `treering serve` prints, and go to a place ("/rollouts/r1")."""
        await self.tab.goto(f"{self.url}/#key={self.home.appliance.admin_key}")
        await self.settled()
        if place != "/":
            await self.go(place)

    async def go(self, place: str) -> None:
        """Go to a place in the page that is open, as a link does."""
        await self.tab.evaluate("(place) => { location.hash = place; }", f"#{place}")
        await self.settled()

    async def settled(self) -> None:
        """Wait until the view that the address names can be seen."""
        await self.tab.wait_for_function(
            """() => document.getElementById('main')?.getAttribute('aria-busy') === 'false'
                     && performance.getEntriesByName('useful').length > 0"""
        )

    async def idle(self) -> None:
        """Wait until what the view asks for behind its first sight has come, and is drawn."""
        await self.until(
            """async () => {
              const asked = () => performance.getEntriesByType('resource').length;
              const before = asked();
              await new Promise((done) => { setTimeout(done, 300); });
              await new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); });
              return asked() === before;
            }"""
        )

    async def press(self, *names: str) -> None:
        """Press keys, one after another."""
        for name in names:
            await self.tab.keyboard.press(name)

    async def unfold(self) -> None:
        """Open whatever is folded, and what is folded within it, and wait until nothing more comes of it."""
        await self.until(
            """() => {
              const folded = [...document.querySelectorAll('main details:not([open])')];
              for (const each of folded) each.open = true;
              return folded.length === 0;
            }"""
        )

    async def text(self, part: str = "body") -> str:
        """Return the text that can be seen in a part of the page."""
        return await self.tab.inner_text(part)

    async def in_sight(self) -> str:
        """Return the text that is on the screen now, without scrolling, a line for each stretch of it."""
        lines = await self.tab.evaluate(
            """() => {
              const lines = [];
              const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              for (let node = walker.nextNode(); node; node = walker.nextNode()) {
                const range = document.createRange();
                range.selectNodeContents(node);
                const seen = [...range.getClientRects()].some((box) => box.width > 1 && box.height > 1
                  && box.top < innerHeight && box.bottom > 0 && box.left < innerWidth && box.right > 0);
                if (seen && node.parentElement.checkVisibility({visibilityProperty: true, opacityProperty: true})) {
                  lines.push(node.data);
                }
              }
              return lines;
            }"""
        )
        return "\n".join(lines)

    async def shown(self, text: str) -> None:
        """Wait until a text can be seen."""
        await self.tab.get_by_text(text).locator("visible=true").first.wait_for()

    async def line(self, state: str) -> None:
        """Wait until the page says of its line of events that it is `state`."""
        await self.until("(state) => document.getElementById('live').textContent === state", state)

    async def until(self, question: str, *argument: Any) -> Any:
        """Wait until a JavaScript function gives something true; return that."""
        handle = await self.tab.wait_for_function(question, arg=argument[0] if argument else None)
        return await handle.json_value()

    async def faults_of_access(self) -> list[str]:
        """Return what axe-core finds wrong in the view as it is, of serious or critical impact: rule, words, place."""
        if not await self.tab.evaluate("() => 'axe' in window"):
            # Over the debugging protocol, so the page's policy stays as it is.
            await self.tab.evaluate(browsers.AXE.read_text())
        found = await self.tab.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:200]} {node['failureSummary']}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    async def shifts(self) -> list[dict[str, Any]]:
        """Return what has moved since this was asked last, without what answered a key or a click."""
        found = await self.tab.evaluate("() => window.__notes.shifts.splice(0)")
        return [each for each in found if not each["asked"]]


Look = Callable[..., contextlib.AbstractAsyncContextManager[Sight]]


@contextlib.asynccontextmanager
async def looking(browser: Any, home: House, **options: Any) -> AsyncIterator[Sight]:
    """Open a tab for a block; at its end nothing may have gone wrong in it (`benchmarks.browser.Watch`)."""
    async with browsers.looking(browser, home.appliance.control_url, **options) as (tab, watch):
        sight = Sight(home, tab, watch)
        yield sight
        if not tab.is_closed() and tab.url != "about:blank":
            await watch.look(tab)
        assert watch.faults == [], "\n".join(watch.faults)
        key = home.appliance.admin_key
        assert key is None or not [asked for asked in watch.asked if key in asked]
