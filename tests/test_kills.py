"""Killed at any instant, nothing is lost that an agent saw end; see `tests.kills`."""

import pytest

from tests import kills

SQLITE = 24


@pytest.mark.timeout(240)
async def test_what_agents_saw_end_survives_the_appliance_being_killed(tmp_path):
    engine = kills.engine()
    site = kills.Appliance(tmp_path, await engine.start())
    try:
        outcome = await kills.run(site, kills=SQLITE, seed=1)
    finally:
        await site.close()
        await engine.close()
    assert outcome.lost == [], str(outcome)
    assert outcome.kills == SQLITE
    # The run must have had something to lose.
    assert outcome.calls_seen_ended > 10 * SQLITE, str(outcome)
    assert outcome.changes_seen > 4 * SQLITE, str(outcome)
