"""The real programs as fixtures: `vllm`, one engine for the session, and `opencode`, started as often as asked.

`captured` is a group of rollouts that an agent had with it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from benchmarks import browser as browsers
from tests.house import House
from tests.real import agent_opencode, engine_vllm, handmade
from tests.real import captured as capturing
from tests.real import town as towns

# A test that is the first to ask for the engine waits for its start; pytest-timeout counts fixtures too.
VLLM_TEST_LIMIT_S = engine_vllm.START_LIMIT_S + 180
OPENCODE_TEST_LIMIT_S = 300

ROOT = Path(__file__).parents[2]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real programs the time that those take to start, unless they say their own.

    Tests of another engine than the usual one go to the end: the engine is started anew for them, once.
    """
    items.sort(key=lambda item: engine_of(item) != "tiny")
    for item in items:
        names = getattr(item, "fixturenames", ())
        limit = (VLLM_TEST_LIMIT_S if "vllm" in names else 0) + (OPENCODE_TEST_LIMIT_S if "opencode" in names else 0)
        if limit and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limit))


def engine_of(item: pytest.Item) -> str:
    """Return the name of the engine that a test wants (`engine_vllm.ENGINES`); one that wants none can have any."""
    given = getattr(item, "callspec", None)
    return str(given.params.get("vllm", "tiny")) if given is not None else "tiny"


@pytest.fixture(scope="session")
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine_vllm.Vllm]:
    """Yield the session's real vLLM: `base_url` (no path), `model`, `log`.

    A test that is parametrised with another name of `engine_vllm.ENGINES` gets that engine, and pytest ends this one.
    """
    model, flags = engine_vllm.ENGINES[getattr(request, "param", "tiny")]
    reason = engine_vllm.missing(model)
    if reason:
        pytest.skip(reason)
    with engine_vllm.running(tmp_path_factory.mktemp("vllm"), model=model, flags=flags) as engine:
        yield engine


@pytest.fixture(scope="session")
def captured(vllm: engine_vllm.Vllm, tmp_path_factory: pytest.TempPathFactory) -> list[capturing.Captured]:
    """Return a group of captured rollouts in every format; for tests with the engine `sharp`."""
    return asyncio.run(capturing.play(vllm, tmp_path_factory.mktemp("captured")))


@pytest.fixture(scope="session")
def made() -> list[handmade.Made]:
    """Return rollouts made by hand and drawn, for trainers' libraries to read."""
    return handmade.rollouts()


@pytest.fixture(scope="session")
def schemathesis() -> str:
    """Return the program that asks an interface by its OpenAPI document."""
    program = ROOT / ".real" / "schemathesis" / "bin" / "schemathesis"
    if not program.exists():
        why = ROOT / ".real" / "schemathesis.why"
        reason = why.read_text().strip() if why.exists() else "it is not installed: run bin/setup.py real-schemathesis"
        pytest.skip(f"schemathesis: {reason}")
    return str(program)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    """Yield the session's real browser, playwright's `Browser`; a test opens contexts of its own in it.

    It lives on the session's loop, and so do the tests that use it: `pytest.mark.asyncio(loop_scope="session")`.
    """
    reason = browsers.missing()
    if reason:
        pytest.skip(reason)
    async with browsers.browsing() as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def town(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """Yield the session's appliance with stories in its store (tests/real/town.py), to be looked at and not changed."""
    async with towns.town(tmp_path_factory.mktemp("town")) as home:
        yield home


@pytest.fixture
async def opencode(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[agent_opencode.OpenCode]]]:
    """Yield a function that starts opencode against a base URL; all that it started is stopped after the test.

    Its arguments are those of `agent_opencode.running` without the folder:
    `agent = await opencode(base_url=..., api_key=...)`.
    """
    reason = agent_opencode.missing()
    if reason:
        pytest.skip(reason)
    async with contextlib.AsyncExitStack() as stack:
        count = 0

        async def start(**arguments: Any) -> agent_opencode.OpenCode:
            nonlocal count
            count += 1
            return await stack.enter_async_context(agent_opencode.running(tmp_path / f"opencode-{count}", **arguments))

        yield start
