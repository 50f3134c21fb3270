"""A Treering, seen from a trainer's process."""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from treering_client.errors import CutShort
from treering_client.rollout import Rollout
from treering_client.transport import Transport

URL = "http://127.0.0.1:8401"
"""Where the control plane is, unless said otherwise."""

TIMEOUT_S = 60.0
"""Limit of one request, in seconds; what Treering is asked to wait comes on top."""


class Client:
    """The control plane of one Treering; any number of threads may share it.

    `url` defaults to TREERING_URL, else to this machine's default port; `key`, the admin key, to TREERING_ADMIN_KEY.
    `context` is for a Treering behind TLS with a certificate of one's own. Raises `ValueError` for an address that is
    none; nothing is connected before the first request.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._transport = Transport(
            url or os.environ.get("TREERING_URL") or URL,
            key or os.environ.get("TREERING_ADMIN_KEY"),
            timeout_s=timeout_s,
            context=context,
        )

    def __repr__(self) -> str:
        return f"<Client {self._transport.where}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that it keeps."""
        self._transport.close()

    def health(self) -> None:
        """Return when a Treering answers. Raises `Unreachable`, or `RequestError` for something else that listens."""
        self._transport.call("GET", "/health")

    def rollout(
        self,
        task: str | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the HTTP interface's own name for it
        group: str | None = None,
        labels: Mapping[str, str] | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, float] | None = None,
        **more: Any,
    ) -> Rollout:
        """Register a rollout, and return it.

        `task`: its text, or `{"text", "data", "private"}`. `sampling` pins what the engine samples with: name here what
        the trainer divides by. `limits`: `max_calls`, `max_output_tokens`, `max_total_tokens`, `max_prompt_tokens`,
        `deadline_s`. `more`: any other field of a registration (docs/api.md). Raises `RequestError`, `Unreachable`.
        """
        return Rollout(self._transport, self._register(_registration(task, id, group, labels, sampling, limits, more)))

    def rollouts(
        self,
        n: int,
        task: str | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as above
        group: str | None = None,
        labels: Mapping[str, str] | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, float] | None = None,
        **more: Any,
    ) -> list[Rollout]:
        """Register `n` rollouts of one task as one group, all or none; else as `rollout`."""
        body = {**_registration(task, id, group, labels, sampling, limits, more), "n": n}
        return [Rollout(self._transport, one) for one in self._register(body)["rollouts"]]

    def attach(self, id: str) -> Rollout:  # noqa: A002 - as above
        """Return a rollout that is registered already, without its secrets. Raises `RequestError` 404."""
        return Rollout(self._transport, self._transport.call("GET", f"/rollouts/{quote(id, safe='')}"))

    def sequences(
        self,
        format: str = "native",  # noqa: A002 - as above
        *,
        group: str | None = None,
        label: str | None = None,
        **options: Any,
    ) -> Iterator[dict[str, Any]]:
        """Yield the sequences of many closed rollouts, one object a rollout, in constant memory.

        `label` is `key:value`; `options` as of `Rollout.sequences`. One that can't be exported comes as
        `{"rollout", "refused": {"code", "message", "hint"}}`: look for it, since a batch without it is a smaller
        batch. Raises `CutShort` when the answer ended before its end was said.
        """
        asked = {"format": format, "group": group, "label": label, **options}
        after: str | None = None
        while True:
            query = urlencode({name: value for name, value in {**asked, "after": after}.items() if value is not None})
            end: dict[str, Any] | None = None
            for line in self._transport.lines(f"/sequences?{query}"):
                if isinstance(line, dict) and line.get("end") is True:
                    end = line
                else:
                    yield line
            if end is None:
                raise CutShort("the answer ended before its last line", hint="ask again; what came so far is whole")
            after = end.get("next")
            if after is None:
                return

    def _register(self, body: dict[str, Any]) -> dict[str, Any]:
        # With a key the request may be sent again after a broken connection, and yet registers once.
        answer = self._transport.call("POST", "/rollouts", body, headers={"Idempotency-Key": secrets.token_hex(16)})
        assert isinstance(answer, dict)
        return answer


def _registration(
    task: str | Mapping[str, Any] | None,
    id_: str | None,
    group: str | None,
    labels: Mapping[str, str] | None,
    sampling: Mapping[str, Any] | None,
    limits: Mapping[str, float] | None,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    given = {
        "task": {"text": task} if isinstance(task, str) else task,
        "id": id_,
        "group": group,
        "labels": labels,
        "sampling": sampling,
        "limits": limits,
        **more,
    }
    return {name: value for name, value in given.items() if value is not None}
