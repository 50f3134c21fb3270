"""Records to columns and back, whatever an agent chose to send."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.store import rows
from capture.store.base import Registration
from graph.messages import from_chat
from graph.records import Call, Notice, Rollout, Weights
from tests.capture.store.samples import ids, listed, logprobs

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters()), ANY_JSON, max_size=3))
def test_any_json_in_a_record_comes_back(value):
    notice = Notice(code="x", data=value)
    assert rows.load(rows.dump(notice), Notice) == notice


def test_numbers_that_json_lacks_come_back_too():
    call = Call(n=0, status="running", arrived=0, sampling_asked={"temperature": float("inf"), "seed": 10**40})
    found = rows.load(rows.dump_call(call), Call, n=0, status="running", arrived=0)
    assert found.sampling_asked == call.sampling_asked


def test_keys_that_are_numbers_come_back_as_numbers():
    rollout = Rollout(id="r", roles={3: "main", 11: "auxiliary"})
    assert rows.load(rows.dump_rollout(rollout), Rollout) == rollout


def test_fields_at_their_default_take_no_space():
    assert rows.dump(Registration()) == "{}"
    assert rows.dump_rollout(Rollout(id="r")) == '{"id":"r"}'
    assert rows.dump_call(Call(n=0, status="running", arrived=0)) == "{}"


def test_a_field_that_is_set_to_nothing_is_not_one_at_its_default():
    # None is "never a limit" for some fields and the default is another.
    registration = Registration(ttl_s=0.0, require_tier="eval", task_data=False)
    assert rows.load(rows.dump(registration), Registration) == registration


def test_messages_in_canonical_form_come_back():
    messages = (
        from_chat({"role": "user", "content": [{"type": "text", "text": "é\ud800"}]}),
        from_chat({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}),
    )
    assert rows.load_messages(rows.dump_messages(messages)) == messages
    assert json.loads(rows.dump_messages(messages))[0]["role"] == "user"


@pytest.mark.parametrize("text", ["", "Once", 'é\n"', "\U0001f600", "\ud800"])
def test_one_text_of_a_users_is_that_text(text):
    said = (from_chat({"role": "user", "content": text}),)
    assert json.loads(rows.dump_messages(said)) == said[0].text
    assert rows.load_messages(rows.dump_messages(said)) == said


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "data:x"}]},
        {"role": "user", "content": "a", "reasoning": "b"},
        {"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "user", "content": "a", "tool_call_id": ""},
    ],
)
def test_a_message_of_more_than_a_text_is_told_in_full(message):
    said = (from_chat(message),)
    assert rows.dump_messages(said).startswith(b"[")
    assert rows.load_messages(rows.dump_messages(said)) == said


def test_arrays_are_little_endian_and_none_is_not_empty():
    assert rows.ints(ids(1, -2)) == b"\x01\0\0\0\xfe\xff\xff\xff"
    assert rows.floats(logprobs(-0.5)) == b"\0\0\0\xbf"
    assert (rows.ints(None), rows.ints(ids()), rows.floats(None), rows.floats(logprobs())) == (None, b"", None, b"")
    assert (rows.read_ints(None), rows.read_floats(None)) == (None, None)
    assert listed(rows.read_ints(b"")) == []
    # A slice with a step isn't contiguous in memory.
    assert listed(rows.read_ints(rows.ints(np.arange(6, dtype=np.int32)[::2]))) == [0, 2, 4]
    assert np.isnan(listed(rows.read_floats(rows.floats(logprobs(float("nan"), -1.0))))).tolist() == [True, False]


def test_every_field_of_a_call_is_in_its_record_or_in_a_column():
    full = msgspec.structs.fields(Call)
    assert {field.name for field in full} >= rows._CALL_COLUMNS


NUMBERS = st.integers() | st.floats() | st.sampled_from([10**40, -(2**63)])
CHOSEN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text() | st.sampled_from(["é", "\ud800", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), CHOSEN, max_size=3), st.text(max_size=9), NUMBERS)
def test_the_quick_way_says_what_the_slow_one_does(asked, text, number):
    reply = from_chat({"role": "assistant", "content": text})
    out = {"sampling_asked": asked, "reply": reply, "weights": Weights(start=text), "tool_names": (text,), "at": number}
    quick, slow = rows.quick(out), rows.slow(out)
    assert quick is None or repr(json.loads(quick)) == repr(json.loads(slow))


def test_the_quick_way_leaves_to_the_slow_one_what_it_would_spell_otherwise():
    assert rows.quick({"a": 1.5, "b": [{"c": None}], "d": 10**40}) == '{"a":1.5,"b":[{"c":null}],"d":1' + "0" * 40 + "}"
    assert [rows.quick({"a": [odd]}) for odd in (float("nan"), float("-inf"), "\ud800", "é", {1, 2})] == [None] * 5


def test_weights_of_which_nothing_is_known_take_no_space():
    assert rows.dump_call(Call(n=0, status="running", arrived=0, weights=Weights())) == "{}"


def test_fields_are_left_out_by_what_they_are_not_by_what_they_equal():
    # 1.0 and True equal 1, and "" is no None: none of them may be taken for a default.
    registration = Registration(ttl_s=86_400.0, require_tier="eval", task_data=0, task_private="")
    found = json.loads(rows.dump(registration))
    assert found["task_data"] == 0
    assert found["task_private"] == ""
    call = Call(n=0, status="running", arrived=0, weights=Weights(), sampling_asked={}, hints={"a": "b"}, choice=1)
    assert rows.dump_call(call) == '{"choice":1,"hints":{"a":"b"}}'
