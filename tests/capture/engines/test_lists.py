"""Logprobs read by what is compiled: what the ordinary reader says of them, to the bit, or nothing."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.engines import id_text
from capture.engines.sampled import decode_logprobs

pytestmark = pytest.mark.skipif(
    id_text.compiled is None, reason="the lists in C: no compiler built them (`uv pip install -e .` with gcc or clang)"
)

BEGIN, END = b'{"content":[', b"]}"


def entry(logprob: str = "-0.5", *, token: str = '"x"', raw: str = "[120]", top: str = "[]") -> bytes:
    return f'{{"token":{token},"logprob":{logprob},"bytes":{raw},"top_logprobs":{top}}}'.encode()


def read(*entries: bytes, n: int | None = None) -> list[bytes] | None:
    """The bits of what is read of them, each as a float's bytes."""
    assert id_text.compiled is not None
    text = b",".join(entries)
    found = id_text.compiled.logprobs(
        BEGIN + text + END, len(BEGIN), len(BEGIN + text), len(entries) if n is None else n
    )
    if found is None:
        return None
    assert isinstance(found, bytearray)
    return [bytes(found[i : i + 4]) for i in range(0, len(found), 4)]


def expected(*entries: bytes) -> list[bytes]:
    found = decode_logprobs(BEGIN + b",".join(entries) + END)
    assert found is not None
    return [one.tobytes() for one in np.array(found, dtype=np.float32)]


DECIMALS = st.builds(
    "{}{}.{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**16 - 1),
    st.text("0123456789", min_size=1, max_size=20),
    st.sampled_from(["", "", "", "e-7", "E-45", "e+3", "e-99"]),
)
# Half way between two floats, and half way between two doubles, or next to that.
HALVES = st.builds(
    lambda bits, far: repr(-(struct.unpack("<f", struct.pack("<I", bits))[0] * (1 + 2**-24) + far * 2**-52)),
    st.integers(0x3C000000, 0x42000000),
    st.sampled_from([-1, 0, 1]),
).filter(lambda text: "." in text)


@given(DECIMALS | HALVES | st.floats(-100, -1e-90).map(repr).filter(lambda text: "." in text or "e" in text))
@example("-0.0")
@example("9007199254740993.0")
@example("-9007199254740992.5000000000000001")
@example("0.30000000000000004")
@example("-9999.0")
@example("1e-7")
def test_a_number_is_rounded_as_by_way_of_a_double(logprob: str) -> None:
    assert read(entry(logprob)) == expected(entry(logprob))


@given(st.lists(st.floats(-20, 0, width=32).map(lambda one: repr(float(one))), min_size=1, max_size=40))
def test_all_are_read_in_order(logprobs: list[str]) -> None:
    entries = [entry(one) for one in logprobs]
    assert read(*entries) == expected(*entries)


@pytest.mark.parametrize(
    "one",
    [
        entry(token='"é\\n\\\\\\""'),
        entry(token='""'),
        entry(raw="null"),
        entry(raw="[]"),
        entry(raw="[195,169]"),
        entry("-1.5e-05"),
    ],
)
def test_what_is_as_vllm_writes_it_is_taken(one: bytes) -> None:
    assert read(one) == expected(one)


@pytest.mark.parametrize(
    "one",
    [
        b"",
        b"{}",
        entry("null"),
        entry("NaN"),
        entry("-Infinity"),
        entry("-1"),
        entry("01.5"),
        entry("1."),
        entry(".5"),
        entry("+1.5"),
        entry("1e99"),
        entry("-3.5e38"),
        entry("1e400"),
        entry('"-0.5"'),
        entry("-0.5 "),
        entry(token='"\\u0041"'),
        entry(token='"\\q"'),
        entry(token='"\x01"'),
        entry(token="null"),
        entry(raw="[1,]"),
        entry(raw="[01]"),
        entry(raw="[-1]"),
        entry(raw="[1"),
        entry(raw="nul"),
        entry(top='[{"token":"x","logprob":-0.5,"bytes":[120]}]'),
        entry()[:-1],
        entry() + b" ",
        entry() + b",",
        entry().replace(b'"token"', b'"logprob":-1.5,"token"'),
        json.dumps({"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}).encode(),
    ],
)
def test_anything_else_is_for_the_ordinary_reader(one: bytes) -> None:
    assert read(one) is None
    assert read(entry(), one) is None
    assert read(one, entry()) is None


@pytest.mark.parametrize("n", [0, 1, 3, 10**15])
def test_another_number_of_entries_is_too(n: int) -> None:
    assert read(entry(), entry(), n=n) is None


PIECES = [b"", b" ", b",", b"0", b"-", b"]", b"[", b"}", b"{", b'"', b"\\", b"\xff", b"NaN", b"null", b"e", b".", b"\0"]


@given(st.data())
def test_damage_is_never_read_otherwise(data: Any) -> None:
    text = b",".join([entry("-0.25"), entry("-1e-07", token='"é"'), entry("0.0", raw="null")])
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(PIECES)) + text[at + data.draw(st.integers(0, 3)) :]
    for n in range(1, 5):
        found = read(text, n=n)
        if found is not None:
            assert found == expected(text)


@pytest.mark.parametrize("bounds", [(-1, 5, 1), (5, 4, 1), (0, 10**6, 1), (0, 5, -1)])
def test_bounds_outside_of_the_data_are_an_error(bounds: tuple[int, int, int]) -> None:
    assert id_text.compiled is not None
    with pytest.raises(ValueError, match="stand in the data"):
        id_text.compiled.logprobs(b"0123456789", *bounds)


@pytest.mark.parametrize("name", ["ids", "is_list"])
def test_only_bytes_are_read(name: str) -> None:
    with pytest.raises(TypeError, match="bytes"):
        getattr(id_text.compiled, name)("1,2")
