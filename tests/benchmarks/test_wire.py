import itertools
import json
import re
from pathlib import Path

import pytest

from benchmarks.corpus import Corpus
from benchmarks.wire import EVENT_END, FIRST_TOKEN, Ask, Wire, read_header

CORPUS = Corpus(2_000)
WIRE = Wire(CORPUS)
RECORDED = Path(__file__).parent.parent / "fixtures" / "vllm_wire"


def test_a_whole_reply_holds_the_prompt_and_what_was_sampled() -> None:
    ask = Ask(start=10, n_prompt=1_000)
    reply = json.loads(b"".join(WIRE.whole(ask, b"0f")))
    (choice,) = reply["choices"]
    assert reply["id"] == "chatcmpl-0f"
    assert reply["prompt_token_ids"] == CORPUS.ids[10:1_010].tolist()
    assert choice["token_ids"] == CORPUS.ids[1_010:1_210].tolist()
    assert choice["message"]["content"] == CORPUS.text(1_010, 1_210)
    entries = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == CORPUS.logprobs[1_010:1_210]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == CORPUS.text(1_010, 1_210)
    assert reply["usage"]["completion_tokens"] == 200
    assert reply["usage"]["total_tokens"] == 1_200


def test_a_stream_says_the_same_one_token_an_event() -> None:
    ask = Ask(start=10, n_prompt=1_000, streamed=True)
    events = WIRE.events(ask, b"0f")
    assert all(event.endswith(EVENT_END) and event.count(EVENT_END) == 1 for event in events)
    assert [FIRST_TOKEN in event for event in events] == [False] + [True] * 200 + [False] * 2
    assert events[-1] == b"data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert chunks[0]["prompt_token_ids"] == CORPUS.ids[10:1_010].tolist()
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["delta"]["content"] for choice in choices) == CORPUS.text(1_010, 1_210)
    assert (
        list(itertools.chain(*(choice.get("token_ids", []) for choice in choices))) == CORPUS.ids[1_010:1_210].tolist()
    )
    assert [choice["finish_reason"] for choice in choices] == [None] * 200 + ["stop"]
    assert chunks[-1]["usage"]["completion_tokens"] == 200


@pytest.mark.parametrize("streamed", [False, True])
def test_without_ids_nothing_of_them_is_left(streamed: bool) -> None:
    ask = Ask(start=10, n_prompt=1_000, streamed=streamed, ids=False)
    reply = b"".join(WIRE.events(ask, b"0f") if streamed else WIRE.whole(ask, b"0f"))
    assert not re.search(rb'"(prompt_)?token_ids":\[|"logprob":', reply)
    assert b'"finish_reason":"stop"' in reply


def test_a_probe_gets_the_token_that_it_allows() -> None:
    ask = Ask(start=0, n_prompt=8, n_sampled=1, allowed=(42,))
    reply = json.loads(b"".join(WIRE.whole(ask, b"0f")))
    assert reply["choices"][0]["token_ids"] == [42]
    assert [entry["logprob"] for entry in reply["choices"][0]["logprobs"]["content"]] == [0.0]
    assert reply["usage"]["completion_tokens"] == 1


def test_replies_have_the_keys_of_a_real_vllm() -> None:
    whole = json.loads((RECORDED / "01-chat-plain.json").read_text())["body"]
    made = json.loads(b"".join(WIRE.whole(Ask(start=0, n_prompt=600), b"0f")))
    assert made.keys() == whole.keys()
    assert made["choices"][0].keys() == whole["choices"][0].keys()
    assert made["choices"][0]["message"].keys() == whole["choices"][0]["message"].keys()
    entries = [each["choices"][0]["logprobs"]["content"][0] for each in (made, whole)]
    assert entries[0].keys() == entries[1].keys()


def test_the_header_says_which_reply() -> None:
    ask = Ask(start=977, n_prompt=2_000, streamed=True, ids=False, call=12)
    assert read_header(ask.header()) == ask
    assert read_header("977,2000,1,0,") == Ask(start=977, n_prompt=2_000, streamed=True, ids=False)
    assert read_header("977,2000,1,0,").header() == "977,2000,1,0,"
