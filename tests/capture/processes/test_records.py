"""What passes between processes comes back as it was, with no content twice and identities kept."""

import msgspec
import pytest

from capture.processes import records
from capture.store.base import Exchange, Parts, Record
from capture.store.canonical import Canonical
from capture.store.contents import digest
from tests.capture.store.samples import call, ended, entry, ids, plain, request


def parts(body: bytes, messages) -> Parts:
    fields = {name: bytes(raw) for name, raw in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}
    taken = [bytes(raw) for raw in msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])]
    return Parts(fields=fields, elements=taken, names=[digest(one) for one in taken], messages=messages)


def across(given: list[Record]) -> tuple[Record, ...]:
    exchanges, packed = records.pack_records(given)
    sent = msgspec.msgpack.encode((exchanges, packed))
    read = msgspec.msgpack.decode(sent, type=tuple[list[records.PackedExchange], list[records.PackedRecord]])
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


def test_a_long_conversation_passes_once_though_it_is_held_in_pieces_and_was_sent_on():
    said = [f"{n} " + "long " * 200 for n in range(40)]
    body, sent = request(*said), request(*said, return_token_ids=True)
    one = call(0, body)
    taken = parts(body, one.messages)
    given = ended(one, body, sent=sent, parts=msgspec.structs.replace(taken, sent=parts(sent, ()).fields))
    packed = msgspec.msgpack.encode(records.pack_records([given]))
    assert len(packed) < 1.2 * len(body)
    (found,) = across([given])
    assert found.exchange == given.exchange


def test_choices_share_one_exchange():
    body = request("hi")
    passed = Exchange(request=body)
    both = [Record(call=ended(call(n, body, choice=n), body).call, exchange=passed) for n in (0, 1)]
    exchanges, packed = records.pack_records(both)
    assert (len(exchanges), [record.exchange for record in packed]) == (1, [0, 0])
    one, two = across(both)
    assert one.exchange is two.exchange


def test_messages_that_did_not_come_along_are_missed():
    packed = records.pack_call(call(0, request("hi")))
    with pytest.raises(ValueError, match="messages that did not come"):
        records.call(msgspec.structs.replace(packed, messages=1))
    with pytest.raises(ValueError, match="no canonical form"):
        records.parts(records.PackedParts({}, [b"{"], [digest(b"{")], None), Canonical(), b"{}")
    with pytest.raises(ValueError, match="a piece of a body"):
        records.parts(records.PackedParts({"x": (0, 9)}, [], [], None), Canonical(), b"{}")


def test_a_rollout_passes_with_all_that_was_registered():
    full = entry("r", pins={"seed": 10**30}, labels={"a": "\ud800"}, roles={3: "main"}, first_call_at="x")
    assert records.entry(records.pack_entry(full)) == full


def test_changes_are_read_back_as_what_the_field_holds():
    given = {"roles": {4: "main"}, "reward": None, "closed_at": "now", "labels": {"a": "b"}}
    assert records.changes(records.pack_changes(given)) == given
    with pytest.raises(KeyError):
        records.changes('{"nothing": 1}')
