"""Killed at any instant, nothing is lost that an agent saw end; see `tests.kills`."""

import pytest

from tests import kills, postgres
from tests.kills_shared import Database, Replicas

SQLITE, POSTGRES, REPLICA = 24, 8, 8
NAMED = 3


def judged(outcome: kills.Outcome, wanted: int) -> None:
    assert outcome.lost == [], str(outcome)
    assert outcome.kills == wanted
    # The run must have had something to lose; how much, hangs on the machine's load.
    assert outcome.calls_seen_ended > 4 * wanted, str(outcome)
    assert outcome.changes_seen > 4 * wanted, str(outcome)


@pytest.mark.timeout(240)
async def test_what_agents_saw_end_survives_the_appliance_being_killed(tmp_path):
    engine = kills.engine()
    site = kills.Appliance(tmp_path, await engine.start())
    try:
        outcome = await kills.run(site, kills=SQLITE, seed=1)
    finally:
        await site.close()
        await engine.close()
    judged(outcome, SQLITE)


# Minutes of killing are no part of a quick run, and PostgreSQL's absence is to be said aloud.
pytestmark = pytest.mark.real


@pytest.fixture
def server():
    # Of its own, since it is killed.
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.Server.running() as server:
        yield server


@pytest.mark.timeout(240)
async def test_what_agents_saw_end_survives_the_database_being_killed(server, tmp_path):
    engine = kills.engine()
    site = Database(server, tmp_path, await engine.start(), await server.database())
    try:
        outcome = await kills.run(site, kills=POSTGRES, seed=2)
    finally:
        await site.close()
        await engine.close()
    judged(outcome, POSTGRES)


@pytest.mark.timeout(240)
async def test_what_is_lost_with_the_database_is_named_where_agents_are_given_their_replies(server, tmp_path):
    engine = kills.engine()
    site = Database(server, tmp_path, await engine.start(), await server.database(), refuse=False)
    try:
        outcome = await kills.run(site, kills=NAMED, seed=3)
    finally:
        await site.close()
        await engine.close()
    judged(outcome, NAMED)


@pytest.mark.timeout(240)
async def test_what_agents_saw_end_survives_a_replica_being_killed(server, tmp_path):
    engine = kills.engine()
    site = Replicas(tmp_path, await engine.start(), await server.database())
    try:
        outcome = await kills.run(site, kills=REPLICA, seed=4)
    finally:
        await site.close()
        await engine.close()
    judged(outcome, REPLICA)
