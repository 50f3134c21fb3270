"""A check: a level, and what to do where there is something to."""

import msgspec

from capture.checks import Check, fail, ok, warn


def test_each_level_is_said_its_own_way():
    assert ok("store", "here") == Check(name="store", level="ok", message="here")
    assert warn("space", "little", "make room") == Check(name="space", level="warn", message="little", todo="make room")
    assert fail("engine", "down", "start it").level == "fail"
    told = msgspec.to_builtins(fail("engine", "down", "start it"))
    assert told == {"name": "engine", "level": "fail", "message": "down", "todo": "start it"}
