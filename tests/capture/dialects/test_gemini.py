"""The dialect as a whole: an agent's bodies read, errors, models and last replies written."""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import rawjson
from capture.dialects import gemini_content, gemini_request
from capture.dialects.base import Asked, Dialect, Target, with_fields
from capture.dialects.gemini import Gemini
from capture.dialects.gemini_reply import Form, GeminiTranslator
from capture.engines.vllm import Vllm
from capture.errors import CaptureError, ClientError, EngineError
from capture.recorder import Recorder
from tests.playbook import agent, committed, engine, play

dialect: Dialect = Gemini()

ROOT = Path(__file__).parents[3]
CLI = {
    form["name"]: form["body"]
    for form in map(json.loads, (ROOT / "tests/fixtures/agents/gemini-cli.jsonl").read_text("utf-8").splitlines())
}
"""What gemini-cli 0.61 sent, in other words."""

CARD = {"id": "org/tiny", "created": 1_700_000_000, "max_model_len": 16384}
STREAM = Target(model="m", streamed=True)
WHOLE = Target(model="m", streamed=False)
HI: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def body(**fields: Any) -> bytes:
    return json.dumps({**HI, **fields}).encode()


@pytest.mark.parametrize("name", CLI)
def test_an_agent_s_requests(name: str) -> None:
    request = dialect.read(json.dumps(CLI[name]).encode(), target=STREAM)
    assert (request.streamed, request.model, request.repairs, request.undecoded) == (True, "m", (), None)
    assert request.tool_names[:2] == ("list_directory", "run_shell_command")
    assert request.asked == Asked(usage=True)
    assert request.path == "/v1/chat/completions"
    # An agent's thoughts are shown to its main loop, not to its subagents.
    assert request.original == Form(sse=True, thoughts="subagent" not in name or name == "after a subagent")


def test_a_conversation_goes_on_from_itself() -> None:
    first = dialect.read(json.dumps(CLI["first"]).encode(), target=STREAM)
    later = dialect.read(json.dumps(CLI["after a tool call"]).encode(), target=STREAM)
    last = dialect.read(json.dumps(CLI["after a subagent"]).encode(), target=STREAM)
    assert [message.role for message in first.messages] == ["system", "user"]
    assert later.messages[:2] == first.messages
    assert last.messages[:4] == later.messages
    assert later.messages[2].tool_calls[0].arguments == '{"command": "ls -a"}'
    assert later.messages[3].tool_call_id == later.messages[2].tool_calls[0].id
    assert last.tools == first.tools


def test_a_subagent_s_call_without_an_id_keeps_the_one_that_it_got() -> None:
    reminded = dialect.read(json.dumps(CLI["subagent, reminded"]).encode(), target=STREAM)
    shorter = copy.deepcopy(CLI["subagent, reminded"])
    shorter["contents"] = shorter["contents"][:3]
    before = dialect.read(json.dumps(shorter).encode(), target=STREAM)
    assert reminded.messages[: len(before.messages)] == before.messages
    assert before.messages[3].tool_call_id == before.messages[2].tool_calls[0].id


def test_the_chat_request() -> None:
    request = dialect.read(
        body(
            system_instruction={"parts": {"text": "Know."}},
            generationConfig={
                "temperature": 1, "topK": 64, "candidateCount": 2, "responseLogprobs": True, "logprobs": 2,
            },
            tools=[{"functionDeclarations": [{"name": "f"}]}, {"googleSearch": {}}],
            toolConfig={"functionCallingConfig": {"mode": "ANY"}},
        ),
        target=STREAM,
    )  # fmt: skip
    assert {name: json.loads(raw) for name, raw in request.fields.items()} == {
        "model": "m",
        "messages": [{"role": "system", "content": "Know."}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
        "tool_choice": "required",
        "temperature": 1,
        "top_k": 64,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert request.choices == 2
    assert request.sampling == {"temperature": 1, "top_k": 64, "n": 2}
    assert request.constrained == ("tool_choice",)
    assert request.asked == Asked(usage=True, logprobs=True, top_logprobs=2)
    assert request.repairs == ("tool:googleSearch",)


def test_numbers_and_texts_keep_their_values() -> None:
    raw = b'{"contents":[{"parts":[{"text":"\\ud800 \\u2028"}]}],"vendor":NaN,"generationConfig":{"temperature":0.10}}'
    request = dialect.read(raw, target=WHOLE)
    assert request.fields["temperature"] == b"0.1"
    assert request.fields["vendor"] == b"NaN"
    assert json.loads(request.fields["messages"])[0]["content"] == "\ud800 \u2028"
    assert request.undecoded is not None


def test_the_digest_is_of_the_body_and_the_model() -> None:
    plain = dialect.read(b'{"contents":[{"parts":[{"text":"hi"}]}],"labels":{"a":"1","b":"2"}}', target=WHOLE)
    turned = dialect.read(b'{"labels": {"b":"2","a":"1"}, "contents":[{"parts":[{"text":"hi"}]}]}', target=STREAM)
    assert plain.body == turned.body
    assert plain.body != dialect.read(body(), target=WHOLE).body
    assert plain.body != dialect.read(body(), target=Target(model="other", streamed=False)).body


def test_counts() -> None:
    whole = dialect.read(body(systemInstruction={"parts": {"text": "Know."}}), target=WHOLE)
    inner = {**HI, "systemInstruction": {"parts": {"text": "Know."}}, "model": "models/m"}
    target = Target(model="m")
    assert dialect.read_count(json.dumps(inner).encode(), target=target).fields == whole.fields
    nested = json.dumps({"generateContentRequest": inner}).encode()
    assert dialect.read_count(nested, target=target).fields == whole.fields
    assert dialect.counted(7) == b'{"totalTokens":7}'
    with pytest.raises(ClientError) as refused:
        dialect.read_count(b'{"generateContentRequest":{"contents":[{"role":"x"}]}}', target=target)
    assert refused.value.param == "generateContentRequest.contents[0].role"


def test_models() -> None:
    model = json.loads(dialect.model(CARD))
    assert model == {
        "name": "models/org/tiny",
        "version": "1",
        "displayName": "org/tiny",
        "description": "",
        "inputTokenLimit": 16384,
        "outputTokenLimit": 16384,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    unknown = {**CARD, "max_model_len": None}
    assert json.loads(dialect.models([CARD, unknown]))["models"] == [model, json.loads(dialect.model(unknown))]
    assert "inputTokenLimit" not in json.loads(dialect.model(unknown))
    assert json.loads(dialect.models([])) == {"models": []}


def test_errors() -> None:
    told = json.loads(dialect.error(ClientError("wrong_type", "No.", hint="Yes.", param="contents[0]")))["error"]
    assert (told["code"], told["message"], told["status"]) == (400, "No. Yes.", "INVALID_ARGUMENT")
    assert told["details"][0]["reason"] == "wrong_type"
    assert told["details"][1]["fieldViolations"][0]["field"] == "contents[0]"
    busy = json.loads(dialect.error(EngineError("busy", "No.", status=503, retry_after_s=2)))["error"]
    assert (busy["status"], busy["details"][-1]["retryDelay"]) == ("UNAVAILABLE", "2s")
    assert json.loads(dialect.error(CaptureError("fault", "No.")))["error"]["status"] == "INTERNAL"


@pytest.mark.parametrize("sse", [True, False])
@pytest.mark.parametrize("streamed", [True, False])
def test_the_last_reply_ends_an_agent_s_loop(streamed: bool, sse: bool) -> None:
    request = dialect.read(body(), target=Target(model="asked", streamed=streamed, sse=sse))
    kind, raw = dialect.last_reply(request, reply_id="chatcmpl-stop-1", created=1, text="[It is over.]")
    counts = {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0}
    head = {"modelVersion": "asked", "responseId": "chatcmpl-stop-1"}

    def candidate(text: str, **more: Any) -> dict[str, Any]:
        return {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0, **more}

    if not streamed:
        assert kind == "application/json"
        finished = candidate("[It is over.]", finishReason="STOP")
        assert json.loads(raw) == {"candidates": [finished], "usageMetadata": counts, **head}
        return
    chunks = [json.loads(event[6:]) for event in raw.split(b"\n\n")[:-1]] if sse else json.loads(raw)
    assert kind == ("text/event-stream" if sse else "application/json")
    assert chunks == [
        {"candidates": [candidate("[It is over.]")], **head},
        {"candidates": [candidate("", finishReason="STOP")], "usageMetadata": counts, **head},
    ]


def recorder(target: Target) -> Recorder:
    request = dialect.read(body(), target=target)
    return Recorder(request, Vllm().reader(request, model="asked"), translator=dialect.translator(request))


HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
TOLD = b'"modelVersion":"asked","responseId":"chatcmpl-1"}'


def sent(*choices: dict[str, Any], **more: Any) -> bytes:
    return b"data: " + json.dumps({**HEAD, "choices": list(choices), **more}).encode() + b"\n\n"


@pytest.mark.parametrize("sse", [True, False])
def test_a_stream_through_the_recorder(sse: bool) -> None:
    """Ids and logprobs stay out, comments too; from the finish on all is held."""
    one = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    first = b'{"candidates":[{"content":{"parts":[{"text":"a"}],"role":"model"},"index":0}],' + TOLD
    last = (
        b'{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"index":0,"finishReason":"STOP"}],'
        b'"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2,"totalTokenCount":5},' + TOLD
    )
    play(
        recorder(Target(model="asked", streamed=True, sse=sse)),
        engine.answers(200),
        engine.sends(
            sent(
                {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None},
                prompt_token_ids=[1, 2, 3],
            ),
            b": a comment\n\n",
        ),
        agent.gets_nothing,
        engine.sends(sent({"index": 0, "delta": {"content": "a"}, "logprobs": one, "token_ids": [7]})),
        agent.gets(b"data: " + first + b"\n\n" if sse else b"[" + first),
        engine.sends(sent({"index": 0, "delta": {}, "logprobs": one, "token_ids": [8], "finish_reason": "stop"})),
        agent.gets_nothing,
        engine.sends(sent(usage=usage), b"data: [DONE]\n\n"),
        agent.gets_nothing,
        engine.ends,
        committed,
        agent.gets(b"data: " + last + b"\n\n" if sse else b",\r\n" + last + b"]"),
        agent.sees_a_clean_end,
    )


def test_an_error_through_the_recorder_keeps_its_words() -> None:
    told = {"error": {"message": "This model's maximum context length is 16 tokens.", "type": "BadRequestError"}}
    play(
        recorder(STREAM),
        engine.answers(400),
        engine.sends_whole(told),
        committed,
        agent.gets(
            b'{"error":{"code":400,"message":"This model\'s maximum context length is 16 tokens.",'
            b'"status":"INVALID_ARGUMENT"}}'
        ),
    )


# A body with every field of the schema, one path of which the fuzz replaces.
EVERYTHING: dict[str, Any] = {
    "model": "models/m",
    "systemInstruction": {"role": "user", "parts": [{"text": "Know."}]},
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "hi"},
                {"inlineData": {"mimeType": "image/png", "data": "AAAA", "displayName": "x"}},
                {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}},
                {"inlineData": {"mimeType": "text/plain", "data": "aGk="}},
                {"fileData": {"mimeType": "video/mp4", "fileUri": "https://x.org/a.mp4"}, "videoMetadata": {"fps": 1}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"text": "I look.", "thoughtSignature": "c2ln"},
                {"functionCall": {"id": "c1", "name": "look", "args": {"a": [1.0]}}, "thoughtSignature": "c2ln"},
                {"functionCall": {"name": "wait"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "id": "c1",
                        "name": "look",
                        "response": {"output": "x"},
                        "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}],
                        "willContinue": False,
                    }
                },
                {"functionResponse": {"name": "wait", "response": {"error": "y"}}},
                {"functionResponse": {"name": "nobody's", "response": {}}},
            ],
        },
        {"role": "function", "parts": [{"functionResponse": {"name": "late", "response": {}}}]},
    ],
    "tools": [
        {
            "functionDeclarations": [
                {
                    "name": "look",
                    "description": "Look.",
                    "parameters": {
                        "type": "OBJECT",
                        "properties": {"a": {"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": "1"}},
                        "required": ["a"],
                        "propertyOrdering": ["a"],
                        "anyOf": [{"type": "OBJECT", "nullable": True}],
                    },
                    "behavior": "BLOCKING",
                },
                {"name": "wait", "parametersJsonSchema": {"type": "object"}},
            ]
        },
        {"googleSearch": {}},
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}, "retrievalConfig": {}},
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "generationConfig": {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 3,
        "maxOutputTokens": 10,
        "stopSequences": ["END"],
        "seed": 1,
        "candidateCount": 2,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.1,
        "responseMimeType": "application/json",
        "responseSchema": {"type": "OBJECT", "properties": {"b": {"type": "STRING", "enum": ["x"], "nullable": True}}},
        "responseModalities": ["TEXT"],
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 5, "thinkingLevel": "LOW"},
        "responseLogprobs": True,
        "logprobs": 2,
        "mediaResolution": "LOW",
    },
    "labels": {"a": "b"},
    "chat_template_kwargs": {"x": 1},
}  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, one in inner for path in paths(one, (*at, key)))]


def replaced(path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(EVERYTHING)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


SCALARS = st.sampled_from(
    [None, True, False, 0, -1, 1.5, 2**70, 10**400, float("nan"), "", "x", "\ud800", [], {}, [None], {"text": 5}]
)
KEYS = st.sampled_from(["type", "text", "parts", "x", "thought", "functionCall", "name", "inline_data"])
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=5
)


def taken(raw: bytes, read: Any = dialect.read) -> bool:
    """Read a body and say if it was taken; what is refused must be a 400 in the dialect's shape."""
    refusal: ClientError | None = None
    try:
        request = read(raw, target=STREAM)
    except ClientError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400
        assert json.loads(dialect.error(refusal))["error"]["status"] == "INVALID_ARGUMENT"
        return False
    msgspec.json.encode(request.messages)
    rawjson.split(rawjson.join(with_fields(request.fields, Vllm().inject(request))))
    return True


def test_everything_is_taken() -> None:
    raw = json.dumps(EVERYTHING).encode()
    assert taken(raw)
    assert dialect.read(raw, target=STREAM).repairs == (
        "part.videoMetadata",
        "function_response_media",
        "tool:googleSearch",
        "toolConfig.retrievalConfig",
        "thinkingConfig.thinkingBudget",
        "generationConfig.mediaResolution",
    )


@given(st.sampled_from(paths(EVERYTHING)), JSON)
def test_a_wrong_value_anywhere_is_taken_or_refused_by_name(path: tuple[Any, ...], value: Any) -> None:
    raw = json.dumps(replaced(path, value)).encode()
    assert taken(raw, dialect.read_count) == taken(raw)


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, True, 10**400], ids=lambda value: repr(value)[:9])
def test_each_value_of_a_wrong_type(value: Any) -> None:
    refused = sum(not taken(json.dumps(replaced(path, value)).encode()) for path in paths(EVERYTHING))
    assert refused > 20


@given(st.integers(0, 10_000))
def test_a_body_that_was_cut_is_refused(at: int) -> None:
    raw = json.dumps(EVERYTHING).encode()
    assert not taken(raw[: at % len(raw)])


@pytest.mark.parametrize("depth", [100, 2_000, 100_000])
def test_a_body_that_is_too_deep_is_refused_at_most(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    schema = b'{"items":' * depth + b"{}" + b"}" * depth
    tool = b'"tools":[{"functionDeclarations":[{"name":"f","parameters":' + schema + b"}]}]"
    for place in (b'"labels":' + deep, b'"systemInstruction":' + deep, b'"vendor":' + deep, tool):
        taken(b'{"contents":[{"parts":[{"text":"a"}]}],' + place + b"}")


def test_a_translator_is_made_for_each_reply() -> None:
    request = dialect.read(body(), target=STREAM)
    one, other = dialect.translator(request), dialect.translator(request)
    assert isinstance(one, GeminiTranslator)
    assert one is not other


def test_no_comments_and_no_reference_to_earlier_replies() -> None:
    assert (dialect.name, dialect.bears_comments, dialect.refers_to(body())) == ("gemini", False, None)


def test_the_docs_tables_are_the_code_s() -> None:
    text = (ROOT / "docs" / "dialects" / "gemini.md").read_text("utf-8")
    for table in (gemini_request.IGNORED, gemini_content.UNSAID):
        assert "|---|---|\n" + "".join(f"| `{name}` | {why} |\n" for name, why in table.items()) + "\n" in text
    for name, why in gemini_content.LEFT_OUT.items():
        assert f"| `part.{name}` | `{name}` | {why} |\n" in text
