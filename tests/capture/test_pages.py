"""A page of an export, read line by line."""

import http.client
import io

import pytest

from capture import pages
from capture.errors import ClientError
from capture.pages import End, copy_bytes, copy_lines

ROLLOUT = b'{"rollout":"a","refused":null}\n'
REFUSED = b'{"rollout":"b","refused":{"code":"no_calls","message":"none","hint":""}}\n'
LAST = b'{"end":true,"rollouts":2,"refused":1,"next":"cr7","reasons":{"no_calls":1}}\n'


def copied(*lines, plain=False):
    written = []
    return copy_lines(iter(lines), written.append, plain=plain), written


def test_all_lines_but_the_last_pass():
    end, written = copied(ROLLOUT, REFUSED, LAST)
    assert written == [ROLLOUT, REFUSED]
    assert end == End(rollouts=2, refused=1, next="cr7", reasons={"no_calls": 1})


def test_plain_leaves_out_what_is_no_rollout():
    assert copied(ROLLOUT, REFUSED, LAST, plain=True)[1] == [ROLLOUT]


def test_long_lines_pass_unread(monkeypatch):
    monkeypatch.setattr(pages, "SMALL", 100)
    long = b"no JSON at all" * 100 + b"\n"
    assert copied(long, LAST)[1] == [long]


def broken(error):
    yield ROLLOUT
    raise error


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [ROLLOUT],
        [ROLLOUT, LAST[:-1]],
        [b"{broken\n", LAST],
        broken(ConnectionResetError()),
        broken(http.client.IncompleteRead(b"")),
    ],
)
def test_without_its_end_it_was_cut(answer):
    with pytest.raises(ClientError) as caught:
        copy_lines(answer, bytearray().extend)
    assert caught.value.code == "export_cut"


def test_bytes_pass_in_pieces(monkeypatch):
    monkeypatch.setattr(pages, "CHUNK", 3)
    written = []
    copy_bytes(io.BytesIO(b"12345"), written.append)
    assert written == [b"123", b"45"]

    class Cut:
        def read(self, amount, /):
            raise OSError("gone")

    with pytest.raises(ClientError, match="gone"):
        copy_bytes(Cut(), written.append)


def test_ends_add_up():
    one, other = End(rollouts=2, refused=1, next="x", reasons={"a": 1}), End(rollouts=3, refused=2, reasons={"b": 2})
    assert one + other == End(rollouts=5, refused=3, reasons={"a": 1, "b": 2})
    assert (one + other).told() == {
        "end": True, "rollouts": 5, "refused": 3, "next": None, "reasons": {"a": 1, "b": 2},
    }  # fmt: skip
    assert "reasons" not in End(rollouts=1).told()


def test_what_writing_raises_is_not_the_answer_s_fault():
    def full(data):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        copy_lines(iter([ROLLOUT, LAST]), full)
    with pytest.raises(BrokenPipeError):
        copy_bytes(io.BytesIO(b"12345"), full)
