import json

from benchmarks.corpus import Corpus
from benchmarks.wire import Ask
from benchmarks.wire_completions import CompletionsWire
from capture.dialects.completions import Completions
from capture.engines.vllm import Vllm

CORPUS = Corpus(2_000)
WIRE = CompletionsWire(CORPUS)
PROMPT, SAMPLED = CORPUS.ids[10:1_010].tolist(), CORPUS.ids[1_010:1_210].tolist()


def test_a_whole_reply_is_read_in_full() -> None:
    reader = Vllm().reader(Completions().read(b'{"prompt":"x"}'))
    reader.whole(b"".join(WIRE.whole(Ask(start=10, n_prompt=1_000), b"0f")))
    (choice,) = reader.choices()
    assert reader.undecoded == []
    assert reader.reply_id == "cmpl-0f"
    assert reader.prompt_ids is not None
    assert choice.sampled_ids is not None
    assert choice.logprobs is not None
    assert (reader.prompt_ids.tolist(), choice.sampled_ids.tolist()) == (PROMPT, SAMPLED)
    assert len(choice.logprobs) == 200
    assert choice.finish_reason == "stop"


def test_a_stream_says_the_same_one_token_an_event() -> None:
    events = WIRE.events(Ask(start=10, n_prompt=1_000, streamed=True), b"0f")
    assert len(events) == 202
    assert events[-1] == b"data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == CORPUS.text(1_010, 1_210)
    assert [id_ for choice in choices for id_ in choice["token_ids"]] == SAMPLED
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT] + [None] * 199
    assert [choice["finish_reason"] for choice in choices] == [None] * 199 + ["stop"]
    assert chunks[-1]["usage"]["completion_tokens"] == 200
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [
        [score] for score in CORPUS.logprobs[1_010:1_210]
    ]
