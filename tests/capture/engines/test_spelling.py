"""The text of single tokens: what is asked, and how an answer comes apart, with decoders of several sorts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.engines.spelling import BATCH, MARK, SIGN, SPELLINGS, marks, shown
from capture.errors import EngineError


class ByteLevel:
    """A decoder as of GPT-2 and Qwen: an id is some bytes, and text is what they are together."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = [*(bytes([one]) for one in range(256)), *pieces]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids) -> str:
        return b"".join(self.pieces[one] for one in ids).decode("utf-8", "replace")


class SentencePiece(ByteLevel):
    """A decoder as of Llama 2: a word begins with its space, which is left out before the first."""

    def encode(self, text: str) -> list[int]:
        return list(f" {text}".encode())

    def decode(self, ids) -> str:
        return super().decode(ids).removeprefix(" ")


def learnt(decoder):
    ids = decoder.encode(MARK)
    found = marks(ids, decoder.decode([*ids, *ids]))
    assert found is not None
    return found


PIECES = st.lists(st.text(min_size=1).map(str.encode) | st.binary(min_size=1, max_size=6), max_size=8)


@pytest.mark.parametrize("sort", [ByteLevel, SentencePiece])
@given(pieces=PIECES, ids=st.lists(st.integers(0, 263), min_size=1, max_size=40))
def test_each_comes_out_as_its_bytes_say(sort, pieces, ids):
    decoder = sort(pieces)
    ids = [one % len(decoder.pieces) for one in ids]
    found = learnt(decoder).pieces(decoder.decode(learnt(decoder).question(ids)), len(ids))
    texts = [decoder.pieces[one].decode("utf-8", "replace") for one in ids]
    if any(SIGN in text for text in texts):
        # It is found out, but for signs that lie between two others' remains.
        assert found is None or found == texts
    else:
        assert found == texts


def test_a_space_before_a_word_is_kept_where_a_decoder_drops_a_first_one():
    decoder = SentencePiece([b" the"])
    assert decoder.decode([256]) == "the"
    assert learnt(decoder).pieces(decoder.decode(learnt(decoder).question([256, 256])), 2) == [" the", " the"]


def test_half_a_character_has_no_text():
    decoder = ByteLevel(["é".encode()[:1], "é".encode()[1:], "é".encode()])
    found = learnt(decoder).pieces(decoder.decode(learnt(decoder).question([256, 257, 258])), 3)
    assert [shown(text) for text in found] == [None, None, "é"]


@pytest.mark.parametrize(
    ("ids", "twice"),
    [
        ([], ""),
        ([1], "no sign at all"),
        ([1], f"\n{SIGN}\n"),
        ([1], f"\n{SIGN}\n\n{SIGN}\n\n{SIGN}\n"),
        # Line feeds that a decoder drops guard nothing.
        ([1], f"{SIGN}{SIGN}"),
        ([1], f"\n{SIGN} \n{SIGN}\n"),
    ],
)
def test_an_engine_that_spells_marks_otherwise_can_have_none(ids, twice):
    assert marks(ids, twice) is None


def test_an_answer_that_does_not_come_apart():
    found = learnt(ByteLevel([]))
    whole = f"\n{SIGN}\na\n{SIGN}\nb\n{SIGN}\n"
    assert found.pieces(whole, 2) == ["a", "b"]
    for text, count in ((whole, 1), (whole, 3), (whole.replace("\nb", "b"), 2), ("", 1), (f"{SIGN}\n{SIGN}", 1)):
        assert found.pieces(text, count) is None


@pytest.mark.parametrize(
    ("kind", "tokenise", "detokenise"),
    [
        (
            "vllm",
            {"model": "m", "prompt": "x", "add_special_tokens": False},
            {"model": "m", "tokens": [1, 2]},
        ),
        (
            "sglang",
            {"model": "m", "prompt": "x", "add_special_tokens": False},
            {"model": "m", "tokens": [1, 2], "skip_special_tokens": False},
        ),
        ("llamacpp", {"content": "x", "add_special": False, "parse_special": True}, {"tokens": [1, 2]}),
    ],
)
def test_what_is_asked(kind, tokenise, detokenise):
    how = SPELLINGS[kind]
    asked = how.tokenise("x", "m")
    assert (asked.path, json.loads(asked.body)) == ("/tokenize", tokenise)
    asked = how.detokenise([1, 2], "m")
    assert (asked.path, json.loads(asked.body)) == ("/detokenize", detokenise)
    assert "model" not in json.loads(how.tokenise("x", None).body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [("vllm", b'{"prompt": "<|im_start|>user"}'), ("sglang", b'{"text": "<|im_start|>user", "count": 2}'),
     ("llamacpp", b'{"content": "<|im_start|>user"}')],
)  # fmt: skip
def test_what_is_told(kind, body):
    how = SPELLINGS[kind]
    assert how.told(body) == "<|im_start|>user"
    assert how.ids(b'{"tokens": [1, 2], "count": 2}') == [1, 2]
    for wrong in (b"no", b"[]", b'{"other": 1}', b'{"%s": 1}' % how.text.encode(), b"\xff"):
        with pytest.raises(EngineError, match="gave no text"):
            how.told(wrong)
        with pytest.raises(EngineError, match="gave no ids"):
            how.ids(wrong)


def test_a_batch_is_not_longer_than_an_engine_takes():
    assert len(learnt(ByteLevel([])).question(range(BATCH))) < 2_048
