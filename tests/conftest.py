"""What all tests share: the real programs, and that their absence is never quiet.

A test that needs a real program carries the marker `real`; it gets it by using one of the fixtures `vllm` and
`opencode` (tests/real/conftest.py) and `postgres` (here). Where the program cannot be had the test skips, and the run's
summary says which program, why, and what would help. With TREERING_REQUIRE_REAL=1 such a skip is a failure, whatever
called it.
"""

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.postgres import Server

# Two noisy cores: how long an example takes says nothing, and a failure must come back on the next run.
settings.register_profile("treering", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
# By hand, for a longer look: HYPOTHESIS_PROFILE=long.
settings.register_profile("long", settings.get_profile("treering"), derandomize=False, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "treering"))

# Fixtures that hand out a real program.
REAL_FIXTURES = frozenset({"vllm", "opencode", "postgres", "schemathesis", "browser"})

# Reason → the tests that were skipped for it.
SKIPPED = pytest.StashKey[dict[str, list[str]]]()


def is_real_required() -> bool:
    """Tell whether a test of a real program must run."""
    return os.environ.get("TREERING_REQUIRE_REAL", "") not in ("", "0")


@pytest.fixture(scope="session")
def postgres() -> Iterator["Server"]:
    """A PostgreSQL server for the whole run; a test takes a database of its own (`await postgres.database()`)."""
    pytest.importorskip("asyncpg", reason="asyncpg is not installed; pip install 'treering[postgres]'")
    from tests.postgres import Server, missing

    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Server.running() as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a real program, so that none can forget to; first, before `-m` chooses."""
    for item in items:
        if REAL_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.real)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note each skip of a real test, and make it a failure where real programs are required."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("real"):
        reason = str(call.excinfo.value) if call.excinfo else "skipped by its mark"
        item.config.stash.setdefault(SKIPPED, {}).setdefault(reason, []).append(item.nodeid)
        if is_real_required():
            report.outcome = "failed"
            report.longrepr = f"TREERING_REQUIRE_REAL is set, and this test was skipped: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which real programs were missing, and why."""
    for reason, tests in config.stash.get(SKIPPED, {}).items():
        terminalreporter.section("A REAL PROGRAM IS MISSING", sep="!", red=True)
        verb = "FAILED" if is_real_required() else "did not run"
        terminalreporter.line(f"{len(tests)} tests {verb}. {reason}")
