"""The messages of a row."""

import msgspec

from graph.formats.chat import parted, replied, tools
from graph.formats.projection import rows
from graph.sequences import cut
from tests.graph.formats.captures import branched, turns
from tests.graph.tape import assistant, user


def of(tape, place: int = -1):
    graph = tape.graph()
    return parted(graph, rows(graph, cut(graph)).rows[place])


def test_a_row_s_messages_part_where_its_first_reply_began():
    said = {"role": "assistant", "content": "One."}
    assert of(turns()) == ([user("Go")], [said, user("On"), {"role": "assistant", "content": "Two."}])


def test_a_branch_begins_with_what_its_conversation_began_with():
    assert of(branched()) == ([user("Go")], [assistant("One."), user("Right"), assistant("Two.")])


def test_a_history_that_was_rewritten_parts_where_it_differs():
    tape = turns()
    second = tape.calls[1]
    tape.calls[1] = msgspec.structs.replace(second, messages=second.messages[1:])
    prompt, completion = of(tape)
    assert prompt == []
    assert completion == [assistant("One."), user("On"), assistant("Two.")]


def test_a_call_without_a_reply_has_none():
    call = turns().calls[0]
    assert replied(call) == [assistant("One.")]
    assert replied(msgspec.structs.replace(call, reply=None)) == []


def test_tools_are_known_by_name():
    call = turns().calls[0]
    assert tools(call) is None
    called = msgspec.structs.replace(call, tool_names=("bash", "edit"))
    assert tools(called) == [
        {"type": "function", "function": {"name": "bash"}},
        {"type": "function", "function": {"name": "edit"}},
    ]
