"""A place for a tunnel, and who holds it."""

from tunnel.places import Hold, Place
from tunnel.spec import parse


def test_a_place_says_how_it_stands():
    place = Place(parse("ssh=a@b"))
    assert (place.health.name, place.health.kind, place.health.healthy) == ("ssh=a@b", "ssh", False)
    place.url, place.reason = "http://b:1", ""
    place.rollouts = {"a": "http://b:1", "z": "http://b:0"}
    assert place.health.healthy
    assert (place.health.rollouts, place.health.stranded, place.load) == (1, 1, 1)


def test_a_hold_is_kept_or_dropped_once():
    told = []
    place = Place(parse("direct"))
    hold = Hold(place, 2, lambda rollouts, loss: told.append((sorted(rollouts), dict(loss))))
    hold.proved("http://h:1")
    assert (place.load, place.needed) == (2, True)
    hold.keep(["a", "b"])
    hold.drop()
    hold.keep(["c"])
    assert (place.held, place.rollouts, told) == (0, {"a": "http://h:1", "b": "http://h:1"}, [])
    other = Hold(place, 1, lambda rollouts, loss: told.append((sorted(rollouts), dict(loss))))
    other.drop()
    assert place.held == 0


def test_what_was_lost_meanwhile_is_told_when_it_is_kept():
    told = []
    place = Place(parse("direct"))
    hold = Hold(place, 1, lambda rollouts, loss: told.append((sorted(rollouts), dict(loss))))
    hold.proved("http://h:1")
    place.lost, place.loss = 1, {"reason": "gone"}
    hold.keep(["a"])
    assert told == [(["a"], {"reason": "gone"})]
