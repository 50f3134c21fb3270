"""What a request adds to the one before it."""

import msgspec

from graph.formats.turns import added
from tests.graph.formats.captures import FIRST, TOLD, parted, turns
from tests.graph.tape import Tape, assistant, user


def texts(tape: Tape, n: int) -> list[str]:
    return [message.text for message in added(tape.graph().forest, n)]


def test_a_root_adds_all_its_messages():
    assert texts(turns(), 0) == ["Go"]


def test_a_continuation_adds_what_stands_behind_the_reply_that_it_echoes():
    assert texts(turns(), 1) == ["On"]
    assert texts(parted(), 1) == ["On"]


def test_the_reply_is_found_where_an_agent_dropped_messages_before_it():
    tape = Tape()
    told = [user("Old"), assistant("Hello."), user("Go")]
    tape.say(told, FIRST)
    tape.say([*told[2:], FIRST, user("On")], assistant("Two."))
    assert tape.graph().forest.links[1].kind == "drift"
    assert texts(tape, 1) == ["On"]


def test_without_messages_nothing_is_added():
    tape = turns()
    tape.calls = [msgspec.structs.replace(call, messages=(), reply=None) for call in tape.calls]
    assert tape.graph().forest.links[1].kind == "exact"
    assert texts(tape, 1) == []


def test_where_the_echo_is_another_it_is_what_the_requests_do_not_share():
    tape = turns()
    tape.calls[1] = msgspec.structs.replace(
        tape.calls[1], messages=(*tape.calls[1].messages[:1], *said("Other words.", "On"))
    )
    assert tape.graph().forest.links[1].kind == "exact"
    assert texts(tape, 1) == ["Other words.", "On"]
    assert [user("Go")] == TOLD


def said(echo: str, text: str):
    tape = Tape()
    tape.say([assistant(echo), user(text)], assistant("Two."))
    return tape.calls[0].messages
