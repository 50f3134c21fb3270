"""With `--workers`, nothing is lost that an agent saw end, whether a worker is killed or the supervisor with all."""

import os
import random
import signal

import pytest

from tests import kills
from tests.processes import descendants, until

KILLS = 3


class Workers(kills.Appliance):
    """An appliance of two workers over SQLite; one of them is the victim, drawn anew each time."""

    def __init__(self, *given: str) -> None:
        super().__init__(*given)
        self._rng = random.Random(0)

    def workers(self) -> list[int]:
        return sorted(descendants(self._served.pid, "capture.processes.worker"))

    async def strike(self) -> None:
        os.kill(self._rng.choice(self.workers()), signal.SIGKILL)

    async def revive(self) -> None:
        if self._served.pid is None:
            await self._served.start()
        await until(lambda: len(self.workers()) == 2)

    async def strike_while_starting(self, after_s: float) -> None:
        await self._served.kill()
        await super().strike_while_starting(after_s)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", [Workers, kills.Appliance], ids=["a worker", "the supervisor"])
async def test_what_agents_saw_end_survives(victim, tmp_path):
    engine = kills.engine()
    site = victim(tmp_path, await engine.start(), "--workers", "2")
    try:
        outcome = await kills.run(site, kills=KILLS, seed=4)
    finally:
        await site.close()
        await engine.close()
    assert outcome.lost == [], str(outcome)
    assert outcome.kills == KILLS
    assert outcome.calls_seen_ended > 0, str(outcome)
    assert outcome.changes_seen > 0, str(outcome)
