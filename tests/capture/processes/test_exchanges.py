"""Bodies pass once, however often they are held; what was taken apart arrives as it was."""

import msgspec
import pytest

from capture.digests import Digests, digest
from capture.processes import exchanges
from capture.store.base import Exchange, Parts
from capture.store.canonical import Canonical
from tests.capture.processes.test_records import parts
from tests.capture.store.samples import call, request


def across(given: Exchange) -> tuple[Exchange, int]:
    """An exchange as it arrives, and the bytes that it took."""
    sent = msgspec.msgpack.encode(exchanges.pack_exchange(given))
    return exchanges.exchange(msgspec.msgpack.decode(sent, type=exchanges.PackedExchange), Canonical()), len(sent)


def test_a_long_conversation_passes_once_though_it_is_held_in_pieces_and_was_sent_on():
    said = [f"{n} " + "long " * 200 for n in range(40)]
    body, sent = request(*said), request(*said, return_token_ids=True)
    taken = parts(body, call(0, body).messages)
    given = Exchange(request=body, sent=sent, parts=msgspec.structs.replace(taken, sent=parts(sent, ()).fields))
    found, size = across(given)
    assert found == given
    assert size < 1.2 * len(body)


def test_pieces_that_stand_nowhere_in_the_body_pass_as_they_are():
    taken = parts(request("x" * 300), call(0, request("x" * 300)).messages)
    given = Exchange(request=b"{}", sent=b"[]", parts=taken)
    assert across(given)[0] == given


def test_a_piece_is_found_behind_others_that_begin_alike():
    same = "y" * 200
    body = request(*(same + str(n) for n in range(30)))
    given = Exchange(request=body, sent=body, parts=parts(body, call(0, body).messages))
    found, size = across(given)
    assert found == given
    assert size < 3 * len(body)


@pytest.mark.parametrize("key", ["messages", "input", "contents"])
def test_a_body_of_another_dialect_passes_in_pieces_without_messages(key):
    raws = [b'{"type":"message","role":"user","content":"%b"}' % (b"long " * (100 + n)) for n in range(9)]
    body = b'{"model":"m","%b":[%b]}' % (key.encode(), b",".join(raws))
    fields = {"model": b'"m"', key: body[body.index(b"[") : -1]}
    taken = Parts(fields=fields, elements=raws, names=Digests.of(map(digest, raws)), messages=(), key=key)
    found, size = across(Exchange(request=body, sent=b"[]", parts=taken))
    assert found == Exchange(request=body, sent=b"[]", parts=taken)
    assert size < 1.2 * len(body)


def test_all_the_rest_passes_as_it_is():
    given = Exchange(
        request=b"{}", reply=b"{", error={"blame": "engine", "status": 502}, usage=b"1", top_logprobs=b"2",
        undecoded=b"3", deliveries=({"at": "now", "complete": True},),
    )  # fmt: skip
    assert across(given)[0] == given


def test_what_refers_to_a_body_that_did_not_come_along_is_refused():
    with pytest.raises(ValueError, match="no canonical form"):
        exchanges.parts(exchanges.PackedParts({}, [b"{"], digest(b"{"), None, "messages", True), Canonical(), b"{}")
    with pytest.raises(ValueError, match="a piece of a body"):
        exchanges.parts(exchanges.PackedParts({"x": (0, 9)}, [], b"", None, "messages", True), Canonical(), b"{}")
