"""Registering: all of a request's rollouts or none, and nothing held by one that failed."""

from __future__ import annotations

import json

import pytest

from capture.enrolment import Enrolment
from capture.errors import ClientError
from capture.reach import Way, Ways
from capture.registration import Defaults, Place
from capture.store.base import Page

PLACE = Place(model="m", tier="train", tier_reason="", logprobs_mode="raw")


class Store:
    """Takes entries, or refuses them."""

    def __init__(self, error=None):
        self.error, self.entries = error, []

    async def answered(self, key, body):
        return None

    async def add(self, entries, *, key, answer):
        if self.error is not None:
            raise self.error
        self.entries += entries

    async def page(self, query):
        return Page(entries=tuple(self.entries), next=None)


class Reach:
    """Leads all to one address; it is also the hold on the tunnel there."""

    def __init__(self):
        self.did = []

    async def lead(self, wishes):
        ways = {wish.rollout: Way(agent="http://t", tools="http://t", public="http://t") for wish in wishes}
        return Ways(ways, [(self, list(ways))])

    def keep(self, names):
        self.did.append(("keep", *names))

    def drop(self):
        self.did.append(("drop",))


def enrolment(store, *, reach=None, unpinnable=None):
    async def place(engine):
        return PLACE

    async def why(engine):
        return unpinnable

    return Enrolment(store, place=place, defaults=Defaults(), reach=reach or Reach(), unpinnable=why)


async def test_several_come_in_order_with_their_ways():
    store = Store()
    answer = json.loads(await enrolment(store).register({"n": 3, "id": "g"}, key=None, digest="d"))
    assert [one["id"] for one in answer["rollouts"]] == ["g-0", "g-1", "g-2"]
    assert {one["url"] for one in answer["rollouts"]} == {"http://t"}
    assert [entry.rollout.id for entry in store.entries] == ["g-0", "g-1", "g-2"]


async def test_ways_are_kept_by_what_is_stored_and_dropped_by_what_is_not():
    reach = Reach()
    await enrolment(Store(), reach=reach).register({"id": "a"}, key=None, digest="d")
    assert reach.did[0] == ("keep", "a")
    reach = Reach()
    taken = ClientError("id_taken", "There is one.", status=409)
    with pytest.raises(ClientError, match="There is one"):
        await enrolment(Store(taken), reach=reach).register({"id": "a"}, key=None, digest="d")
    assert reach.did == [("drop",)]


async def test_an_engine_that_can_not_pin_refuses_those_that_want_it():
    store = Store()
    with pytest.raises(ClientError, match="it takes no ids") as refused:
        await enrolment(store, unpinnable="it takes no ids").register({"tokens": "pinned"}, key=None, digest="d")
    assert (refused.value.code, store.entries) == ("pins_unsupported", [])
    assert await enrolment(store, unpinnable="it takes no ids").register({}, key=None, digest="d")
