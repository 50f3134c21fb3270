"""The same records give the same graph, in whatever order they are handed over."""

import json

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph.formats import native
from graph.graph import read
from graph.records import Notice
from graph.sequences import ROLES, Options, cut
from graph.view import graph_json
from tests.graph.tape import Tape, assistant, user
from tests.graph.told import stories

NOTICES = [
    Notice(code="steering_removed", calls=(1,), data={"fields": ["priority"]}),
    Notice(code="request_refused", calls=(2,), data={"reason": "a media URL", "param": "messages"}),
    Notice(code="steering_removed", calls=(0,), data={"fields": ["priority"]}),
]


def text(graph) -> bytes:
    """Everything that is said of a graph, as bytes."""
    sequences = native.to_json(cut(graph, Options(roles=ROLES)))
    return msgspec.json.encode([graph_json(graph), sequences], enc_hook=lambda array: array.tolist())


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(stories(), st.data())
def test_records_in_any_order_give_equal_bytes(story, data):
    first = text(read(story.rollout, story.calls, NOTICES))
    calls, notices = data.draw(st.permutations(story.calls)), data.draw(st.permutations(NOTICES))
    assert text(read(story.rollout, calls, notices)) == first


def test_a_graph_prints_what_it_found():
    tape = Tape()
    tape.say([user("Hello")], assistant("Hello."), finish_reason="length")
    told = repr(tape.graph())
    assert "0: main, calls 0" in told
    assert "warn truncated_reply: 1 call was cut by length." in told


def test_the_json_is_plain():
    tape = Tape()
    tape.say([user("Hello")], assistant("Hello."))
    assert json.loads(json.dumps(graph_json(tape.graph()))) == graph_json(tape.graph())
