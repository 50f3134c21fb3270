"""Items of the Responses dialect and the chat messages that they become."""

from typing import Any

import pytest

from capture.dialects.responses_items import item_id, reply_of
from capture.errors import ClientError
from tests.capture.dialects.responses_wire import NAMESPACE, messages, read


def said(text: str, id_: str | None = None, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **({"id": id_} if id_ else {}), **more}


def thought(text: str, id_: str = "rs_foreign") -> dict[str, Any]:
    return {"type": "reasoning", "id": id_, "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def called(n: int, id_: str | None = None, **more: Any) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": "{}", **more}
    return item if id_ is None else {**item, "id": id_}


def result(n: int, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{n}", "output": output}


def assistant(content: Any, *calls: int, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, **more}
    if calls:
        look = {"name": "look", "arguments": "{}"}
        message["tool_calls"] = [{"id": f"c{n}", "type": "function", "function": look} for n in calls]
    return message


def tool(n: int, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{n}", "content": content}


def test_an_items_id_names_its_reply() -> None:
    assert reply_of(item_id("rs", "chatcmpl-a_b", 3)) == "chatcmpl-a_b"
    for foreign in ("rs_0001", "msg_01a2296d-c6b5", "msg_68ab", "x_chatcmpl-1_0", "rs_a_b", None, 3):
        assert reply_of(foreign) is None


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
        ([{"type": "message", "role": "developer", "content": []}], [{"role": "developer", "content": ""}]),
        ([thought("Hm. "), called(1), result(1)], [assistant(None, 1, reasoning="Hm. "), tool(1)]),
        ([thought("Hm."), said("I look."), called(1), called(2)], [assistant("I look.", 1, 2, reasoning="Hm.")]),
        # A result between them parts two calls that nobody says belong together.
        ([called(1), result(1), called(2), result(2)], [assistant(None, 1), tool(1), assistant(None, 2), tool(2)]),
        # Ours say it.
        (
            [called(1, "fc_r_0"), result(1), called(2, "fc_r_1"), result(2)],
            [assistant(None, 1, 2), tool(1), tool(2)],
        ),
        ([said("a", "msg_r_0"), thought("b", "rs_r_1"), said("c", "msg_r_2")], [assistant("ac", reasoning="b")]),
        # Two replies stay two, even side by side.
        ([said("a", "msg_r_0"), called(1, "fc_s_0")], [assistant("a"), assistant(None, 1)]),
        ([thought("a", "rs_r_0"), said("b", "msg_s_0")], [assistant("", reasoning="a"), assistant("b")]),
        ([thought("a"), thought("b"), said("c")], [assistant("", reasoning="a"), assistant("c", reasoning="b")]),
        ([said("a"), said("b")], [assistant("a"), assistant("b")]),
        # An empty text and a call are one reply.
        ([said("\n\n"), called(1)], [assistant("\n\n", 1)]),
        ([called(1), {"role": "user", "content": "no"}, called(2)],
         [assistant(None, 1), {"role": "user", "content": "no"}, assistant(None, 2)]),
        # A result without its call is the engine's to judge.
        ([result(9)], [tool(9)]),
    ],
)  # fmt: skip
def test_what_one_reply_said_is_one_message(items: list[Any], wanted: list[Any]) -> None:
    assert messages(*items) == wanted


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (thought("") | {"summary": [{"type": "summary_text", "text": "So."}]}, [assistant("", reasoning="So.")]),
        ({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}, []),
        ({"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}, []),
    ],
)
def test_foreign_reasoning_is_told_by_what_can_be_read_of_it(item: dict[str, Any], wanted: list[Any]) -> None:
    assert messages(item) == wanted


def test_a_namespaces_call_has_the_engines_name_for_it() -> None:
    item = called(1, name="spawn", namespace="agents")
    for fields in ({"tools": [NAMESPACE]}, {}):
        (message,) = messages(item, **fields)
        assert message["tool_calls"][0]["function"]["name"] == "agents__spawn"


def test_free_text_and_its_output_become_a_call_and_its_result() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"\né'}
    assert messages(custom, {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "patch", "arguments": '{"input": "a \\"b\\"\\né"}'},
                }
            ],
        },
        tool(1, "done"),
    ]


def test_calls_of_tools_that_a_client_runs_are_told_as_calls() -> None:
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}}
    patch = {"type": "apply_patch_call", "call_id": "c2", "operation": {"type": "delete_file", "path": "a"}}
    found = messages(
        shell,
        {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
        patch,
        {"type": "apply_patch_call_output", "call_id": "c2", "status": "completed", "output": "gone"},
        {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "x"}]},
    )
    functions = [call["function"] for message in found for call in message.get("tool_calls", [])]
    assert functions == [
        {"name": "local_shell", "arguments": '{"type": "exec", "command": ["ls"]}'},
        {"name": "apply_patch", "arguments": '{"type": "delete_file", "path": "a"}'},
        {"name": "shell", "arguments": '{"commands": ["ls"]}'},
    ]
    results = [message for message in found if message["role"] == "tool"]
    assert results == [tool(1, "a.txt"), tool(2, "gone"), tool(3, '[{"stdout": "x"}]')]


def test_what_other_servers_ran_is_left_out_and_named() -> None:
    request = read(
        input=[{"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "user", "content": "x"}]
    )
    assert request.repairs == ("item_left_out:web_search_call",)
    assert request.fields["messages"] == b'[{"role":"user","content":"x"}]'


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,@@"},
         {"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}),
        ({"type": "input_image", "image_url": "https://x", "detail": "low", "file_id": None},
         {"type": "image_url", "image_url": {"url": "https://x", "detail": "low"}}),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
         {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        ({"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"},
         {"type": "file", "file": {"file_data": "AAAA", "filename": "a.pdf"}}),
        ({"type": "input_file", "file_data": "AAAA"}, {"type": "file", "file": {"file_data": "AAAA"}}),
        ({"type": "refusal", "refusal": "No."}, {"type": "refusal", "refusal": "No."}),
    ],
)  # fmt: skip
def test_parts_become_parts(part: dict[str, Any], wanted: dict[str, Any]) -> None:
    text = {"type": "input_text", "text": "See:"}
    content = [{"type": "text", "text": "See:"}, wanted]
    assert messages({"role": "user", "content": [text, part]}) == [{"role": "user", "content": content}]
    assert messages(result(1, [text, part])) == [tool(1, content)]


def test_texts_of_a_message_stay_apart() -> None:
    two = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages({"role": "user", "content": two}) == [{"role": "user", "content": parts}]
    # Two messages of one reply, one of them in parts.
    assert messages(said("x", "msg_r_0"), {"role": "assistant", "id": "msg_r_1", "content": two}) == [
        {"role": "assistant", "content": [{"type": "text", "text": "x"}, *parts]}
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "type"),
        ({"type": 3}, "type"),
        ({"type": "telepathy"}, "type"),
        ({"type": "message"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": ["text"]}, "content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "content[0].file_id"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x", "detail": 1}]}, "content[0].detail"),
        ({"role": "user", "content": [{"type": "input_file", "file_url": "f"}]}, "content[0].file_url"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": 1}}]},
         "content[0].input_audio.data"),
        ({"type": "reasoning", "summary": "so"}, "summary"),
        ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, "content[0].text"),
        ({"type": "reasoning", "encrypted_content": 1}, "encrypted_content"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "name"),
        ({"type": "function_call", "name": "look", "arguments": "{}"}, "call_id"),
        ({"type": "function_call", "name": "look", "call_id": "c", "arguments": {}}, "arguments"),
        ({"type": "function_call", "name": "look", "call_id": "c", "arguments": "", "namespace": 1}, "namespace"),
        ({"type": "custom_tool_call", "name": "patch", "call_id": "c"}, "input"),
        ({"type": "function_call_output", "output": "x"}, "call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "output"),
        ({"type": "shell_call", "call_id": "c", "action": "ls"}, "action"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused_by_its_path(item: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        messages({"role": "user", "content": "hi"}, item)
    assert caught.value.param == f"input[1].{param}"
    assert caught.value.status == 400
