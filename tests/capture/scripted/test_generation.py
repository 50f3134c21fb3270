from typing import Any

import msgspec
import pytest

from capture.scripted.generation import Choice, compose, generate, label, reasoning_tokens
from capture.scripted.request import ChatRequest
from capture.scripted.rules import CallReply, Failure, Reply
from capture.scripted.tokeniser import Tokeniser

TOKENISER = Tokeniser()
END = TOKENISER.special("<|im_end|>")
OTHER_END = TOKENISER.special("<|endoftext|>")


def choice(raw: str, *, limit: int = 1000, reply: dict[str, Any] | None = None, **request: Any) -> Choice:
    asked = msgspec.convert({"messages": [{"role": "user", "content": "x"}], **request}, ChatRequest)
    script = Reply(raw=raw, **(reply or {}))
    return generate(
        TOKENISER,
        [1, 2, 3],
        script,
        asked,
        index=0,
        key=1,
        limit=limit,
        noncanonical=0.0,
        mode="processed",
    )


@pytest.mark.parametrize(
    ("reply", "thinking", "text"),
    [
        (Reply(text="Hi."), False, "Hi."),
        (Reply(text="Hi.", thinking="Hm."), False, "Hi."),
        (Reply(text="Hi.", thinking="Hm."), True, "<think>\nHm.\n</think>\n\nHi."),
        (Reply(text="Hi."), True, "<think>\n\n</think>\n\nHi."),
        (Reply(raw="as it is"), True, "as it is"),
        (
            Reply(call=(CallReply(tool="a", arguments={"é": 1}), CallReply(tool="b", arguments='{"x":1}'))),
            False,
            """<tool_call>\n{"name": "a", "arguments": {"é": 1}}\n</tool_call>
<tool_call>\n{"name": "b", "arguments": {"x":1}}\n</tool_call>""",
        ),
        (
            Reply(text="So:", call=(CallReply(tool="a"),)),
            False,
            'So:\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>',
        ),
    ],
)
def test_the_text_that_is_sampled(reply, thinking, text):
    assert compose(reply, thinking=thinking) == text


def test_a_reply_ends_in_its_end_token_which_shows_no_text():
    got = choice("the name is")
    assert (got.finish, got.stop_reason, got.ids[-1], got.text) == ("stop", None, END, "the name is")
    assert len(got.ids) == len(got.scores) == len(got.labels) == len(got.texts)
    assert (got.labels[-1], got.texts[-1]) == ("<|im_end|>", "")


def test_the_second_end_token_is_named_as_the_stop_reason():
    got = choice("the name", reply={"end": "<|endoftext|>"})
    assert (got.finish, got.stop_reason, got.ids[-1], got.text) == ("stop", OTHER_END, OTHER_END, "the name")


def test_a_reply_is_cut_at_the_limit():
    got = choice("the name is", limit=2)
    assert (got.finish, got.stop_reason, got.text, len(got.ids)) == ("length", None, "the name", 2)


def test_a_reply_that_just_fits_is_not_cut():
    assert choice("the name is", limit=len(choice("the name is").ids)).finish == "stop"


def test_an_end_token_in_the_text_ends_the_reply():
    got = choice("the name<|im_end|> is lost")
    assert (got.text, got.finish) == ("the name", "stop")


def test_a_stop_id_ends_the_reply_and_is_its_reason():
    name = TOKENISER.encode(" name")[0]
    got = choice("the name is", stop_token_ids=[name])
    assert (got.text, got.finish, got.stop_reason, got.ids[-1]) == ("the", "stop", name, name)


@pytest.mark.parametrize(("included", "text"), [(False, "the n"), (True, "the name i")])
def test_a_stop_string_ends_the_text_and_not_the_ids(included, text):
    got = choice("the name is the name", stop=["ame i"], include_stop_str_in_output=included)
    assert (got.text, got.finish, got.stop_reason) == (text, "stop", "ame i")
    assert TOKENISER.decode(got.ids) == "the name is"


def test_text_is_withheld_as_far_as_a_stop_string_could_reach_back():
    got = choice("the name is", stop=["no such"])
    assert got.texts == ("", "th", "e n", "ame is")


def test_half_a_character_shows_nothing_until_it_is_whole():
    got = choice("漢!")
    assert got.texts == ("", "", "漢", "!", "")
    assert got.labels == ("", "", "漢", "!", "<|im_end|>")


def test_what_is_never_whole_is_never_shown():
    got = choice("", allowed_token_ids=[0xA1, 0xA2], max_tokens=4, limit=4)
    assert (got.text, got.finish, len(got.ids)) == ("", "length", 4)
    assert got.labels == ("", "", "", "")


def test_a_label_of_a_split_character_stands_at_its_last_token():
    ids = [0x61, 0xE6, 0xBC, 0xA2]
    assert [label(TOKENISER, ids, n) for n in range(4)] == ["a", "", "", "漢"]


@pytest.mark.parametrize(
    ("reply", "finish", "ends"),
    [
        ({"finish": "length"}, "length", False),
        ({"finish": "abort"}, "abort", False),
        ({"finish": "tool_calls"}, "tool_calls", True),
        ({"failure": Failure(abort_after_tokens=1)}, "abort", False),
    ],
)
def test_a_script_may_say_the_finish(reply, finish, ends):
    got = choice("the name", reply=reply)
    assert (got.finish, got.finish_forced, got.ids[-1] == END) == (finish, True, ends)


def test_an_abort_may_come_before_any_token():
    got = choice("the name", reply={"failure": Failure(abort_after_tokens=0)})
    assert (got.finish, got.ids, got.scores) == ("abort", (), ())


def test_the_limit_is_stronger_than_the_script():
    assert choice("the name is", limit=2, reply={"finish": "tool_calls"}).finish == "length"


def test_reasoning_tokens_are_those_before_the_mark():
    ids = TOKENISER.encode("<think>\n the name\n</think>\n\nis")
    assert reasoning_tokens(TOKENISER, ids) == 4
    assert reasoning_tokens(TOKENISER, TOKENISER.encode(" the name")) == 2


def test_allowed_tokens_take_the_place_of_the_script():
    got = choice("the name", allowed_token_ids=[300], max_tokens=1, limit=1, logprobs=True)
    assert (got.ids, got.scores[0].logprob, got.finish) == ((300,), 0.0, "length")


def test_scores_carry_as_many_others_as_are_asked_for():
    assert [len(score.others) for score in choice("the", logprobs=True, top_logprobs=5).scores] == [4, 4]
    assert [len(score.others) for score in choice("the", logprobs=True).scores] == [0, 0]
