"""Ids and logprobs lifted out of whole replies: the same as the ordinary reader says, and where they stand."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capture.dialects.chat import Chat
from capture.engines import lift, vllm
from capture.engines.lift import maybe_lift
from capture.engines.sampled import Doubts
from capture.engines.vllm import VllmReader
from tests.engine import whole
from tests.playbook import body

REQUEST = Chat().read(body())


def compact(form: Any) -> bytes:
    return json.dumps(form, separators=(",", ":"), ensure_ascii=False).encode()


def told(reader: VllmReader, data: bytes) -> Any:
    """All that a reader says of a reply."""
    seen = reader.whole(data)
    choices = [
        (
            one.index,
            one.finish_reason,
            one.reply,
            None if one.sampled_ids is None else (one.sampled_ids.dtype, one.sampled_ids.tolist()),
            None if one.logprobs is None else (one.logprobs.dtype, str(one.logprobs.tolist())),
        )
        for one in reader.choices()
    ]
    prompt = None if reader.prompt_ids is None else (reader.prompt_ids.dtype, reader.prompt_ids.tolist())
    return seen, choices, prompt, reader.reply_id, reader.usage, reader.undecoded, reader.reply(), reader.top_logprobs()


def test_a_reply_is_taken_apart() -> None:
    form = whole([5, 6], prompt=[1, 2, 3], text='says "logprobs":{"content":[ and ]},"finish_reason":')
    lifted = maybe_lift(compact(form))
    assert lifted is not None
    assert (lifted.ids.tolist(), lifted.logprobs.tolist(), lifted.prompt) == ([5, 6], [-0.5, -0.5], b"[1,2,3]")
    choice = form.pop("choices")[0] | {"logprobs": None, "token_ids": None}
    assert {name: json.loads(raw) for name, raw in lifted.choice.items()} == choice
    top = {name: json.loads(raw) for name, raw in lifted.top.items() if name != "choices"}
    assert top == form | {"prompt_token_ids": None}


def test_the_ordinary_reader_is_not_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lest the equality below be that of the ordinary reader with itself."""
    for name in ("ids", "id_array", "logprobs"):
        monkeypatch.setattr(Doubts, name, None)
    reader = VllmReader(REQUEST)
    seen = reader.whole(compact(whole([5, 6], prompt=[1, 2])))
    form = whole([5, 6], prompt=[1, 2]) | {"prompt_token_ids": None}
    form["choices"][0] |= {"logprobs": None, "token_ids": None}
    assert seen.data == compact(form)
    assert reader.undecoded == []


@pytest.mark.parametrize(
    "asked", [{"return_token_ids": True}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 1}]
)
def test_what_the_client_asked_for_stays(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "maybe_lift", None)
    data = compact(whole([5, 6]))
    assert json.loads(VllmReader(Chat().read(body(**asked))).whole(data).data or b"")["choices"][0]["logprobs"] == (
        {"content": whole([5, 6])["choices"][0]["logprobs"]["content"]} if "logprobs" in asked else None
    )


def marked(data: bytes) -> bytes:
    """The same with a mark in the place of another value."""
    return data.replace(b'"stop_reason":null', b'"stop_reason":' + lift._MARKS[0])


def edited(**choice: Any) -> bytes:
    form = whole([5, 6])
    form["choices"][0] |= choice
    return compact(form)


TWO = whole([5, 6])
TWO["choices"].append(TWO["choices"][0] | {"index": 1})
NESTED = whole([5, 6])
NESTED["choices"] = [{"index": 0, "message": NESTED["choices"][0]}]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        json.dumps(whole([5, 6])).encode(),
        compact(TWO),
        compact(NESTED),
        compact([whole([5, 6])]),
        compact(whole([5, 6]))[:-1],
        edited(token_ids=None),
        edited(token_ids=[5]),
        edited(token_ids=[5, -6]),
        edited(logprobs=None),
        edited(logprobs={"content": None}),
        edited(logprobs={"content": [{"logprob": "x"}, {"logprob": 1}]}),
        # The last of two equal keys counts.
        compact(whole([5, 6])).replace(b'"stop_reason":null', b'"logprobs":null'),
        compact(whole([5, 6])).replace(b'"routed_experts"', b'"token_ids"'),
        compact(whole([5, 6])).replace(b'"kv_transfer_params"', b'"prompt_token_ids"'),
        # Its own key is no key of ours, and one that is spelled otherwise is.
        compact(whole([5, 6])).replace(b'"logprobs"', b'"x\\"logprobs"'),
        compact(whole([5, 6])).replace(b'"logprobs"', b'"x\\"logprobs"').replace(b'"stop_reason"', b'"logprob\\u0073"'),
    ],
)
def test_anything_else_is_for_the_ordinary_reader(data: bytes) -> None:
    assert maybe_lift(data) is None


def test_a_mark_elsewhere_is_no_mark() -> None:
    lifted = maybe_lift(marked(compact(whole([5, 6]))))
    assert lifted is not None
    assert (lifted.choice["logprobs"], lifted.choice["stop_reason"]) == (b"null", lift._MARKS[0])


PIECES = [
    b"", b" ", b",", b"0", b"-", b"]", b"[", b"}", b'"', b"\\", b"\xff", b"NaN", b"null", b"1e999", b"\\ud800",
    b'"logprobs":{"content":[', b']},"finish_reason":', b'"token_ids":[', b'"prompt_token_ids":[', b'"logprobs":null,',
]  # fmt: skip
texts = st.sampled_from(["", "Hi", 'a "logprobs":{"content":[', ']},"finish_reason":"stop"', "é\n\\", "[1,2]"])
numbers = st.lists(st.integers(0, 2**31), max_size=5)


@st.composite
def replies(draw: st.DrawFn) -> bytes:
    """A reply, perhaps with other values, another order, damage."""
    ids = draw(numbers)
    form = whole(ids, prompt=draw(numbers), text=draw(texts))
    choice = form["choices"][0]
    for entry in choice["logprobs"]["content"]:
        entry["token"] = draw(texts)
        entry["logprob"] = draw(st.sampled_from([-0.25, 0, -1e-9, None, float("nan"), -9999.0]))
    if draw(st.integers(0, 5)) == 0:
        choice["token_ids"] = draw(numbers)
    for fields in (choice, form):
        if draw(st.integers(0, 5)) == 0:
            names = draw(st.permutations(list(fields)))
            fields |= {name: fields.pop(name) for name in names}
        if draw(st.integers(0, 9)) == 0:
            del fields[draw(st.sampled_from(list(fields)))]
    data = compact(form)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(PIECES)) + data[at + draw(st.integers(0, 2)) :]
    return data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(replies(), st.sampled_from([None, "other"]))
def test_lifting_changes_nothing(monkeypatch: pytest.MonkeyPatch, data: bytes, model: str | None) -> None:
    quick = told(VllmReader(REQUEST, model=model), data)
    with monkeypatch.context() as patch:
        patch.setattr(vllm, "maybe_lift", lambda _: None)
        assert quick == told(VllmReader(REQUEST, model=model), data)
