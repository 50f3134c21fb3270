"""A body's fields to the chat request."""

from typing import Any

import pytest

from capture.dialects.gemini_fields import Node
from capture.dialects.gemini_request import chat_request, shows_thoughts
from capture.errors import ClientError

HI = {"contents": [{"parts": [{"text": "hi"}]}]}
TOOLS = [{"functionDeclarations": [{"name": "look"}, {"name": "wait"}]}]
EMPTY = {"type": "object", "properties": {}}


def chat(**fields: Any) -> tuple[dict[str, Any], list[str]]:
    made, repairs = chat_request(Node({**HI, **fields}, ""), model="m", streamed=False)
    assert made.pop("model") == "m"
    made.pop("messages")
    return made, repairs


def only(**fields: Any) -> dict[str, Any]:
    made, repairs = chat(**fields)
    assert repairs == []
    return made


def refused(**fields: Any) -> ClientError:
    with pytest.raises(ClientError) as error:
        chat(**fields)
    assert error.value.status == 400
    return error.value


def test_model_and_stream_are_the_path_s() -> None:
    made, _ = chat_request(Node({**HI, "model": "models/other"}, ""), model="m", streamed=True)
    assert (made["model"], made["stream"], made["stream_options"]) == ("m", True, {"include_usage": True})
    made, _ = chat_request(Node(HI, ""), model=None, streamed=False)
    assert list(made) == ["messages"]


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"temperature": 1, "topP": 0.95, "topK": 64.0}, {"temperature": 1, "top_p": 0.95, "top_k": 64}),
        ({"maxOutputTokens": 5, "seed": -3, "candidateCount": 2}, {"max_tokens": 5, "seed": -3, "n": 2}),
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"stopSequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stopSequences": []}, {}),
        ({"presencePenalty": 0.5, "frequencyPenalty": -0.5}, {"presence_penalty": 0.5, "frequency_penalty": -0.5}),
        ({"responseLogprobs": True, "logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"responseLogprobs": True}, {"logprobs": True, "top_logprobs": 0}),
        ({"logprobs": 3}, {}),
        ({"responseModalities": ["TEXT"]}, {}),
        ({"temperature": None}, {}),
        ({"thinkingConfig": {"includeThoughts": True}}, {}),
        ({"thinkingConfig": {"thinkingBudget": -1}}, {}),
        ({"thinkingConfig": {"thinkingBudget": 0}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinkingConfig": {"thinkingLevel": "LOW"}}, {"reasoning_effort": "low"}),
        ({"thinkingConfig": {"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}}, {}),
        ({"responseMimeType": "text/plain"}, {}),
        ({"responseMimeType": "application/json"}, {"response_format": {"type": "json_object"}}),
        ({"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a", "b"]}},
         {"structured_outputs": {"choice": ["a", "b"]}}),
    ],
)  # fmt: skip
def test_generation_config(config: dict[str, Any], fields: dict[str, Any]) -> None:
    assert only(generationConfig=config) == fields
    assert only(generation_config=config) == fields


@pytest.mark.parametrize("mime", [{}, {"responseMimeType": "application/json"}])
def test_a_schema_for_the_reply(mime: dict[str, Any]) -> None:
    want = {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}
    assert only(generationConfig={"responseSchema": {"type": "OBJECT"}, **mime}) == {"response_format": want}
    assert only(generationConfig={"responseJsonSchema": {"type": "object"}, **mime}) == {"response_format": want}


def test_a_budget_for_thinking_is_named() -> None:
    made, repairs = chat(generationConfig={"thinkingConfig": {"thinkingBudget": 99}}, chat_template_kwargs={"x": 1})
    assert made == {"chat_template_kwargs": {"enable_thinking": True, "x": 1}}
    assert repairs == ["thinkingConfig.thinkingBudget"]


def test_what_stays_out_is_named() -> None:
    _, repairs = chat(
        generationConfig={"mediaResolution": "LOW", "audio_timestamp": True},
        tools=[{"googleSearch": {}}, {"code_execution": {}, "functionDeclarations": [{"name": "f", "response": {}}]}],
        toolConfig={"retrievalConfig": {}},
    )
    assert repairs == [
        "tool:googleSearch",
        "tool:codeExecution",
        "function.response",
        "toolConfig.retrievalConfig",
        "generationConfig.mediaResolution",
        "generationConfig.audioTimestamp",
    ]


def test_what_passes_over() -> None:
    assert only(safetySettings=[{}], safety_settings=[], labels={"a": "b"}, store=True, serviceTier="x") == {}


def test_what_is_not_the_api_s_goes_on() -> None:
    assert only(min_p=0.1, structured_outputs={"regex": "a"}, generationConfig={"temperature": 0}) == {
        "min_p": 0.1,
        "structured_outputs": {"regex": "a"},
        "temperature": 0,
    }


@pytest.mark.parametrize("name", ["messages", "stream", "n", "tool_choice", "response_format", "logprobs"])
def test_what_this_dialect_says_in_its_own_way_is_refused_in_chat_s(name: str) -> None:
    error = refused(**{name: 1})
    assert (error.code, error.param) == ("unknown_field", name)


def test_functions() -> None:
    made = only(
        tools=[
            {
                "function_declarations": [
                    {"name": "a", "description": "A.", "parameters": {"type": "OBJECT", "nullable": True}},
                    {"name": "b", "parametersJsonSchema": {"type": "object", "x": 1}, "behavior": "BLOCKING"},
                ]
            },
            {"functionDeclarations": {"name": "c"}},
            {},
        ]
    )
    assert made == {
        "tools": [
            {"type": "function", "function": function}
            for function in (
                {"name": "a", "description": "A.", "parameters": {"type": ["object", "null"]}},
                {"name": "b", "parameters": {"type": "object", "x": 1}},
                {"name": "c", "parameters": EMPTY},
            )
        ]
    }
    assert only(tools=[]) == {}


@pytest.mark.parametrize(
    ("calling", "choice"),
    [
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "ANY"}, "required"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "any"}, "required"),
        ({"mode": "VALIDATED"}, "auto"),
        ({"mode": "MODE_UNSPECIFIED"}, None),
        ({}, None),
        ({"mode": "ANY", "allowedFunctionNames": ["wait"]}, {"type": "function", "function": {"name": "wait"}}),
        ({"mode": "ANY", "allowedFunctionNames": ["wait", "look"]}, "required"),
        ({"mode": "NONE", "allowedFunctionNames": ["wait"]}, "none"),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["wait", "look"]}, "auto"),
    ],
)
def test_which_functions_may_be_called(calling: dict[str, Any], choice: Any) -> None:
    made = only(tools=TOOLS, toolConfig={"functionCallingConfig": calling})
    assert made.get("tool_choice") == choice
    # Engines refuse a choice without tools.
    if calling.get("mode", "").upper() != "ANY" and "allowedFunctionNames" not in calling:
        assert only(toolConfig={"functionCallingConfig": calling}) == {}


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"generationConfig": []}, "generationConfig"),
        ({"generationConfig": {"temperature": "1"}}, "generationConfig.temperature"),
        ({"generationConfig": {"topK": 0.5}}, "generationConfig.topK"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"candidateCount": 129}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"stopSequences": [5]}}, "generationConfig.stopSequences[0]"),
        ({"generationConfig": {"logprobs": 21}}, "generationConfig.logprobs"),
        ({"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}, "generationConfig.responseModalities[1]"),
        ({"generationConfig": {"responseMimeType": "image/png"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseSchema"),
        ({"generationConfig": {"responseJsonSchema": []}}, "generationConfig.responseJsonSchema"),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "VAST"}}},
         "generationConfig.thinkingConfig.thinkingLevel"),
        ({"generationConfig": {"thinkingConfig": {"includeThoughts": 1}}},
         "generationConfig.thinkingConfig.includeThoughts"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"tools": [{"functionDeclarations": [{"name": "f", "parameters": []}]}]},
         "tools[0].functionDeclarations[0].parameters"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}}},
         "toolConfig.functionCallingConfig.allowedFunctionNames[0]"),
        ({"tools": [*TOOLS, {"functionDeclarations": [{"name": "f"}]}],
          "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look", "wait"]}}},
         "toolConfig.functionCallingConfig.allowedFunctionNames"),
        ({"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["look"]}}},
         "toolConfig.functionCallingConfig.allowedFunctionNames"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, Any], at: str) -> None:
    assert refused(**fields).param == at


def test_contents_that_end_with_the_model_s_own_text_are_gone_on_with() -> None:
    begun = [*HI["contents"], {"role": "model", "parts": [{"text": "It is "}]}]
    assert only(contents=begun) == {"continue_final_message": True, "add_generation_prompt": False}
    called = [*HI["contents"], {"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]
    assert only(contents=called) == {}


def test_thoughts_are_shown_to_who_asked() -> None:
    for config, shown in ((None, False), ({}, False), ({"thinkingConfig": {"includeThoughts": True}}, True)):
        assert shows_thoughts(Node({"generationConfig": config}, "")) is shown
