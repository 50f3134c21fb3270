"""What a request goes on from: the exchanges that `previous_response_id` or an item reference names.

An exchange is a request and its reply, both in this dialect and as they passed. Items that came or went there can be
named by their id alone (`item_reference`); some clients name all they got that way and never say
`previous_response_id`. The ids of our own items name their reply, so the store is asked for the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capture import rawjson
from capture.dialects.base import Earlier
from capture.dialects.responses_items import as_items, reply_of
from capture.dialects.responses_refusals import object_at, text_in
from capture.errors import ClientError


def refers_to(body: bytes) -> str | None:
    """Return the id of the reply that a request goes on from; None if it names none, or can't be read.

    That is its `previous_response_id`, else the reply of the last item that it refers to.
    """
    # With its quotes, for a longer word is found faster.
    if b'"previous_response_id"' not in body and b'"item_reference"' not in body:
        return None
    try:
        fields = rawjson.split(body)
        named = rawjson.loads(fields.get("previous_response_id", b"null"))
        items = rawjson.loads(fields.get("input", b"null")) if b"item_reference" in body else None
    except ValueError:
        return None
    if isinstance(named, str) and named:
        return named
    for item in reversed(items) if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("type") == "item_reference":
            reply = reply_of(item.get("id"))
            if reply is not None:
                return reply
    return None


class History:
    """The exchanges before a request, read."""

    def __init__(self, earlier: Sequence[Earlier]) -> None:
        """Read exchanges, the oldest first. Raises `ClientError` 404 for one that isn't of this dialect."""
        # The items of the conversation up to and with the last exchange's reply.
        self.items: list[Any] = []
        self._named: dict[str, Any] = {}
        for exchange in earlier:
            self._take(exchange)

    def __repr__(self) -> str:
        return f"<History {len(self.items)} items>"

    def resolve(self, items: list[Any], where: str) -> list[Any]:
        """Return items with each reference replaced by what it names. Raises `ClientError` 404."""
        return [self._resolved(item, f"{where}[{i}]") for i, item in enumerate(items)]

    def _take(self, exchange: Earlier) -> None:
        try:
            request, reply = rawjson.loads(exchange.request), rawjson.loads(exchange.reply)
        except ValueError:
            request = reply = None
        output = reply.get("output") if isinstance(reply, dict) else None
        if not isinstance(request, dict) or not isinstance(output, list):
            raise ClientError(
                "previous_response_not_found",
                "The earlier response is none of this dialect.",
                hint="Go on from a reply of /v1/responses.",
                status=404,
                param="previous_response_id",
            )
        said = self.resolve(as_items(request.get("input", []), "previous_response_id"), "previous_response_id")
        if not request.get("previous_response_id"):
            self.items = []
        self.items += said
        self.items += output
        for item in (*said, *output):
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                self._named[item["id"]] = item

    def _resolved(self, item: Any, where: str) -> Any:
        if not isinstance(item, Mapping):
            return item
        # OpenAI's own type lets a reference be an id and nothing else.
        if item.get("type") != "item_reference" and set(item) != {"id"}:
            return item
        id_ = text_in(object_at(item, where), "id", where)
        if id_ not in self._named:
            raise ClientError(
                "item_not_found",
                f"No earlier item has the id {id_!r}.",
                hint="It must be of a reply of this rollout that the request goes on from; else send the item itself.",
                status=404,
                param=f"{where}.id",
            )
        return self._named[id_]
