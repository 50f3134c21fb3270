"""What a request goes on from: earlier exchanges, whole or item by item."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.dialects.base import Earlier
from capture.dialects.responses_history import refers_to
from capture.errors import ClientError
from tests.capture.dialects.responses_wire import FUNCTION, ask, call, chunk, dialect, translator, whole


def exchange(message: dict[str, Any], reply_id: str, **fields: Any) -> Earlier:
    """An exchange as it is stored: a request, and its reply as the client got it."""
    return Earlier(request=ask(**fields), reply=translator().whole(whole(message, id=reply_id)))


FIRST = exchange({"role": "assistant", "content": "A.", "reasoning": "Hm."}, "r1", input="one", instructions="Be kind.")
SECOND = exchange({"role": "assistant", "content": "B."}, "r2", input="two", previous_response_id="r1")


def said(*earlier: Earlier, **fields: Any) -> list[Any]:
    found = json.loads(dialect.read(ask(**fields), earlier=earlier).fields["messages"])
    assert isinstance(found, list)
    return found


def test_what_was_said_comes_first() -> None:
    assert said(FIRST, SECOND, input="three", previous_response_id="r2", instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "A.", "reasoning": "Hm."},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "B."},
        {"role": "user", "content": "three"},
    ]


def test_nothing_new_needs_to_be_said() -> None:
    assert said(FIRST, input=None, previous_response_id="r1")[-1]["content"] == "A."


def test_a_call_and_its_result_find_together() -> None:
    made = translator(tools=[FUNCTION], stream=True)
    for data in (chunk(call(0, id="c1", name="look", arguments="{}")), chunk({}, "tool_calls"), b"[DONE]"):
        made.event(data)
    earlier = Earlier(request=ask(tools=[FUNCTION]), reply=made.reply() or b"")
    output = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    assert [one["role"] for one in said(earlier, input=[output], previous_response_id="chatcmpl-1")] == [
        "user",
        "assistant",
        "tool",
    ]


def test_items_are_named_by_their_ids() -> None:
    names = [{"type": "item_reference", "id": "rs_r1_0"}, {"id": "msg_r1_1"}]
    body = ask(input=[{"role": "user", "content": "one"}, *names, {"role": "user", "content": "next"}])
    assert dialect.refers_to(body) == "r1"
    assert json.loads(dialect.read(body, earlier=[FIRST]).fields["messages"]) == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "A.", "reasoning": "Hm."},
        {"role": "user", "content": "next"},
    ]


def test_an_exchange_that_names_items_is_read_with_those_before_it() -> None:
    names = [{"role": "user", "content": "one"}, {"type": "item_reference", "id": "msg_r1_1"}]
    second = exchange({"role": "assistant", "content": "B."}, "r2", input=names)
    assert dialect.refers_to(second.request) == "r1"
    last = [*names, {"type": "item_reference", "id": "msg_r2_0"}]
    assert [one["content"] for one in said(FIRST, second, input=last)] == ["one", "A.", "B."]
    assert [one["content"] for one in said(FIRST, second, previous_response_id="r2")] == ["one", "A.", "B.", "hi"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (ask(previous_response_id="r1"), "r1"),
        (ask(previous_response_id=None), None),
        (ask(previous_response_id=""), None),
        (ask(previous_response_id=3), None),
        (ask(), None),
        (ask(input=[{"type": "item_reference", "id": "msg_elsewhere"}]), None),
        (ask(input=[{"type": "item_reference", "id": f"msg_r{n}_0"} for n in (1, 2)]), "r2"),
        (ask(input=[{"type": "item_reference", "id": "msg_r1_0"}], previous_response_id="r9"), "r9"),
        (ask(input="item_reference"), None),
        (b'{"previous_response_id": "r1"', None),
        (b"[previous_response_id]", None),
    ],
)
def test_a_request_names_what_it_goes_on_from(body: bytes, name: str | None) -> None:
    assert refers_to(body) == name


@given(st.binary(), st.integers(0, 200))
def test_looking_for_it_never_raises(noise: bytes, cut: int) -> None:
    refers_to(b'{"previous_response_id": "' + noise + b'"}')
    refers_to(ask(input=[{"type": "item_reference", "id": "msg_r1_0"}])[:cut])


@pytest.mark.parametrize(
    "earlier",
    [
        Earlier(request=b'{"messages": []}', reply=b'{"choices": []}'),
        Earlier(request=ask(), reply=b"event: x"),
        Earlier(request=b"{", reply=b'{"output": []}'),
        Earlier(request=b"[]", reply=b"[]"),
    ],
)
def test_a_reply_of_another_dialect_is_not_gone_on_with(earlier: Earlier) -> None:
    with pytest.raises(ClientError) as caught:
        said(earlier, previous_response_id="r1")
    assert (caught.value.status, caught.value.param) == (404, "previous_response_id")
