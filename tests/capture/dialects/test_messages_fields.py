"""Bodies decoded and encoded, whatever JSON they are."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects import messages_fields as field
from capture.errors import ClientError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None, categories=None))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), VALUES))
def test_values_survive(values: dict[str, Any]) -> None:
    body = json.dumps(values).encode()
    decoded, strict = field.decoded(body)
    assert json.dumps(decoded) == json.dumps(json.loads(body))
    again = field.encoded(decoded, strict=strict)
    assert json.dumps(json.loads(again)) == json.dumps(json.loads(body))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"a"', b"{}x", b'{"a":1}}', b"\xff\xfe", b'{"a":' + b"[" * 99_999]
)
def test_what_is_no_request(body: bytes) -> None:
    with pytest.raises(ClientError) as caught:
        field.decoded(body)
    assert (caught.value.code, caught.value.status) == ("invalid_json", 400)


def test_checks() -> None:
    assert field.number(5, "a") == 5
    assert field.whole_number(5, "a", least=5) == 5
    for value in (10**400, float("inf"), True, "5", None):
        with pytest.raises(ClientError, match="'a' must be a number"):
            field.number(value, "a")
    with pytest.raises(ClientError, match="'a' must be a whole number, 5 or more"):
        field.whole_number(4, "a", least=5)
    with pytest.raises(ClientError, match=r"'a\.b' is missing"):
        field.text({}, "b", "a")
    assert field.optional_text({"b": None}, "b", "a") == ""
    assert field.flag({}, "b", "a") is False
