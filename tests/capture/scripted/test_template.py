from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.scripted.template import Encoder, TemplateError, render, text_of
from capture.scripted.tokeniser import Tokeniser

TOKENISER = Tokeniser()
USER = {"role": "user", "content": "Go."}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"é","n":[1,2]}'}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def text(*messages: dict[str, Any], **options: Any) -> str:
    return "".join(render(messages, options.pop("tools", None), **options))


def test_a_plain_turn_and_the_prompt_for_a_reply():
    assert text(USER) == "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"


def test_without_thinking_an_empty_block_ends_the_prompt():
    assert text(USER, thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_developer_message_is_a_system_message_and_parts_are_joined():
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    assert text({"role": "developer", "content": parts}, USER).startswith("<|im_start|>system\nBe\nbrief.<|im_end|>\n")


def test_tools_go_into_the_first_system_turn():
    rendered = text({"role": "system", "content": "S"}, USER, tools=[TOOL])
    assert rendered.startswith("<|im_start|>system\nS\n\n# Tools\n\n")
    assert '<tools>\n{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}\n' in rendered
    assert rendered.count("<|im_start|>system") == 1


def test_thinking_stays_within_the_tool_loop_and_goes_before_the_last_user_turn():
    thought = {"role": "assistant", "content": "", "reasoning": "\nhm\n", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
    kept = "<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n"
    assert kept in text(USER, thought, result)
    assert "hm" not in text(USER, thought, result, USER)


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning": "hm", "content": "Done."},
        {"reasoning_content": "hm", "content": "Done."},
        {"content": "<think>\nhm\n</think>\n\nDone."},
    ],
)
def test_thinking_is_found_in_each_of_its_places(message):
    result = {"role": "tool", "content": "seen"}
    rendered = text(USER, {"role": "assistant", **message}, result)
    assert "<|im_start|>assistant\n<think>\nhm\n</think>\n\nDone.<|im_end|>" in rendered


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"at":"é","n":[1,2]}', '{"at": "é", "n": [1, 2]}'),
        ({"at": "x"}, '{"at": "x"}'),
        ('{"at": ', "{}"),
        ("[1]", "{}"),
        (None, "{}"),
    ],
)
def test_arguments_are_written_again(arguments, written):
    call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    rendered = text(USER, {"role": "assistant", "content": "Now.", "tool_calls": [call]}, USER)
    assert f'Now.\n<tool_call>\n{{"name": "look", "arguments": {written}}}\n</tool_call><|im_end|>\n' in rendered


def test_results_in_a_row_share_a_turn():
    results: list[dict[str, Any]] = [
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": [{"type": "text", "text": "b"}]},
    ]
    shared = "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
    assert shared in text(USER, *results)


def test_the_last_message_can_be_left_open():
    rendered = text(
        USER, {"role": "assistant", "content": "Hi the"}, generation_prompt=False, continue_final=True, thinking=False
    )
    assert rendered.endswith("<think>\n\n</think>\n\nHi the")


def test_what_is_no_text_is_refused():
    with pytest.raises(TemplateError, match="not a multimodal model"):
        text_of([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}])
    with pytest.raises(TemplateError, match="every message needs a role"):
        render([{"content": "x"}])
    with pytest.raises(TemplateError, match="type 'function'"):
        render([{"role": "assistant", "content": "", "tool_calls": ["look"]}])


def test_a_role_that_the_template_does_not_know_is_left_out():
    assert text({"role": "oracle", "content": "x"}, USER) == text(USER)


MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": st.text(max_size=8)}),
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": st.text(max_size=8), "tool_calls": st.just([CALL])}
        ),
    ),
    max_size=6,
)


@given(MESSAGES)
def test_segments_encoded_apart_are_the_prompt_encoded_whole(messages):
    segments = render(messages, [TOOL])
    assert Encoder(TOKENISER).encode(segments) == TOKENISER.encode("".join(segments))


def test_an_encoder_that_forgets_gives_the_same_ids(monkeypatch):
    monkeypatch.setattr("capture.scripted.template._TOKENS_KEPT", 10)
    encoder = Encoder(TOKENISER)
    segments = [f"<|im_start|>user\nmessage {n}<|im_end|>\n" for n in range(20)]
    assert encoder.encode(segments) == encoder.encode(segments) == TOKENISER.encode("".join(segments))
    assert repr(encoder) == "Encoder(1 segments, 12 tokens kept)"
