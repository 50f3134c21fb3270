"""What every engine's reader has in common, and that no reply, whatever it holds, makes a reader fail."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import rawjson
from capture.dialects.chat import Chat
from capture.engines.base import Adapter, Reader
from capture.engines.chat_reader import ChatReader
from capture.engines.llamacpp import Llamacpp
from capture.engines.openai import OpenAI
from capture.engines.sglang import Sglang
from capture.engines.vllm import Vllm
from tests.playbook import body

ADAPTERS: dict[str, Adapter] = {"vllm": Vllm(), "sglang": Sglang(), "llamacpp": Llamacpp(), "openai": OpenAI()}

CHOICE = {"index": 0, "delta": {"content": "x"}, "logprobs": None, "finish_reason": None}


def reader(kind: str = "openai", *, model: str | None = None, **asked: Any) -> Reader:
    return ADAPTERS[kind].reader(Chat().read(body(**asked)), model=model)


def raw(*choices: Any, **top: Any) -> bytes:
    return json.dumps({"id": "1", "model": "m", "choices": list(choices), **top}).encode()


# -- rules


def test_an_event_of_which_nothing_is_cut_keeps_its_bytes() -> None:
    data = b'{ "id":"1", "choices" : [{"index":0,"delta":{"content":"x"}, "n": 0.10}] }'
    assert reader(stream=True).event(data).data is data


@pytest.mark.parametrize("data", [b"", b" ", b"[DONE]", b"{", b"7", b'{"choices": 7}', b'{"choices": [7]}'])
def test_what_is_no_chunk_passes_as_it_is(data: bytes) -> None:
    read = reader(stream=True)
    seen = read.event(data)
    assert (seen.data, seen.done) == (data, data == b"[DONE]")
    assert bool(read.undecoded) == (data not in (b"", b" ", b"[DONE]"))


def test_what_stands_on_the_chunk_of_usage_moves_to_the_finish() -> None:
    timings = {"n": 1}
    last = raw(usage={"completion_tokens": 1}, timings=timings)
    seen = reader("llamacpp", stream=True).event(last)
    assert (seen.data, {name: json.loads(value) for name, value in seen.moved.items()}) == (None, {"timings": timings})
    assert reader("llamacpp", stream=True, stream_options={"include_usage": True}).event(last).data is last


def test_an_error_beside_usage_is_not_left_out() -> None:
    seen = reader(stream=True).event(raw(usage={"x": 1}, error={"message": "broken"}))
    assert seen.error == "broken"
    assert seen.data is not None
    assert b"broken" in seen.data


def test_a_reply_without_usage_or_choices_is_one_all_the_same() -> None:
    read = reader()
    assert read.whole(b'{"id": "1", "choices": null}').finished == ()
    assert (read.choices(), read.usage, read.reply_id) == ([], None, "1")


def test_a_reader_says_where_it_stands() -> None:
    read = reader()
    read.whole(raw({**CHOICE, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}))
    assert repr(read) == "<OpenAIReader 1 0: <Sampled 0 ids, no logprobs> stop>"
    assert isinstance(read, ChatReader)


# -- whatever comes


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**33) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
fitting = {
    "index": st.integers(0, 2),
    "delta": st.fixed_dictionaries({}, optional={"content": st.text(max_size=3), "role": st.just("assistant")}),
    "message": st.fixed_dictionaries({"role": st.just("assistant"), "content": st.text(max_size=3)}),
    "finish_reason": st.sampled_from([None, "stop", "abort", ""]),
    "token_ids": st.lists(st.integers(0, 9), max_size=3),
    "prompt_token_ids": st.lists(st.integers(0, 9), max_size=3),
    "logprobs": st.fixed_dictionaries(
        {"content": st.lists(st.fixed_dictionaries({"logprob": st.just(-0.5), "id": st.integers(0, 9)}), max_size=3)}
    ),
    "meta_info": st.fixed_dictionaries(
        {"output_token_logprobs": st.lists(st.tuples(st.just(-0.5), st.integers(0, 9), st.just("x")), max_size=3)}
    ),
    "sglext": st.fixed_dictionaries(
        {}, optional={"input_ids": st.just([1]), "output_ids": st.lists(st.lists(st.integers(0, 9)), max_size=2)}
    ),
    "metadata": st.fixed_dictionaries({"weight_version": st.text(max_size=2)}),
    "usage": st.fixed_dictionaries({"prompt_tokens": st.integers(0, 3), "completion_tokens": st.integers(0, 3)}),
    "model": st.just("m"),
    "id": st.just("1"),
}


def forms(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these fields, most of them fitting, and some of any type."""
    return st.fixed_dictionaries({}, optional={name: fitting[name] | values for name in names})


choice = forms("index", "delta", "message", "finish_reason", "token_ids", "prompt_token_ids", "logprobs", "meta_info")
reply = st.builds(
    lambda top, choices: {**top, "choices": choices},
    forms("id", "model", "usage", "prompt_token_ids", "sglext", "metadata"),
    st.lists(choice, max_size=3) | values,
)
asking = st.fixed_dictionaries(
    {},
    optional={
        name: st.just(True)
        for name in ("logprobs", "return_token_ids", "return_meta_info", "return_output_ids_in_sglext", "stream")
    },
)


@pytest.mark.parametrize("kind", ADAPTERS)
@given(asked=asking, sent=st.lists(reply, min_size=1, max_size=4), model=st.none() | st.just("asked"))
def test_no_reply_makes_a_reader_fail(kind: str, asked: dict[str, Any], sent: list[Any], model: str | None) -> None:
    read = reader(kind, model=model, **asked)
    streamed = asked.get("stream", False)
    for form in sent if streamed else sent[:1]:
        data = json.dumps(form).encode()
        seen = read.event(data) if streamed else read.whole(data)
        if seen.data is not None:
            rawjson.split(seen.data)
        assert streamed or seen.data is not None
    for one in read.choices():
        if one.logprobs is not None:
            assert one.sampled_ids is not None
            assert one.logprobs.shape == one.sampled_ids.shape
    if (assembled := read.reply()) is not None:
        rawjson.split(assembled)
    if (top := read.top_logprobs()) is not None:
        rawjson.elements(top)
