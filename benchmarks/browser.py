"""A real browser on the page: Debian's chromium, driven by playwright (bin/setup.py real-browser).

Rules
1. A page may ask its own appliance and nobody else. Every request goes through `Watch`, which lets none to another
   origin through, and keeps it as a fault.
2. Whatever a browser complains of is a fault: an error or a warning on the console, an exception, a request that failed
   or was refused, a violation of the content security policy, a dialog, a second window.
3. The policy stays on (`bypass_csp` is never set): what a test wants to know is asked over the debugging protocol,
   which is outside of it.

playwright is no dependency of ours; its folder is put behind all others on `sys.path` when a browser is first asked
for, so its types are not at hand here: `Any`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bin.browser import find_chromium

FOLDER = Path(__file__).resolve().parent.parent / ".real" / "browser"
AXE = FOLDER / "axe.min.js"

WIDE, NARROW = (1280, 900), (390, 844)
"""Screens in CSS pixels: a laptop's window and a telephone."""

ARGUMENTS = (
    # Without it every name would be looked up; here no name leads anywhere, and no proxy of the environment is asked.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
    # Containers give /dev/shm 64 MB, which chromium overruns.
    "--disable-dev-shm-usage",
    # Pictures are the same on every machine.
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--disable-lcd-text",
)

WAIT_MS = 30_000
"""For what a page is expected to do: a second on an idle machine."""

_NOTES = """
window.__notes = {violations: [], shifts: []};
document.addEventListener("securitypolicyviolation", (event) => {
  window.__notes.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
// Told at once, before the page hears of it: from here on the view that can be seen is not the one that was asked for.
navigation.addEventListener("navigate", (event) => {
  if (event.hashChange) performance.clearMarks("useful");
});
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) {
    const box = (rect) => `${rect.x},${rect.y} ${rect.width}x${rect.height}`;
    const moved = shift.sources.map(({node, previousRect, currentRect}) =>
      `${node?.nodeName}.${node?.className ?? ""} ${box(previousRect)} -> ${box(currentRect)}`);
    window.__notes.shifts.push({value: shift.value, at: shift.startTime, asked: shift.hadRecentInput, moved});
  }
}).observe({type: "layout-shift", buffered: true});
"""


def missing() -> str | None:
    """Say in a sentence why there is no browser here, or return None."""
    why = FOLDER.parent / "browser.why"
    if why.exists():
        return f"browser: {why.read_text().strip()}"
    if find_chromium() is None:
        return "browser: chromium is not on the PATH: install Debian's package chromium"
    if not AXE.exists():
        return "browser: it is not installed: run bin/setup.py real-browser"
    return None


def playwright() -> Any:
    """Return the module `playwright.async_api`. Raises ImportError where it is not installed."""
    place = str(FOLDER / "python")
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module("playwright.async_api")


@contextlib.asynccontextmanager
async def browsing() -> AsyncIterator[Any]:
    """Run a browser for a block; yields playwright's Browser."""
    api = playwright()
    async with api.async_playwright() as driver:
        # Without chromium's own sandbox, which it has to have a user of its own for; it opens nothing but our page.
        browser = await driver.chromium.launch(
            executable_path=find_chromium(), args=list(ARGUMENTS), chromium_sandbox=False
        )
        try:
            yield browser
        finally:
            await browser.close()


class Watch:
    """What went wrong in a browser's context, as sentences; empty when nothing did."""

    def __init__(self, origin: str, allowed: Collection[str] = ()) -> None:
        """`allowed`: what a test makes happen on purpose; a fault that holds one of these texts is none."""
        self.origin = origin
        self._allowed = list(allowed)
        self._faults: list[str] = []
        # Every address that was asked for, in order: "GET http://…".
        self.asked: list[str] = []

    def __repr__(self) -> str:
        return f"<Watch {self.origin} {len(self.asked)} requests {self.faults}>"

    @property
    def faults(self) -> list[str]:
        """What went wrong, but for what is allowed."""
        return [fault for fault in self._faults if not any(text in fault for text in self._allowed)]

    def allow(self, text: str) -> None:
        """Take no offence at faults that hold a text."""
        self._allowed.append(text)

    def note(self, fault: str) -> None:
        """Keep a fault."""
        self._faults.append(fault)

    async def over(self, context: Any) -> None:
        """Watch all that happens in a context from now on."""
        await context.route("**/*", self._route)
        await context.add_init_script(_NOTES)
        context.on("page", self._page)
        context.on("requestfailed", self._failed)
        context.on("response", self._answered)
        context.on("weberror", lambda error: self.note(f"exception: {error.error}"))
        context.on("console", self._said)

    async def look(self, page: Any) -> None:
        """Ask a page what it has seen of violations, and keep them."""
        for violation in await page.evaluate("() => window.__notes.violations.splice(0)"):
            self.note(f"policy: {violation}")

    async def _route(self, route: Any) -> None:
        url = route.request.url
        self.asked.append(f"{route.request.method} {url}")
        if _origin(url) == self.origin:
            await route.continue_()
        else:
            self.note(f"asked another: {url}")
            await route.abort()

    def _page(self, page: Any) -> None:
        if len(page.context.pages) > 1:
            self.note(f"a second window: {page.url}")
        page.on("dialog", self._dialog)

    async def _dialog(self, dialog: Any) -> None:
        self.note(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _failed(self, request: Any) -> None:
        # A view that is left drops what it had asked for.
        if request.failure != "net::ERR_ABORTED":
            self.note(f"failed: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Any) -> None:
        if response.status >= 400:
            self.note(f"refused: {response.status} {response.request.method} {response.url}")

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.note(f"console {message.type}: {message.text}")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


@contextlib.asynccontextmanager
async def looking(
    browser: Any, control_url: str, *, size: tuple[int, int] = WIDE, dark: bool = False, allowed: Collection[str] = ()
) -> AsyncIterator[tuple[Any, Watch]]:
    """Open an empty page in a context of its own for a block; yields playwright's Page, and what watches it."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
        accept_downloads=True,
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(WAIT_MS)
    try:
        watch = Watch(_origin(control_url), allowed)
        await watch.over(context)
        yield await context.new_page(), watch
    finally:
        await context.close()
