"""Answers on the wire: one form, two encodings; questions read strictly."""

import json
import math

import msgspec
import numpy as np
import pytest
from aiohttp.test_utils import make_mocked_request

from capture import answers
from capture.errors import ClientError

FORM = {
    "ids": np.array([1, 151645], dtype=np.int32),
    "mask": np.array([0, 1], dtype=np.uint8),
    "logprobs": np.array([math.nan, -0.5], dtype=np.float32),
    "one": np.int32(7),
}


def test_arrays_are_lists_in_json_and_null_where_unknown():
    read = json.loads(answers.encode(FORM, packed=False))
    assert read == {"ids": [1, 151645], "mask": [0, 1], "logprobs": [None, -0.5], "one": 7}


def test_arrays_are_raw_and_little_endian_in_msgpack():
    read = msgspec.msgpack.decode(answers.encode(FORM, packed=True))
    assert read["ids"] == b"\x01\x00\x00\x00\x5d\x50\x02\x00"
    assert read["mask"] == b"\x00\x00\x00\x00\x01\x00\x00\x00"
    assert np.isnan(np.frombuffer(read["logprobs"], "<f4")).tolist() == [True, False]
    assert read["one"] == 7


ODD = b'{"b":1.0,"a":123456789012345678901234567890,"e":1e400,"u":"\\u00e9"}'


def test_what_passed_is_embedded_as_it_was():
    assert answers.encode({"request": answers.passed(ODD)}, packed=False) == b'{"request":' + ODD + b"}"
    assert answers.passed(None) is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b'{"a": NaN}', False),
        (b'{"a": 1', False),
        (b'"\xff"', False),
        (b'{"a":"\\ud800"}', True),
        (b"null", True),
    ],
)
def test_what_is_no_json_is_embedded_as_text(text, kept):
    body = answers.encode({"request": answers.passed(text)}, packed=False)
    read = json.loads(body)["request"]
    assert read == (json.loads(text) if kept else text.decode("utf-8", "replace"))


def test_msgpack_decodes_what_passed_or_gives_it_as_text():
    read = msgspec.msgpack.decode(answers.encode([answers.passed(b'{"a":[1.5]}'), answers.passed(ODD)], packed=True))
    assert read == [{"a": [1.5]}, ODD.decode()]


def test_odd_texts_and_numbers_of_agents_hide_nothing():
    form = {"hints": {"a": "b\ud800"}, "seed": 10**30, "ids": np.array([1], np.int32), "ok": ["é", 1]}
    assert json.loads(answers.encode(form, packed=False)) == form | {"ids": [1]}
    packed = msgspec.msgpack.decode(answers.encode(form, packed=True))
    assert packed == {"hints": {"a": "b?"}, "seed": str(10**30), "ids": b"\x01\0\0\0", "ok": ["é", 1]}


@pytest.mark.parametrize(
    ("accept", "packed"),
    [
        (None, False),
        ("application/json", False),
        ("application/msgpack", True),
        ("application/json;q=0.5, application/msgpack;q=0.9", True),
        ("*/*", False),
    ],
)
def test_msgpack_is_given_where_it_is_asked_for(accept, packed):
    request = make_mocked_request("GET", "/", headers={"Accept": accept} if accept else {})
    response = answers.answer(request, {"a": 1})
    assert response.content_type == ("application/msgpack" if packed else "application/json")


def test_an_error_says_code_message_and_hint():
    error = ClientError("rollout_not_found", "There is none.", hint="List them.", status=404)
    response = answers.failure(make_mocked_request("GET", "/"), error)
    assert response.status == 404
    assert json.loads(response.body) == {
        "error": {"code": "rollout_not_found", "message": "There is none.", "hint": "List them."}
    }


READERS = {
    "state": answers.one_of("open", "closed"),
    "roles": answers.some_of("main", "subagent"),
    "limit": answers.whole(1, 10),
    "timeout_s": answers.seconds,
    "open": answers.flag,
    "label": answers.label,
    "group": answers.text,
}


def asked(query):
    return answers.query(make_mocked_request("GET", f"/?{query}"), READERS, repeatable=("label",))


def test_a_query_is_read_by_type():
    given = asked("state=open&roles=main,subagent&limit=3&timeout_s=0.5&open=1&label=k:v&label=a:b:c&group=g%207")
    assert given == {
        "state": "open", "roles": ("main", "subagent"), "limit": 3, "timeout_s": 0.5, "open": True,
        "label": [("k", "v"), ("a", "b:c")], "group": "g 7",
    }  # fmt: skip
    assert asked("") == {}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("rolse=main", "Unknown query parameter 'rolse'; did you mean roles?"),
        ("state=opened", "state is 'opened'; expected open or closed"),
        ("roles=main,maim", "expected some of main, subagent"),
        ("roles=", "expected some of"),
        ("limit=0", "expected a whole number from 1 to 10"),
        ("limit=1.0", "expected a whole number"),
        ("limit=%C2%B2", "expected a whole number"),
        ("limit=" + "9" * 5000, "expected a whole number"),
        ("timeout_s=nan", "expected a number of seconds"),
        ("timeout_s=-1", "expected a number of seconds"),
        ("timeout_s=1e9", "expected a number of seconds"),
        ("open=true", "expected 0 or 1"),
        ("label=k", "expected KEY:VALUE"),
        ("group=", "expected some text"),
        ("limit=1&limit=2", "limit is given twice"),
    ],
)
def test_what_nobody_reads_is_refused_and_named(query, said):
    with pytest.raises(ClientError) as caught:
        asked(query)
    assert (caught.value.status, caught.value.code) == (422, "invalid_query")
    assert said in caught.value.message
    assert caught.value.hint == "Accepted: state, roles, limit, timeout_s, open, label, group."


def test_a_digest_knows_no_order_of_keys():
    assert answers.digest({"a": 1, "b": {"c": 2, "d": 3}}) == answers.digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert answers.digest({"a": 1}) != answers.digest({"a": 2})
