"""Bodies taken apart into content by digest, and put together again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.digests import Digests, digest
from capture.store.base import Parts
from capture.store.postgres.kept import Kept, body, pack, references, unpack
from tests.capture.store.samples import parsed, request

LONG = "x" * 300
BODIES = [
    request("hello", "you", tools=[LONG], seed=10**30),
    b'{"input": ["a", {"b": 1.50}], "messages": [], "contents": [[]], "n":null}',
    b'{"messages":"no list","input":{}}',
    b"{}",
    b"[1, 2]",
    b"not json",
    b'{"messages":[NaN]}',
    b'{"a":"\xff"}',
    b'{"\\u0000":"\\ud800"}',
    b"",
]


def back(kept: Kept, stored: bytes, base: bytes | None = None) -> bytes:
    chains = {last: chain for held in kept.chains.values() for last, chain in held.items()}
    return body(stored, content=kept.data.__getitem__, chain=lambda name: list(chains[name].elements), base=base)


@pytest.mark.parametrize("given_body", BODIES)
def test_a_body_comes_back_equal_as_json(given_body):
    kept = Kept()
    stored = kept.put_body("r", given_body).stored
    assert parsed(back(kept, stored)) == parsed(given_body)
    found = references([stored, None])
    assert found.contents <= set(kept.data)
    assert found.chains <= {last for held in kept.chains.values() for last in held}


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=300), st.lists, max_leaves=5)


@given(
    st.dictionaries(st.sampled_from(["messages", "tools", "n", "ü"]), JSON, max_size=4),
    st.dictionaries(st.sampled_from(["messages", "tools", "n", "logprobs"]), JSON, max_size=4),
)
def test_what_was_sent_comes_back_from_what_was_asked(asked, sent):
    kept = Kept()
    request_body, sent_body = json.dumps(asked).encode(), json.dumps(sent).encode()
    base = kept.put_body("r", request_body)
    made = kept.put_body("r", sent_body, base=base.fields)
    assert parsed(back(kept, base.stored)) == parsed(request_body)
    assert parsed(back(kept, made.stored, base.stored)) == parsed(sent_body)


def test_a_list_that_grows_keeps_the_names_of_what_it_had():
    kept = Kept()
    short = kept.put_chain("r", [b'"a"', b'"b"'])
    grown = kept.put_chain("r", [b'"a"', b'"b"', b'"c"'])
    other = kept.put_chain("r", [b'"b"', b'"a"'])
    assert grown.links[:2] == short.links
    assert not set(other.links) & set(grown.links)
    assert short.last == digest(digest(digest(b'"a"')) + digest(b'"b"'))
    assert kept.put_chain("r", []).last is None
    assert set(kept.chains["r"]) == {short.last, grown.last, other.last}


def test_parts_that_are_known_are_not_looked_for_again():
    elements = [b'{"role":"user"}']
    parts = Parts(
        fields={"model": b'"m"', "messages": b"never read"},
        elements=elements,
        names=Digests.of([digest(elements[0])]),
        messages=(),
    )
    kept = Kept()
    made = kept.put_body("r", b"never read", parts=parts)
    assert back(kept, made.stored) == b'{"model":"m","messages":[{"role":"user"}]}'


def test_content_is_named_once_and_used_by_each():
    kept = Kept()
    assert kept.put("a", b"same") == kept.put("b", b"same")
    assert (len(kept.data), set(kept.used)) == (1, {"a", "b"})


@pytest.mark.parametrize(("data", "packed"), [(b"short", None), (b"z" * 2000, "zstd"), (bytes(range(256)), None)])
def test_content_is_packed_where_it_pays(data, packed):
    how, stored = pack(data)
    assert how == packed
    assert unpack(how, stored) == data
