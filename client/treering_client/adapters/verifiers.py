"""verifiers' interception (verifiers 0.4, `verifiers.v1.interception`), served by a Treering.

    async with TreeringInterception(url, key) as interception:
        agent = make_agent(config, interception=interception)

verifiers asks for a slot (`acquire`) for each rollout and gives it back when the agent has ended; its own server would
tokenise and sample in between. Here the slot is a rollout of a Treering's, and when it comes back, the session's trace
gets the captured message graph: nodes with the engine's ids, masks and logprobs, and what called whom.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from verifiers.v1.interception import Interception, Slot
from verifiers.v1.session import RolloutSession
from verifiers.v1.trace import WireTrace

from treering_client.aio import AsyncClient, AsyncRollout
from treering_client.errors import RequestError

PINNED = ("temperature", "top_p", "top_k", "min_p")
"""Of the session's sampling, what is pinned: the rest is the agent's own to ask for."""


class TreeringInterception(Interception):  # type: ignore[misc]  # verifiers' package is untyped to us
    """Hands each of verifiers' rollouts one of a Treering's."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        reach: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`reach` says where agents and tools run (docs/api.md); `options` are of `Rollout.sequences`."""
        super().__init__()
        self._client = AsyncClient(url, key)
        self._reach = dict(reach) if reach else None
        self._options = dict(options or {})

    async def start(self) -> None:
        """See that the Treering is there. Raises `Unreachable`."""
        self.stack.callback(self._client.close)
        await self._client.health()

    @asynccontextmanager
    async def acquire(self, session: RolloutSession) -> AsyncIterator[Slot]:
        """Register a rollout, yield its address and its two secrets, and fill the session's trace from it."""
        async with self._client.rollout(**self._registration(session)) as rollout:
            yield rollout.url, rollout.secret, rollout.tools_secret
            await rollout.close(wait_s=10.0)
        await self._fill(session, rollout)

    def _registration(self, session: RolloutSession) -> dict[str, Any]:
        trace, limits = session.trace, session.limits
        sampling = getattr(session.ctx, "sampling", None)
        asked = sampling.model_dump(exclude_none=True) if sampling is not None else {}
        fields: dict[str, Any] = {
            "task": _text(trace.task.data),
            "id": trace.id,
            "sampling": {name: asked[name] for name in PINNED if name in asked} or None,
            # `max_input_tokens` and `max_output_tokens` of verifiers are sums, for which Treering has no limit.
            "limits": {
                name: value
                for name, value in (("max_calls", limits.max_turns), ("max_total_tokens", limits.max_total_tokens))
                if value is not None
            }
            or None,
            "reach": self._reach,
        }
        return fields

    async def _fill(self, session: RolloutSession, rollout: AsyncRollout) -> None:
        trace = session.trace
        shown = await rollout.show()
        if shown["stopped"] is not None:
            trace.stop(shown["stopped"]["limit"])
        try:
            form = await rollout.sequences("verifiers", **self._options)
        except RequestError as error:
            # verifiers scores a trace without nodes as it is; why there are none stands beside it.
            trace.info["treering"] = {"rollout": rollout.id, "refused": error.code, "message": error.message}
            return
        captured = WireTrace.model_validate(form)
        trace.nodes[:] = captured.nodes
        trace.calls[:] = captured.calls
        trace.tools[:] = captured.tools
        trace.info["treering"] = {"rollout": rollout.id, **captured.info.get("treering", {})}
        trace.notify()


def _text(data: Any) -> str | None:
    prompt = getattr(data, "prompt", None)
    if isinstance(prompt, list):
        texts = [getattr(each, "content", None) for each in prompt if getattr(each, "role", None) == "user"]
        return "\n\n".join(text for text in texts if isinstance(text, str)) or None
    return prompt if isinstance(prompt, str) else None
