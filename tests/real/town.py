"""A store with stories in it, for the page to show; made by real calls to an appliance on the scripted engine.

    bill-0      closed, 1.0    bin/demo's agent: main with tools, title, subagent, retry, drift, compaction
    bill-1      closed, 0.0    the same task, ended by a limit
    files … callers            the six broken rollouts of examples/broken.py, each with its healthy twin

The rules of both are put behind one another; neither's fit the other's requests.
"""

import asyncio
import contextlib
import importlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai

from bin import demo_agent
from tests.house import House, house

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# A wrong answer of a story's agent shows within seconds; a busy machine takes a while.
STORY_LIMIT_S = 120


def rules(folder: Path) -> Path:
    """Write one file with the rules of bin/demo and of examples/broken.py; return it."""
    first = (ROOT / "bin" / "demo_rules.toml").read_text()
    # Each says at its top how it is sampled, and both say the same.
    second, count = re.subn(r"^noncanonical = 0\.0$", "", (EXAMPLES / "broken.toml").read_text(), flags=re.M)
    assert count == 1
    assert "\nnoncanonical = 0.0\n" in first
    made = folder / "town.toml"
    made.write_text(f"{first}\n{second}")
    return made


def broken() -> Any:
    """Return the module examples/broken.py, which is started as a script, with its own folder on the path."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module("broken")


async def mend_the_bill(home: House, folder: Path) -> None:
    """Let bin/demo's agent do its task, in two rollouts of one group."""
    # A whole number: one format needs one of each token.
    await home.control("POST", "/engine/weights", json={"version": "7"})
    for n, (limits, reward) in enumerate([({}, 1.0), ({"max_calls": 3}, 0.0)]):
        rollout = await home.rollout(
            id=f"bill-{n}", group="bill", labels={"split": "train", "task": "bill"}, limits=limits,
            task={"text": demo_agent.TASK}, sampling={"temperature": 1.0},
        )  # fmt: skip
        work = folder / rollout["id"]
        work.mkdir()
        for name, text in demo_agent.FILES.items():
            (work / name).write_text(text)
        await asyncio.to_thread(_agent, rollout, work)
        await home.control("POST", f"/rollouts/{rollout['id']}/close", json={"reward": reward})


def _agent(rollout: dict[str, Any], work: Path) -> None:
    client = openai.OpenAI(
        base_url=rollout["base_url"], api_key=rollout["secret"], timeout=30, max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )  # fmt: skip
    # The one with a limit is told to stop where the story goes on.
    with client, contextlib.suppress(demo_agent.AgentError):
        demo_agent.Agent(client=client, model=rollout["model"], folder=work).run()


async def break_six(home: House) -> None:
    """Make the six broken rollouts, and their healthy twins."""
    examples = broken()
    appliance = importlib.import_module("appliance")
    client = importlib.import_module("treering_client")

    def make() -> None:
        url, key = home.appliance.control_url, home.appliance.admin_key
        with client.Client(url, key) as hand:
            found = appliance.Appliance(url, key, hand)
            for each in examples.SIX:
                each(found)

    await asyncio.to_thread(make)


@contextlib.asynccontextmanager
async def town(folder: Path) -> AsyncIterator[House]:
    """Run an appliance with all of it in its store, for a block."""
    async with house(f"scripted={rules(folder)}", folder) as home:
        async with asyncio.timeout(STORY_LIMIT_S):
            await mend_the_bill(home, folder)
            await break_six(home)
            await home.appliance.store.flush()
        yield home
