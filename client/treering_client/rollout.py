"""One rollout, from its registration to its sequences."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote, urlencode

from treering_client.errors import RequestError, TreeringError
from treering_client.transport import Transport

WAIT_S = 30.0
"""How long a close waits for calls that still run, unless said otherwise."""


class Rollout:
    """A rollout of one agent on one task. Made by `Client.rollout`, `rollouts` or `attach`.

    As a context manager it closes at the end of the block, whatever happened in it: after an error at once, without
    waiting for calls that run.
    """

    def __init__(self, transport: Transport, registered: Mapping[str, Any]) -> None:
        self._transport = transport
        self._path = f"/rollouts/{quote(str(registered['id']), safe='')}"
        self.id: str = registered["id"]
        self.tier: str = registered["tier"]
        self.model: str | None = registered["model"]
        # The agent's key and its tool servers'; shown at registration alone, so empty in one that was attached to.
        self.secret: str = registered.get("secret", "")
        self.tools_secret: str = registered.get("tools_secret", "")
        # The data plane: where agents connect (`base_url` ends in /v1), and where tool servers do.
        self.url: str = registered.get("url", "")
        self.base_url: str = registered.get("base_url", "")
        self.tools_url: str = registered.get("tools_url", "")
        # Variables for the agent's environment: address and key, under the names that the common SDKs read.
        self.env: dict[str, str] = dict(registered.get("env", {}))
        self.closed = registered.get("state") == "closed"

    def __repr__(self) -> str:
        return f"<Rollout {self.id} {'closed' if self.closed else 'open'} tier={self.tier}>"

    def __enter__(self) -> Rollout:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The error that ended the block is what its reader must see; the rollout expires by itself.
        with contextlib.suppress(TreeringError):
            self.close(wait_s=0.0)

    def show(self) -> dict[str, Any]:
        """Return its summary: state, counts, limits left (docs/api.md). Raises `RequestError`, `Unreachable`."""
        return self._dict(self._transport.call("GET", self._path))

    def wait(self, until: Literal["closed", "idle"] = "idle", *, idle_s: float = 5.0, timeout_s: float = 60.0) -> bool:
        """Wait until it is closed, or no call has run for `idle_s`; False when `timeout_s` is over first."""
        asked = urlencode({"wait": until, "idle_s": idle_s, "timeout_s": timeout_s})
        return self._transport.call("GET", f"{self._path}?{asked}", wait_s=timeout_s) is not None

    def graph(self) -> dict[str, Any]:
        """Return the forest: calls, conversations, forks, findings."""
        return self._dict(self._transport.call("GET", f"{self._path}/graph"))

    def findings(self) -> list[dict[str, Any]]:
        """Return its findings; each has `code`, `level`, `calls`, `message`, `data`, `means`, `hint`."""
        found: list[dict[str, Any]] = self._dict(self._transport.call("GET", f"{self._path}/findings"))["findings"]
        return found

    def calls(self, *, ids: bool = False) -> list[dict[str, Any]]:
        """Return its calls in order of arrival, with `ids` their token ids and logprobs."""
        calls: list[dict[str, Any]] = []
        after: str | None = "-1"
        while after is not None:
            asked = urlencode({"after": after, "ids": int(ids)})
            page = self._dict(self._transport.call("GET", f"{self._path}/calls?{asked}"))
            calls += page["calls"]
            after = page["next"]
        return calls

    def reward(
        self,
        reward: float | None,
        *,
        per_call: Mapping[str, float] | None = None,
        details: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> None:
        """Attach a reward; None is "ungraded", which is not 0.0. May be given anew, of closed rollouts too.

        Raises `RequestError` 409 `no_calls` for a number on a rollout whose agent never called, unless `force`.
        """
        body: dict[str, Any] = {"reward": reward}
        if per_call is not None:
            body["per_call"] = dict(per_call)
        if details is not None:
            body["details"] = dict(details)
        if force:
            body["force"] = True
        self._transport.call("PUT", f"{self._path}/reward", body)

    def role(self, conversation: int, role: str) -> None:
        """Overrule what a conversation was for (`main`, `subagent`, `auxiliary`, or a kind of it)."""
        self._transport.call("PUT", f"{self._path}/roles", {"conversation": conversation, "role": role})

    def sequences(self, format: str = "native", *, wait_s: float = WAIT_S, **options: Any) -> Any:  # noqa: A002 - the HTTP interface's own name for it
        """Close the rollout, if it is open, and return its training sequences in a format.

        `options`: `roles` (text, or several), `drift`, `threshold`, `constrained="train"`, `aborted="train"`; with
        `open=True` it is left open, and what comes back is not final. Raises `RequestError`, whose hint says what to
        do, for a rollout from which nothing can be trained.
        """
        opened = bool(options.pop("open", False))
        roles = options.get("roles")
        if roles is not None and not isinstance(roles, str):
            options["roles"] = ",".join(roles)
        if not opened and not self.closed:
            self.close(wait_s=wait_s)
        asked = urlencode({"format": format, **options, **({"open": 1} if opened else {})})
        return self._transport.call("GET", f"{self._path}/sequences?{asked}")

    def close(self, *, wait_s: float = WAIT_S) -> None:
        """Take no more calls, wait for those that run, and cut the rest. A second time does nothing."""
        if self.closed:
            return
        self._transport.call("POST", f"{self._path}/close", {"wait_s": wait_s}, wait_s=wait_s)
        self.closed = True

    def delete(self) -> None:
        """Remove it, and what only it used, from the store; nothing happens if it is gone already."""
        try:
            self._transport.call("DELETE", self._path)
        except RequestError as error:
            if error.status != 404:
                raise
        self.closed = True

    def _dict(self, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise TreeringError(f"{self._transport.where} answered with {type(answer).__name__}, not an object")
        return answer
