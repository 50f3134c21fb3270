"""Contents to messages, part by part."""

import base64
import json
from typing import Any

import pytest

from capture.dialects.gemini_content import chat_messages
from capture.dialects.gemini_fields import Node
from capture.dialects.gemini_signature import sign
from capture.errors import ClientError

PNG = base64.b64encode(b"\xff\xefPNG").decode()


def user(*parts: dict[str, Any], role: str | None = "user") -> dict[str, Any]:
    return {"parts": list(parts)} | ({} if role is None else {"role": role})


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return user(*parts, role="model")


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"text": said, **more}


def call(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, **more}}


def result(name: str = "look", response: Any = None, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {} if response is None else response, **more}}


def messages(*contents: dict[str, Any], system: Any = None) -> tuple[list[dict[str, Any]], list[str]]:
    notes: list[str] = []
    body = {"contents": list(contents), "systemInstruction": system}
    return chat_messages(Node(body, ""), notes.append), notes


def said(*contents: dict[str, Any]) -> list[dict[str, Any]]:
    made, notes = messages(*contents)
    assert notes == []
    return made


def test_texts() -> None:
    assert said(user(text("hi"))) == [{"role": "user", "content": "hi"}]
    assert said(user(text("hi"), role=None)) == [{"role": "user", "content": "hi"}]
    assert said(user(text("a"), text(""), text("b"))) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    assert said(user(text(""))) == said(user()) == [{"role": "user", "content": ""}]
    assert said(user(text("a")), user(text("b"))) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_the_system_s_instruction() -> None:
    made, _ = messages(user(text("hi")), system={"parts": [text("a"), text(""), text("b")], "role": "user"})
    assert made[0] == {"role": "system", "content": "a\nb"}
    made, _ = messages(user(text("hi")), system={"parts": {"text": ""}})
    assert [message["role"] for message in made] == ["user"]
    with pytest.raises(ClientError) as refused:
        messages(user(text("hi")), system={"parts": [{"inlineData": {}}]})
    assert refused.value.param == "systemInstruction.parts[0].inlineData"


def test_a_turn_of_the_model() -> None:
    turn = model(text("Hm.", thought=True), text("I lo"), text("ok."), call(id="c1", args={"deep": 2.0, "é": "ü"}))
    assert said(user(text("hi")), turn)[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning": "Hm.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"deep": 2.0, "é": "ü"}'}}
        ],
    }
    assert said(model(call(id="c1")))[0]["content"] is None
    assert said(model(text("")))[0] == {"role": "assistant", "content": ""}
    assert said(model())[0] == {"role": "assistant", "content": ""}


def test_contents_of_the_model_that_follow_each_other_are_one_turn() -> None:
    pieces = [model(text("Hm.", thought=True)), model(text("I lo")), model(text("ok.")), model(call(id="c1"))]
    whole = model(text("Hm.", thought=True), text("I look."), call(id="c1"))
    assert said(user(text("hi")), *pieces, user(result(id="c1"))) == said(
        user(text("hi")), whole, user(result(id="c1"))
    )


@pytest.mark.parametrize(
    ("turn", "reasoning"),
    [
        (model(text("I", thoughtSignature=sign("Hm."))), "Hm."),
        (model(call(), text("", thoughtSignature=sign("Hm."))), "Hm."),
        (model({**call(), "thoughtSignature": sign("Hm. ")}, {**call(), "thought_signature": sign("Ha.")}), "Hm. Ha."),
        (model({"thoughtSignature": sign("Hm.")}), "Hm."),
        (model(text("Ho.", thought=True), {**call(), "thoughtSignature": sign("Hm.")}), "Ho."),
        (model({**call(), "thoughtSignature": "c2ln"}), None),
        (model({"thought": True, "thoughtSignature": "c2ln"}), None),
    ],
)
def test_a_signature_brings_its_thought_back(turn: dict[str, Any], reasoning: str | None) -> None:
    (message,) = said(turn)
    assert message.get("reasoning") == reasoning


def answered(*contents: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Each message's role, with the ids that it names."""
    return [
        (message["role"], [call["id"] for call in message.get("tool_calls", ())] or [message["tool_call_id"]])
        for message in said(*contents)
        if message["role"] != "user"
    ]


def test_results_by_id() -> None:
    turn = model(call(id="c1"), call(id="c2"))
    assert answered(turn, user(result(id="c2"), result(id="c1"))) == [
        ("assistant", ["c1", "c2"]), ("tool", ["c2"]), ("tool", ["c1"]),
    ]  # fmt: skip


@pytest.mark.parametrize("role", ["user", "function", "tool"])
def test_results_by_name_and_order(role: str) -> None:
    turn = model(call("look", args={"at": 1}), call("wait"), call("look", args={"at": 1}))
    (_, made), *results = answered(turn, user(result("wait"), result("look"), result("look"), role=role))
    assert len(set(made)) == 3
    assert results == [("tool", [made[1]]), ("tool", [made[0]]), ("tool", [made[2]])]


def test_a_result_whose_id_no_call_has_goes_by_its_name() -> None:
    # A subagent of gemini-cli 0.61 sends its calls without ids, and their results with some.
    (_, (made,)), results = answered(model(call()), user(result(id="d3#0-0")))
    assert results == ("tool", [made])


def test_a_result_without_a_call() -> None:
    assert answered(user(result(id="c9"))) == [("tool", ["c9"])]
    ((_, (made,)),) = answered(user(result()))
    assert made.startswith("call_")


def test_made_ids_are_the_same_in_the_next_request() -> None:
    turns = [user(text("hi")), model(call()), user(result()), model(call()), user(result())]
    first, second = answered(*turns[:3]), answered(*turns)
    assert second[:2] == first
    assert second[2][1] != second[0][1]


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        ({"output": "a.txt"}, "a.txt"),
        ({"output": {"n": 1.0}}, '{"n": 1.0}'),
        ({"output": "a", "error": "b"}, '{"output": "a", "error": "b"}'),
        ({"error": "é"}, '{"error": "é"}'),
        ({}, "{}"),
    ],
)
def test_a_result_s_text(response: Any, shown: str) -> None:
    assert said(user(result(response=response)))[0]["content"] == shown


def test_results_and_words_keep_their_order() -> None:
    made = said(model(call(id="c")), user(text("before"), result(id="c", response={"output": "x"}), text("behind")))
    assert [(message["role"], message["content"]) for message in made[1:]] == [
        ("user", "before"),
        ("tool", "x"),
        ("user", "behind"),
    ]


def test_a_result_s_image_opens_the_message_behind() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    made, notes = messages(user(result(response={"output": "x"}, parts=[image]), text("and?")))
    assert [message["role"] for message in made] == ["tool", "user"]
    assert [part["type"] for part in made[1]["content"]] == ["image_url", "text"]
    assert notes == ["function_response_media"]
    made, _ = messages(user(result(parts=[image])))
    assert made[1]["content"][0]["type"] == "image_url"


@pytest.mark.parametrize("data", [PNG, PNG.replace("+", "-").replace("/", "_"), PNG.rstrip("=")])
@pytest.mark.parametrize(
    ("mime", "part"),
    [
        ("image/png", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
        ("Video/MP4", {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{PNG}"}}),
        ("audio/wav", {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}),
        ("audio/mpeg; rate=1", {"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}),
    ],
)
def test_media(mime: str, part: dict[str, Any], data: str) -> None:
    assert said(user(text("a"), {"inlineData": {"mimeType": mime, "data": data, "displayName": "x"}})) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, part]}
    ]


def test_a_text_s_bytes_are_a_text() -> None:
    data = base64.b64encode("é\n".encode()).decode()
    assert said(user({"inline_data": {"mime_type": "text/plain", "data": data}})) == [
        {"role": "user", "content": "é\n"}
    ]


def test_a_file_by_url_is_the_rollout_s_to_allow() -> None:
    file = {"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/a.png"}}
    assert said(user(file))[0]["content"] == [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]


@pytest.mark.parametrize(
    ("part", "at"),
    [
        ({"inlineData": {"mimeType": "image/png", "data": "A"}}, "inlineData.data"),
        ({"inlineData": {"mimeType": "image/png", "data": ""}}, "inlineData.data"),
        ({"inlineData": {"mimeType": "image/png", "data": 5}}, "inlineData.data"),
        ({"inlineData": {"mimeType": "text/plain", "data": "/w=="}}, "inlineData.data"),
        ({"inlineData": {"mimeType": "png", "data": PNG}}, "inlineData.mimeType"),
        ({"inlineData": {"data": PNG}}, "inlineData.mimeType"),
        ({"inlineData": {"mimeType": "application/pdf", "data": PNG}}, "inlineData.mimeType"),
        ({"inlineData": []}, "inlineData"),
        ({"fileData": {"mimeType": "application/pdf", "fileUri": "https://x/a"}}, "fileData.mimeType"),
        ({"fileData": {"mimeType": "image/png", "fileUri": "gs://x/a"}}, "fileData.fileUri"),
        ({"fileData": {"mimeType": "image/png", "fileUri": "https://generativelanguage.googleapis.com/v1beta/files/a"}},
         "fileData.fileUri"),
        ({"executableCode": {"code": "1"}}, "executableCode"),
        ({"codeExecutionResult": {"output": "1"}}, "codeExecutionResult"),
        ({"functionCall": {"name": "x"}}, "functionCall"),
        ({"functionResponse": {"name": "x", "response": []}}, "functionResponse.response"),
        ({"functionResponse": {"name": "x", "parts": [{"text": "x"}]}}, "functionResponse.parts[0].text"),
        ({"functionResponse": {"name": 5}}, "functionResponse.name"),
        ({"text": 5}, "text"),
        ({"text": "a", "inlineData": {}}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_what_a_user_can_t_say(part: dict[str, Any], at: str) -> None:
    with pytest.raises(ClientError) as refused:
        messages(user(text("a"), part))
    assert (refused.value.status, refused.value.param) == (400, "contents[0].parts[1]" + (f".{at}" if at else ""))


@pytest.mark.parametrize(
    ("part", "at"),
    [
        (result(), "functionResponse"),
        ({"inlineData": {"mimeType": "image/png", "data": PNG}}, "inlineData"),
        ({"executable_code": {}}, "executableCode"),
        ({"functionCall": {}}, "functionCall.name"),
        ({"functionCall": {"name": "x", "args": []}}, "functionCall.args"),
        ({"functionCall": {"name": "x", "id": 5}}, "functionCall.id"),
        ({"text": "x", "thought": "yes"}, "thought"),
        ({"text": "x", "thoughtSignature": 5}, "thoughtSignature"),
    ],
)
def test_what_a_model_can_t_say(part: dict[str, Any], at: str) -> None:
    with pytest.raises(ClientError) as refused:
        messages(user(text("a")), model(part))
    assert refused.value.param == f"contents[1].parts[0].{at}"


@pytest.mark.parametrize("role", ["system", "assistant", "USER"])
def test_unknown_roles(role: str) -> None:
    with pytest.raises(ClientError) as refused:
        messages(user(text("a"), role=role))
    assert refused.value.param == "contents[0].role"


@pytest.mark.parametrize("contents", [None, [], "hi", [None], ["hi"]])
def test_no_contents(contents: Any) -> None:
    with pytest.raises(ClientError, match="contents"):
        chat_messages(Node({"contents": contents}, ""), print)


def test_what_stays_out_is_named_once_each() -> None:
    made, notes = messages(
        user({"text": "a", "videoMetadata": {"fps": 1}, "partMetadata": {}}, {"holo_gram": {}}, {"x" * 99: 1}),
        model(text("b"), {"hologram": {}}),
    )
    assert [message["content"] for message in made] == ["a", "b"]
    assert notes == ["part.videoMetadata", "part:holoGram", "part:" + "x" * 64, "part:hologram"]


def test_arguments_are_told_as_they_came() -> None:
    (message,) = said(model(call(args={"a": [1e300, "\u2028", None]}, id="c")))
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": [1e300, "\u2028", None]}
