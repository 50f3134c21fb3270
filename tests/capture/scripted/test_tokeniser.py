import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.scripted.tokeniser import IM_END, IM_START, THINK, TOOL_CALL, Tokeniser

TOKENISER = Tokeniser()
# What a chat is made of, special tokens' texts included.
TEXTS = st.lists(
    st.one_of(
        st.text(), st.sampled_from([IM_START, IM_END, THINK, TOOL_CALL, " the", '{"name": ', "\n\n", "é", "日本"])
    )
).map("".join)


@given(TEXTS)
def test_decoding_gives_the_text_back(text):
    assert TOKENISER.decode(TOKENISER.encode(text)) == text


@given(TEXTS, st.integers())
def test_another_split_decodes_to_the_same_text(text, seed):
    draw = random.Random(seed).randrange
    for special, piece in TOKENISER.pieces(text):
        if not special:
            assert TOKENISER.decode(TOKENISER.resplit(piece, draw)) == piece


@given(TEXTS, TEXTS)
def test_texts_part_at_a_special_token_and_join_again(left, right):
    whole = TOKENISER.encode(left + IM_START + right)
    assert whole == TOKENISER.encode(left) + TOKENISER.encode(IM_START) + TOKENISER.encode(right)


@pytest.mark.parametrize("piece", ["name", " repository", '"}}\n', "\n\n", "é"])
def test_a_piece_with_a_merge_has_another_split(piece):
    canonical = TOKENISER.encode_piece(piece)
    others = {TOKENISER.resplit(piece, random.Random(seed).randrange) for seed in range(20)}
    assert canonical not in others


def test_a_piece_of_bytes_alone_has_one_split():
    assert TOKENISER.resplit("漢", random.Random(1).randrange) == TOKENISER.encode_piece("漢") == (230, 188, 162)


def test_the_text_of_a_special_token_is_that_token_in_any_text():
    ids = TOKENISER.encode(f"say {IM_END} to me")
    assert TOKENISER.special(IM_END) in ids
    assert TOKENISER.is_special(TOKENISER.special(IM_END))


def test_the_first_ids_are_the_bytes_and_every_merge_is_reached_by_merging():
    assert [TOKENISER.token_bytes(n) for n in range(256)] == [bytes([n]) for n in range(256)]
    for token in range(256, TOKENISER.size):
        data = TOKENISER.token_bytes(token)
        if not TOKENISER.is_special(token) and data.isascii():
            assert TOKENISER.encode_piece(data.decode()) == (token,)


def test_the_vocabulary_does_not_change():
    # Stored ids mean the same text in every version.
    assert TOKENISER.encode('<|im_start|>user\nList the files — {"path": "src"}.<|im_end|>') == (
        [988, 117, 387, 10, 76, 354, 269, 652, 32, 975, 342, 462, 280, 265, 115, 695, 34, 125, 46, 989]
    )
    assert TOKENISER.size == 996


def test_a_lone_surrogate_becomes_a_question_mark():
    assert TOKENISER.decode(TOKENISER.encode("a\ud800b")) == "a?b"


@pytest.mark.parametrize("token", [-1, 996])
def test_an_id_outside_the_vocabulary_is_an_error(token):
    with pytest.raises(IndexError):
        TOKENISER.token_bytes(token)
