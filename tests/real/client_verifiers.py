"""Let verifiers hold our interception: `python tests/real/client_verifiers.py CASE REPORT`, in .real/verifiers.

CASE has `client` (a folder), `url` and `key`. The session is verifiers' own `RolloutSession`, handed to `acquire` as
its `Rollout.open` does; the agent then speaks to the slot.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

case = json.loads(Path(sys.argv[1]).read_text())
sys.path[:0] = [case["client"], str(Path(__file__).parent)]

import client_agent  # noqa: E402 - found by the line above
from verifiers.v1.clients import ModelContext  # noqa: E402 - as above
from verifiers.v1.interception import Interception  # noqa: E402 - as above
from verifiers.v1.session import RolloutLimits, RolloutSession  # noqa: E402 - as above
from verifiers.v1.trace import WireTrace  # noqa: E402 - as above
from verifiers.v1.types import Sampling  # noqa: E402 - as above

from treering_client.adapters.verifiers import TreeringInterception  # noqa: E402 - as above


def session(name: str, **limits: Any) -> Any:
    """A session of verifiers' own, with as much around it as `acquire` may look at."""
    trace = WireTrace.model_validate(
        {"id": name, "task": {"type": "T", "data": {"idx": 0, "prompt": "Say something."}}, "agent": {"config": {}}}
    )
    context = ModelContext(model="m", client=None, sampling=Sampling(temperature=1.0))
    return RolloutSession(ctx=context, trace=trace, limits=RolloutLimits(**limits))


async def main() -> dict[str, Any]:
    """Run a session that goes well, one that meets its limit, and one whose agent fails."""
    report: dict[str, Any] = {}
    async with TreeringInterception(case["url"], case["key"]) as interception:
        report["is_interception"] = isinstance(interception, Interception)
        good = session("good")
        async with interception.acquire(good) as (url, secret, state_secret):
            report["secrets"] = [bool(secret), bool(state_secret), secret != state_secret]
            await asyncio.to_thread(client_agent.converse, f"{url}/v1", secret, 3)
        report["good"] = {
            "branches": [
                {"ids": branch.token_ids, "mask": branch.sampled_mask, "logprobs": branch.logprobs}
                for branch in good.trace.branches
            ],
            "calls": len(good.trace.calls),
            "info": good.trace.info,
        }
        few = session("few", max_turns=2)
        async with interception.acquire(few) as (url, secret, _):
            await asyncio.to_thread(client_agent.converse, f"{url}/v1", secret, 3)
        report["few"] = few.trace.stop_condition
        none = session("none")
        try:
            async with interception.acquire(none):
                raise RuntimeError("the agent broke")
        except RuntimeError as error:
            report["broke"] = str(error)
        empty = session("empty")
        async with interception.acquire(empty):
            pass
        report["empty"] = {"nodes": len(empty.trace.nodes), "info": empty.trace.info}
    return report


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(main())))
