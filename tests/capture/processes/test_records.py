"""What passes between processes comes back as it was, with no content twice and identities kept."""

from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.digests import Digests, digest
from capture.processes import records
from capture.processes.exchanges import PackedExchange
from capture.store.base import Exchange, Parts, Record
from capture.store.canonical import Canonical
from tests.capture.store.samples import call, ended, entry, ids, plain, request


def parts(body: bytes, messages) -> Parts:
    fields = {name: bytes(raw) for name, raw in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}
    taken = [bytes(raw) for raw in msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])]
    return Parts(fields=fields, elements=taken, names=Digests.of(map(digest, taken)), messages=messages)


def across(given: list[Record]) -> tuple[Record, ...]:
    exchanges, packed = records.pack_records(given)
    sent = msgspec.msgpack.encode((exchanges, packed))
    read = msgspec.msgpack.decode(sent, type=tuple[list[PackedExchange], list[records.PackedRecord]])
    return records.records(*read, Canonical())


def test_a_request_taken_apart_arrives_taken_apart_and_its_messages_are_the_calls_own():
    body = request("hi", "yes", "go on")
    one = call(0, body)
    (found,) = across([ended(one, body, parts=parts(body, one.messages), prompt_ids=ids(1))])
    assert found.exchange.parts.messages is found.call.messages
    assert found.call.messages == one.messages
    assert found.exchange.parts.elements == parts(body, one.messages).elements


def test_so_it_is_where_the_engine_got_it_translated():
    body = request("hi", "yes")
    one = call(0, b'{"input": "hi"}', messages=call(0, body).messages)
    (found,) = across([ended(one, b"{}", sent=body, sent_parts=parts(body, one.messages))])
    assert found.exchange.sent_parts.messages is found.call.messages
    assert found.call.messages == one.messages


def test_messages_of_their_own_pass_whole():
    body = request("hi", "yes")
    one = call(0, body)
    (found,) = across([ended(one, b"not json")])
    assert plain(found.call) == plain(ended(one, b"not json").call)


IDS = st.lists(st.integers(0, 3), max_size=8)


@given(st.lists(st.tuples(st.none() | IDS, st.none() | IDS, st.lists(st.sampled_from("abc"), max_size=3)), max_size=8))
def test_calls_of_a_rollout_pass_together_with_what_they_share(drawn):
    said = {text: call(0, request(text)).messages[0] for text in "abc"}
    calls = [
        call(
            n,
            b"{}",
            messages=tuple(said[text] for text in texts),
            prompt_ids=None if prompt is None else ids(*prompt),
            sampled_ids=None if sampled is None else ids(*sampled),
        )
        for n, (prompt, sampled, texts) in enumerate(drawn)
    ]
    with mock.patch.object(records, "LEAST_SHARED", 1):
        sent = msgspec.msgpack.encode(records.pack_calls(calls))
    read = msgspec.msgpack.decode(sent, type=tuple[bytes, list[records.PackedCall]])
    assert [plain(found) for found in records.calls(*read)] == [plain(one) for one in calls]


def test_a_long_rollout_passes_as_what_its_calls_add():
    said = [call(0, request(f"{n} " + "long " * 100)).messages[0] for n in range(60)]
    grown = [
        call(n, b"{}", messages=tuple(said[:n]), prompt_ids=ids(*range(1_000 * n)), sampled_ids=ids(9))
        for n in range(60)
    ]
    sent = msgspec.msgpack.encode(records.pack_calls(grown))
    assert len(sent) < 400_000, "whole, they are 7 MB of ids and 1 MB of text"
    read = msgspec.msgpack.decode(sent, type=tuple[bytes, list[records.PackedCall]])
    assert [plain(found) for found in records.calls(*read)] == [plain(one) for one in grown]


def test_choices_share_one_exchange():
    body = request("hi")
    passed = Exchange(request=body)
    both = [Record(call=ended(call(n, body, choice=n), body).call, exchange=passed) for n in (0, 1)]
    exchanges, packed = records.pack_records(both)
    assert (len(exchanges), [record.exchange for record in packed]) == (1, [0, 0])
    one, two = across(both)
    assert one.exchange is two.exchange


def test_a_rollout_passes_with_all_that_was_registered():
    full = entry("r", pins={"seed": 10**30}, labels={"a": "\ud800"}, roles={3: "main"}, first_call_at="x")
    assert records.entry(records.pack_entry(full)) == full


def test_changes_are_read_back_as_what_the_field_holds():
    given = {"roles": {4: "main"}, "reward": None, "closed_at": "now", "labels": {"a": "b"}}
    assert records.changes(records.pack_changes(given)) == given
    with pytest.raises(KeyError):
        records.changes('{"nothing": 1}')


def test_a_call_that_belongs_to_others_is_not_read_alone():
    packed = records.pack_call(call(0, request("hi")))
    with pytest.raises(ValueError, match="messages that did not come"):
        records.call(msgspec.structs.replace(packed, messages=1))
    with pytest.raises(ValueError, match="one of a list"):
        records.call(msgspec.structs.replace(packed, messages=[0]))
    with pytest.raises(ValueError, match="none of a list"):
        records.calls(b"[]", [packed])
