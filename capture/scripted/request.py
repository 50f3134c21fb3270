"""A chat request: decoded, checked, and refused in vLLM's words.

Rules, as vLLM 0.32 has them (entrypoints/openai/chat_completion/protocol.py, sampling_params.py)
1. Unknown fields are ignored. Known ones are converted leniently (`"5"` is 5) and a wrong type is a 400 that names
   it.
2. What the JSON decoder or a field's type refuses has the error type `Bad Request`; what the engine refuses,
   `BadRequestError`; an unknown model, `NotFoundError`. Each carries `param` and `code`.
3. Without `tool_choice`, tools mean `auto`; no tools mean `none`.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import msgspec

from capture.scripted.template import Message

_NO_OBJECT = "Input should be a valid dictionary or object to extract fields from"
_EMPTY = "allowed_token_ids is not None and empty!"

# How much of a wrong value is shown.
_SHOWN = 200

# Pydantic's name and words for a wrong type, by the type that msgspec expected; and for a string that does not parse.
_PYDANTIC = {
    "int": ("int_type", "Input should be a valid integer"),
    "float": ("float_type", "Input should be a valid number"),
    "bool": ("bool_type", "Input should be a valid boolean"),
    "str": ("string_type", "Input should be a valid string"),
    "array": ("list_type", "Input should be a valid list"),
    "object": ("model_attributes_type", _NO_OBJECT),
}
_PARSED = {
    "int_type": ("int_parsing", "Input should be a valid integer, unable to parse string as an integer"),
    "float_type": ("float_parsing", "Input should be a valid number, unable to parse string as a number"),
    "bool_type": ("bool_parsing", "Input should be a valid boolean, unable to interpret input"),
}

# vLLM's --max-logprobs, by default.
_MAX_LOGPROBS = 20


class RequestError(Exception):
    """Raise to answer a request with an error; holds the status and the JSON body."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        """Keep the parts of vLLM's error object; `code` in it is the status."""
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def invalid(kind: str, where: str, message: str, value: Any) -> RequestError:
    """Make the refusal that vLLM's validation gives for one field; `where` is like `body.messages`."""
    shown = str(value)[:_SHOWN]
    if isinstance(value, dict | list):
        shown = f"<{type(value).__name__} of {len(value)} items>"
    detail = {"type": kind, "loc": where, "msg": message, "input": shown}
    return RequestError(f"1 validation error:\n  {detail}", kind="Bad Request", param=where)


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants told while a reply streams."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The constraints that the built-in rules honour; a regex or a grammar is left to the rules file."""

    choice: list[str] | None = None
    json: dict[str, Any] | str | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a chat request that the engine reads; everything else passes unread."""

    messages: list[Message]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    # Honoured with `allowed_token_ids` only; a script has the length that it has.
    min_tokens: int = 0
    seed: int | None = None
    temperature: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    allowed_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    include_reasoning: bool = True
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: dict[str, Any] | None = None
    request_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def given_prompt(self) -> list[int] | None:
        """The prompt's ids, where they are given in the messages' place.

        vLLM 0.32 ignores them with `echo`, and where a message has more than text.
        """
        ids = (self.kv_transfer_params or {}).get("prompt_token_ids")
        return None if ids is None or self.echo or any(_is_media(message) for message in self.messages) else ids

    @property
    def thinking(self) -> bool:
        """Whether the template leaves thinking to the model."""
        return (self.chat_template_kwargs or {}).get("enable_thinking", True) is not False

    @property
    def output_limit(self) -> int | None:
        """The most tokens asked for, by either name; the newer one counts first."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def parses_tools(self) -> bool:
        """Whether the tool parser reads the reply."""
        return self.tool_choice != "none"

    @property
    def forced_tool(self) -> str | None:
        """The name of the tool that `tool_choice` names, if it names one."""
        if isinstance(self.tool_choice, dict):
            return str(self.tool_choice["function"]["name"])
        return None

    @property
    def role(self) -> str:
        """The role of the reply: the last message's, where no generation prompt is wanted."""
        return "assistant" if self.add_generation_prompt else str(self.messages[-1].get("role"))


def _is_media(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") not in ("text", "input_text") for part in content
    )


def decode_json(body: bytes, content_type: str) -> dict[str, Any]:
    """Decode a request's body. Raises RequestError for another type, malformed JSON, and what is no object."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RequestError(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request"
        )
    if not body:
        raise invalid("missing", "body", "Field required", None)
    try:
        data = json.loads(body)
    except json.JSONDecodeError as error:
        where = f"body.{error.pos}"
        detail = {"type": "json_invalid", "loc": where, "msg": "JSON decode error", "input": "<dict of 0 items>"}
        detail_text = str(detail | {"ctx": {"error": error.msg}})
        raise RequestError(f"1 validation error:\n  {detail_text}", kind="Bad Request", param=where) from None
    except UnicodeDecodeError:
        refusal = RequestError("There was an error parsing the body")
        refusal.body = {"detail": "There was an error parsing the body"}
        raise refusal from None
    if not isinstance(data, dict):
        raise invalid("model_attributes_type", "body", _NO_OBJECT, data)
    return data


def parse_chat(data: dict[str, Any], *, model: str, max_model_len: int, vocabulary: int) -> ChatRequest:
    """Check a decoded chat request and give its record. Raises RequestError."""
    if "messages" not in data:
        raise invalid("missing", "body.messages", "Field required", data)
    if data.get("tools") == []:
        raise RequestError(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely. "
            "(parameter=tools)",
            param="tools",
        )
    if data.get("tool_choice") is None:
        data = data | {"tool_choice": "auto" if data.get("tools") else "none"}
    # Pydantic, which vLLM checks with, takes 0, 1 and a few words for a bool; so does msgspec's lenient mode.
    if isinstance(flag := data.get("logprobs"), int | float) and not isinstance(flag, bool) and flag not in (0, 1):
        message = "Input should be a valid boolean, unable to interpret input"
        raise invalid("bool_parsing", "body.logprobs", message, flag)
    try:
        request = msgspec.convert(data, ChatRequest, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), data) from None
    check_model(request.model, model)
    _check_tools(request)
    _check_logprobs(request, vocabulary)
    _check_sampling(request, max_model_len=max_model_len, vocabulary=vocabulary)
    _check_given_prompt(request, max_model_len=max_model_len, vocabulary=vocabulary)
    return request


def _wrong_type(error: str, data: Any) -> RequestError:
    """Say in pydantic's words what msgspec says in its own: "Expected `int | null`, got `str` - at `$.n`"."""
    message, _, path = error.partition(" - at `$")
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", path)
    where = ".".join(["body", *(key or index for key, index in steps)])
    with contextlib.suppress(LookupError, TypeError):
        for key, index in steps:
            data = data[key] if key else data[int(index)]
    expected = re.match(r"Expected `(\w+)", message)
    kind, words = _PYDANTIC.get(expected.group(1) if expected else "", ("type", message))
    if isinstance(data, str):
        kind, words = _PARSED.get(kind, (kind, words))
    return invalid(kind, where, words, data)


def check_model(asked: str | None, served: str) -> None:
    """Raise RequestError unless the model is the one served or none is named."""
    if asked and asked != served:
        message = f"The model `{asked}` does not exist. Valid aliases: {served}."
        raise RequestError(message, status=404, kind="NotFoundError", param="model")


def _check_tools(request: ChatRequest) -> None:
    choice = request.tool_choice
    if choice != "none" and not request.tools:
        message = "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"
        raise RequestError(message, param="tool_choice")
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        message = (
            f"Invalid value for `tool_choice`: {choice}! "
            'Only named tools, "none", "auto" or "required" are supported. (parameter=tool_choice)'
        )
        raise RequestError(message, param="tool_choice")
    for n, tool in enumerate(request.tools or ()):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            where = f"body.tools.{n}.function" + (".name" if isinstance(function, dict) else "")
            raise invalid("missing", where, "Field required", function if isinstance(function, dict) else tool)
    if isinstance(choice, dict):
        function = choice.get("function")
        names = [tool["function"]["name"] for tool in request.tools or ()]
        if not isinstance(function, dict) or function.get("name") not in names:
            message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise RequestError(f"{message} (parameter=tool_choice)", param="tool_choice")


def _check_logprobs(request: ChatRequest, vocabulary: int) -> None:
    wanted = request.top_logprobs or 0
    if wanted and not request.logprobs:
        message = "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"
        raise RequestError(message, param="top_logprobs")
    if wanted < -1:
        message = f"`top_logprobs` must be a positive value or -1. (parameter=top_logprobs, value={wanted})"
        raise RequestError(message, param="top_logprobs")
    wanted = vocabulary if wanted < 0 else wanted
    if wanted > _MAX_LOGPROBS:
        message = f"Requested sample logprobs of {wanted}, which is greater than max allowed: {_MAX_LOGPROBS}"
        raise RequestError(f"{message} (parameter=logprobs, value={wanted})", param="logprobs")
    asked = request.prompt_logprobs
    if asked is not None and request.stream and asked:
        message = "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"
        raise RequestError(message, param="prompt_logprobs")
    if asked is not None and not 0 <= asked <= _MAX_LOGPROBS:
        message = f"Requested prompt logprobs of {asked}, which is greater than max allowed: {_MAX_LOGPROBS}"
        raise RequestError(f"{message} (parameter=prompt_logprobs, value={asked})", param="prompt_logprobs")


def _check_given_prompt(request: ChatRequest, *, max_model_len: int, vocabulary: int) -> None:
    """Check ids that are given in the messages' place, in vLLM's words (`renderers/online_renderer.py`, 0.32)."""
    ids: Any = request.given_prompt
    if ids is None:
        return
    where = "kv_transfer_params.prompt_token_ids"
    if not isinstance(ids, list) or not ids or any(type(token) is not int or token < 0 for token in ids):
        raise RequestError(f"`{where}` must be a non-empty list of non-negative integers.", param=where)
    if outside := [token for token in ids if token >= vocabulary]:
        raise RequestError(f"Token id {outside[0]} is out of vocabulary", param=where)
    if len(ids) >= max_model_len:
        raise RequestError(
            f"Input length ({len(ids)}) exceeds model's maximum context length ({max_model_len}).", param=where
        )


def _check_sampling(request: ChatRequest, *, max_model_len: int, vocabulary: int) -> None:
    if request.stream_options is not None and not request.stream:
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise RequestError(message, param="stream_options")
    limit = request.output_limit
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    if limit is not None and limit > max_model_len:
        message = (
            f"{name}={limit} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens."
        )
        raise RequestError(f"{message} (parameter={name}, value={limit})", param=name)
    if limit is not None and limit < 1:
        message = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
        raise RequestError(message, param="max_tokens")
    temperature = request.temperature
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {temperature}. (parameter=temperature, value={temperature})"
        raise RequestError(message, param="temperature")
    if temperature is not None and temperature > 2:
        message = f"temperature must be in [0, 2], got {temperature}. (parameter=temperature, value={temperature})"
        raise RequestError(message, param="temperature")
    if request.n is not None and request.n < 1:
        raise RequestError(f"n must be at least 1, got {request.n}.")
    if (request.n or 1) > 1 and temperature == 0:
        raise RequestError(f"n must be 1 when using greedy sampling, got {request.n}.")
    if any(not text for text in request.stops):
        raise RequestError("stop cannot contain an empty string.")
    allowed = request.allowed_token_ids
    if allowed is not None and not allowed:
        raise RequestError(f"{_EMPTY} (parameter=allowed_token_ids, value=[])", param="allowed_token_ids")
    if outside := [token for token in allowed or () if not 0 <= token < vocabulary]:
        message = "allowed_token_ids contains out-of-vocab token id!"
        raise RequestError(f"{message} (parameter=allowed_token_ids, value={outside})", param="allowed_token_ids")
    if bad := [key for key in request.logit_bias or () if not key.lstrip("-").isdigit()]:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {bad!r}"
        raise RequestError(f"{message} (parameter=logit_bias, value={bad!r})", param="logit_bias")
    if request.continue_final_message and request.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    if not request.messages:
        message = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise RequestError(message)
