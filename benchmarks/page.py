"""The page's first useful paint: how long until what was asked for can be seen, in a real browser.

The appliance is a process of its own over a store that was filled before it started (`benchmarks.page_store`); the
browser is Debian's chromium, in a context of its own for each load, so with nothing kept of the load before. A load
begins with the navigation to the address and ends when the page says that its view has been painted (the mark `useful`,
which capture/page/main.js sets behind the first frame with the view in it).

Wall clock, since it is what a person waits for; beside it stands the CPU time that the load took, of the browser's
processes and of the appliance's, which a machine that does other things tells better. The first load after the
appliance has started is not in the median; it has a column of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import browser as browsers
from benchmarks.page_store import LONG, LONG_CALLS, LONG_TOKENS, fill
from benchmarks.store_export import Appliance, running

Row = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "page.md"
PUBLISHED = ROOT / "docs" / "page.json"
BEGIN, END = "<!-- bin/bench page -->", "<!-- end -->"

GOAL_MS = 1_000.0

CROWD, QUICK_CROWD = 10_000, 500
LOADS, QUICK_LOADS = 9, 3

VIEWS = {
    "list": "/",
    "rollout": f"/rollouts/{LONG}",
    "call": f"/rollouts/{LONG}/calls/{LONG_CALLS - 1}",
    "tokens": f"/rollouts/{LONG}/tokens/{LONG_CALLS - 1}",
}
"""What is looked at, and where."""

SUMMED_AT_ONCE = 200
"""Rollouts of one page of the list."""


def run(argv: list[str]) -> int:
    """Measure, print a table, and write FILE; 2 where there is no browser."""
    parser = argparse.ArgumentParser(prog="bin/bench page", description="first useful paint, in a real browser")
    parser.add_argument("--quick", action="store_true", help="500 rollouts, three loads")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--docs", action="store_true", help="write docs/page.json, and the table into docs/page.md")
    asked = parser.parse_args(argv)
    if (why := browsers.missing()) is not None:
        sys.stderr.write(f"{why}\n")
        return 2
    measured = rows(quick=asked.quick)
    sys.stdout.write(table(measured) + "\n" + verdict(measured) + "\n")
    told = {
        "benchmark": "page",
        "version": 1,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "host": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        "rows": measured,
        "verdict": verdict(measured),
    }
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    if asked.docs:
        PUBLISHED.write_text(json.dumps(told, indent=1) + "\n")
        PAGE.write_text(with_section(PAGE.read_text(), told))
    return 0


def rows(*, quick: bool) -> list[Row]:
    """Measure every view."""
    crowd = QUICK_CROWD if quick else CROWD
    with tempfile.TemporaryDirectory(prefix="treering-bench-") as name:
        url = f"sqlite:///{name}/treering.db"
        asyncio.run(fill(url, crowd=crowd, long=True))
        with running(Path(name), url) as appliance:
            # A list that was looked at before: each rollout's summary is made when it changes, or when first asked for.
            summed(appliance)
        sys.stderr.write(f"page: {crowd:,} rollouts\n")
        with running(Path(name), url) as appliance:
            return asyncio.run(_views(appliance, crowd=crowd, loads=QUICK_LOADS if quick else LOADS))


def summed(appliance: Appliance) -> None:
    """Read the whole list once."""
    after, opener = "", urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        path = f"/rollouts?limit={SUMMED_AT_ONCE}{after}"
        asked = urllib.request.Request(appliance.url + path, headers={"Authorization": f"Bearer {appliance.key}"})  # noqa: S310 -- our own http address
        with opener.open(asked, timeout=120) as answer:
            cursor = json.load(answer)["next"]
        if cursor is None:
            return
        after = f"&after={cursor}"


async def _views(appliance: Appliance, *, crowd: int, loads: int) -> list[Row]:
    made = []
    async with browsers.browsing() as browser:
        for view, place in VIEWS.items():
            found = [await _load(browser, appliance, place) for _ in range(loads + 1)]
            first, later = found[0], found[1:]
            made.append(
                {
                    "view": view,
                    "rollouts": crowd + 1,
                    "calls": None if view == "list" else LONG_CALLS,
                    "tokens": None if view == "list" else LONG_TOKENS,
                    "loads": loads,
                    **{f"{name}_p50": round(statistics.median(each[name] for each in later), 1) for name in first},
                    "useful_ms_min": round(min(each["useful_ms"] for each in later), 1),
                    "useful_ms_max": round(max(each["useful_ms"] for each in later), 1),
                    "first_useful_ms": round(first["useful_ms"], 1),
                    "load": round(os.getloadavg()[0], 2),
                }
            )
            sys.stderr.write(f"page: {view}: {made[-1]['useful_ms_p50']} ms\n")
    return made


async def _load(browser: Any, appliance: Appliance, place: str) -> dict[str, float]:
    """Load the page once, with nothing kept, and go to a place."""
    context = await browser.new_context(viewport={"width": browsers.WIDE[0], "height": browsers.WIDE[1]})
    context.set_default_timeout(60_000)
    try:
        # The key first, so that the address can be that of the place; a person has it in the tab by then, too.
        keep = f"sessionStorage.setItem('treering-key', {json.dumps(appliance.key)});"
        await context.add_init_script(keep)
        page = await context.new_page()
        own = await browser.new_browser_cdp_session()
        before, began = await _browser_cpu_ms(own), _appliance_cpu_ms(appliance.pid)
        await page.goto(f"{appliance.url}/#{place}", wait_until="commit")
        await page.wait_for_function("() => performance.getEntriesByName('useful').length > 0", polling=20)
        after, ended = await _browser_cpu_ms(own), _appliance_cpu_ms(appliance.pid)
        await own.detach()
        told = await page.evaluate("""() => {
          const fetched = performance.getEntriesByType("resource");
          return {
            useful: performance.getEntriesByName("useful")[0].startTime,
            painted: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
            requests: fetched.length + 1,
            bytes: fetched.reduce((sum, each) => sum + each.transferSize, 0),
            elements: document.querySelectorAll("*").length,
            fault: document.querySelector("[role=alert]")?.innerText ?? null,
          };
        }""")
        if told["fault"] is not None:
            raise RuntimeError(f"{place}: {told['fault']}")
        return {
            "useful_ms": told["useful"],
            "first_paint_ms": told["painted"],
            "browser_cpu_ms": after - before,
            "appliance_cpu_ms": ended - began,
            "requests": told["requests"],
            "kib": told["bytes"] / 1024,
            "elements": told["elements"],
        }
    finally:
        await context.close()


async def _browser_cpu_ms(session: Any) -> float:
    """Return what all of the browser's processes have used so far; those that ended are left out."""
    told = await session.send("SystemInfo.getProcessInfo")
    return 1_000.0 * sum(float(each["cpuTime"]) for each in told["processInfo"])


def _appliance_cpu_ms(pid: int) -> float:
    """Return what a process has used so far, all its threads; to a tick, which is 10 ms."""
    # The name, in brackets, may hold spaces; what follows it is counted from there (proc(5): utime 14, stime 15).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1_000.0 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_COLUMNS = (
    ("view", "view"), ("rollouts", "rollouts"), ("calls", "calls"), ("useful_ms_p50", "useful"),
    ("useful_ms_min", "least"), ("useful_ms_max", "most"), ("first_useful_ms", "first load"),
    ("browser_cpu_ms_p50", "browser CPU"), ("appliance_cpu_ms_p50", "appliance CPU"), ("requests_p50", "requests"),
    ("kib_p50", "KiB"), ("elements_p50", "elements"),
)  # fmt: skip


def table(measured: Sequence[Row]) -> str:
    """Return rows as a table in Markdown; times in milliseconds."""
    lines = ["| " + " | ".join(head for _, head in _COLUMNS) + " |", "|---" + "|---:" * (len(_COLUMNS) - 1) + "|"]
    for row in measured:
        cells = [_shown(row[key]) for key, _ in _COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def verdict(measured: Sequence[Row]) -> str:
    """Return a sentence on whether every view keeps to the goal."""
    late = [row for row in measured if row["useful_ms_p50"] >= GOAL_MS]
    if not late:
        slowest = max(measured, key=lambda row: float(row["useful_ms_p50"]))
        took = f"the slowest, {slowest['view']}, in {slowest['useful_ms_p50']:,.0f} ms"
        return f"Every view is useful in under {GOAL_MS:,.0f} ms; {took}."
    named = ", ".join(f"{row['view']} ({row['useful_ms_p50']:,.0f} ms)" for row in late)
    return f"Not useful in under {GOAL_MS:,.0f} ms: {named}."


def with_section(page: str, told: dict[str, Any]) -> str:
    """Return the docs' page with the table of the last run replaced. Raises ValueError if it has no place."""
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END, page.index(BEGIN))
    host = told["host"]
    said = f"{told['at'][:10]}, {host['cores']} cores, load {host['load']}, {told['rows'][0]['loads']} loads."
    return f"{page[:before]}\n\n{said} {told['verdict']}\n\n{table(told['rows'])}\n{page[after:]}"


def _shown(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:,.0f}"
