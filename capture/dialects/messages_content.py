"""Anthropic messages to chat messages: block by block, in order, and nothing left out unnamed.

Rules
1. A message of text alone keeps its text. Several text blocks of a user stay parts, for the engine's template to join;
   those of a system prompt and of a tool's result are joined by newlines, as vLLM 0.32 joins parts; those of an
   assistant by nothing, since they are pieces of one reply.
2. Each `tool_result` becomes a tool message, at its place. Its images open the user message behind the results, since
   the chat dialect takes none in a tool message.
3. An assistant's `thinking` becomes `reasoning`, its `tool_use` a tool call. The chat dialect has one order: reasoning,
   text, calls.
4. A `system` message stays where it stands, as claude-code 2.1 has them in the middle of a conversation.
5. What stays out without a word is `UNSAID`; what stays out with a repair's name is `LEFT_OUT`, and so is a block of
   a type that nobody knows. What would leave the model blind (a PDF, a file kept elsewhere) is refused.

An empty text block beside others says nothing and goes. Cache marks move from message to message with each call
(claude-code 2.1), so that with them the same message would be another one each time.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

from capture.dialects import messages_fields as field

UNSAID = {
    "cache_control": "says how the API caches; an engine caches prefixes by itself",
    "signature": "proves thinking to the API that wrote it; checked to be a string",
    "redacted_thinking": "can be read by the API that wrote it alone",
    "is_error": "chat completions have no such mark; the result's text says what went wrong",
    "caller": "says who called a tool of the API's own",
    "transformations": "steers how the API scales an image",
}
"""Fields and blocks of a message that have no meaning for an engine, each with the reason."""

LEFT_OUT = {
    "server_tool_use": "a call that the API makes itself",
    "web_search_tool_result": "a result of the API's own tool",
    "web_fetch_tool_result": "a result of the API's own tool",
    "code_execution_tool_result": "a result of the API's own tool",
    "bash_code_execution_tool_result": "a result of the API's own tool",
    "text_editor_code_execution_tool_result": "a result of the API's own tool",
    "tool_search_tool_result": "a result of the API's own tool",
    "mcp_tool_use": "a call that the API makes itself",
    "mcp_tool_result": "a result of the API's own tool",
    "advisor_tool_result": "a result of the API's own tool",
    "tool_reference": "names a tool that the engine has been given already",
    "compaction": "a summary that the API made itself",
    "fallback": "says that the API changed models",
}
"""Blocks that no engine could have caused and none understands, each with the reason; the repair is `block:TYPE`."""

_REFUSED = {
    "container_upload": "a file of the API's own store",
    "tool_addition": "a change of the tool list",
    "tool_removal": "a change of the tool list",
}

UNPARSED = "__unparsed_arguments"
"""The one key of a tool call's input whose arguments were no JSON object; its value is their text.

It comes back from the agent as it was sent, and goes to the engine as it came: arguments that are no JSON are refused
by vLLM when it renders them.
"""

Part = dict[str, Any]
Note = Callable[[str], None]


def chat_messages(system: Any, messages: Any, note: Note) -> list[dict[str, Any]]:
    """Return the chat messages of a body's `system` and `messages`.

    `note` is told the name of each repair. Raises `ClientError` naming the block at fault.
    """
    out = system_messages(system, note)
    given = field.items(messages, "messages")
    if not given:
        raise field.wrong("messages", "a list of one message at least")
    for i, message in enumerate(given):
        out += of_message(message, f"messages.{i}", note)
    return out


def system_messages(system: Any, note: Note) -> list[dict[str, Any]]:
    """Return the chat message of a body's `system`, none where it says nothing."""
    if system is None or system == []:
        return []
    return [{"role": "system", "content": _texts(system, "system", note)}]


def of_message(message: Any, at: str, note: Note) -> list[dict[str, Any]]:
    """Return the chat messages of one message. `at` is its path; nothing else of the body is looked at."""
    fields = field.mapping(message, at)
    role = field.text(fields, "role", at)
    content = field.required(fields, "content", f"{at}.content")
    if role == "user":
        return _user(content, f"{at}.content", note)
    if role == "assistant":
        return [_assistant(content, f"{at}.content", note)]
    if role == "system":
        return [{"role": "system", "content": _texts(content, f"{at}.content", note)}]
    raise field.wrong(f"{at}.role", "'user', 'assistant' or 'system'")


def _blocks(content: Any, at: str) -> list[tuple[str, dict[str, Any], str]]:
    """Return a content's blocks, each with its type and its path; a string is one block of text."""
    if isinstance(content, str):
        return [("text", {"type": "text", "text": content}, at)]
    if not isinstance(content, list):
        raise field.wrong(at, "a string or a list of blocks")
    found = []
    for j, block in enumerate(content):
        path = f"{at}.{j}"
        found.append((field.text(field.mapping(block, path), "type", path), block, path))
    return found


def _texts(content: Any, at: str, note: Note) -> str:
    """Return the text of a content that may hold nothing else."""
    texts = []
    for kind, block, path in _blocks(content, at):
        if kind == "text":
            texts.append(field.text(block, "text", path))
        else:
            _left_out(kind, path, note)
    return "\n".join(filter(None, texts))


def _user(content: Any, at: str, note: Note) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    parts: list[Part] = []
    # Of the tool results so far, for the user message behind them.
    images: list[Part] = []
    for kind, block, path in _blocks(content, at):
        if kind == "tool_result":
            if parts:
                out.append(_user_message(parts))
                parts = []
            name = field.text(block, "tool_use_id", path)
            shown, media = _result(block, path, note)
            out.append({"role": "tool", "tool_call_id": name, "content": shown})
            images += media
            continue
        found = _parts(kind, block, path, note)
        if found and not parts:
            parts, images = images, []
        parts += found
    parts = parts or images
    if parts or not out:
        out.append(_user_message(parts))
    return out


def _user_message(parts: list[Part]) -> dict[str, Any]:
    said = [part for part in parts if part.get("text") != ""]
    if len(said) == 1 and said[0]["type"] == "text":
        return {"role": "user", "content": said[0]["text"]}
    return {"role": "user", "content": said or ""}


def _result(block: Mapping[str, Any], at: str, note: Note) -> tuple[str, list[Part]]:
    """Return a tool result's text, and the images in it."""
    field.flag(block, "is_error", at)
    content = block.get("content")
    if content is None:
        return "", []
    texts: list[str] = []
    images: list[Part] = []
    for kind, inner, path in _blocks(content, f"{at}.content"):
        for part in _parts(kind, inner, path, note):
            if part["type"] == "text":
                texts.append(part["text"])
            else:
                images.append(part)
    if images:
        note("tool_result_images")
    return "\n".join(texts), images


def _assistant(content: Any, at: str, note: Note) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for kind, block, path in _blocks(content, at):
        if kind == "text":
            texts.append(field.text(block, "text", path))
        elif kind == "thinking":
            thoughts.append(field.text(block, "thinking", path))
            field.optional_text(block, "signature", path)
        elif kind == "redacted_thinking":
            field.optional_text(block, "data", path)
        elif kind == "tool_use":
            calls.append(_call(block, path))
        elif kind in ("tool_result", "image", "document", "search_result"):
            raise field.wrong(f"{path}.type", "one that an assistant can say")
        else:
            _left_out(kind, path, note)
    text = "".join(texts)
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    if thought := "".join(thoughts):
        message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    given = block.get("input")
    arguments = {} if given is None else field.mapping(given, f"{at}.input")
    return {
        "id": field.text(block, "id", at),
        "type": "function",
        "function": {
            "name": field.text(block, "name", at),
            # Python's writer keeps 1.0 a float, NaN, and the order of keys.
            "arguments": json.dumps(arguments, ensure_ascii=False),
        },
    }


def _parts(kind: str, block: Mapping[str, Any], at: str, note: Note) -> list[Part]:
    """Return the chat parts of a block that a user or a tool may say."""
    if kind == "text":
        return [_text(field.text(block, "text", at))]
    if kind == "image":
        return [{"type": "image_url", "image_url": {"url": _image(block, at)}}]
    if kind == "document":
        return _document(block, at, note)
    if kind == "search_result":
        heads = [field.text(block, name, at) for name in ("title", "source")]
        _citations(block, note)
        found = _texts(field.required(block, "content", f"{at}.content"), f"{at}.content", note)
        return [_text("\n".join([*heads, found]))]
    if kind in ("tool_use", "tool_result", "thinking", "redacted_thinking"):
        raise field.wrong(f"{at}.type", "one that stands here")
    _left_out(kind, at, note)
    return []


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _image(block: Mapping[str, Any], at: str) -> str:
    """Return an image's URL, a `data:` one where its bytes were sent."""
    at = f"{at}.source"
    source = field.mapping(field.required(block, "source", at), at)
    kind = field.text(source, "type", at)
    if kind == "url":
        return field.text(source, "url", at)
    if kind != "base64":
        raise field.untranslatable(f"{at}.type", f"an image by {kind!r}", hint="Send its bytes, as base64.")
    media = field.text(source, "media_type", at)
    if not media.startswith("image/"):
        raise field.wrong(f"{at}.media_type", "an image's")
    data = field.text(source, "data", at)
    try:
        if not base64.b64decode(data, validate=True):
            raise field.wrong(f"{at}.data", "an image's bytes in base64")
    except (binascii.Error, ValueError) as error:
        raise field.wrong(f"{at}.data", f"an image's bytes in base64 ({error})") from error
    return f"data:{media};base64,{data}"


def _document(block: Mapping[str, Any], at: str, note: Note) -> list[Part]:
    """Return a document's title, context and text as one part, or as several where it holds images."""
    heads = [head for name in ("title", "context") if (head := field.optional_text(block, name, at))]
    _citations(block, note)
    at = f"{at}.source"
    source = field.mapping(field.required(block, "source", at), at)
    kind = field.text(source, "type", at)
    if kind == "text":
        return [_text("\n".join([*heads, field.text(source, "data", at)]))]
    if kind != "content":
        raise field.untranslatable(
            f"{at}.type", f"a document by {kind!r}", hint="Send its text, or its pages as images."
        )
    inner = field.required(source, "content", f"{at}.content")
    parts = [_text(head) for head in heads]
    for found, part, path in _blocks(inner, f"{at}.content"):
        if found == "document":
            # The API takes none inside another; following them would have no end.
            raise field.wrong(f"{path}.type", "'text' or 'image'")
        parts += _parts(found, part, path, note)
    return parts


def _citations(block: Mapping[str, Any], note: Note) -> None:
    wanted = block.get("citations")
    if isinstance(wanted, dict) and wanted.get("enabled") is True:
        note("citations")


def _left_out(kind: str, at: str, note: Note) -> None:
    """Name a block that stays out, or refuse it."""
    if kind in _REFUSED:
        raise field.untranslatable(f"{at}.type", _REFUSED[kind])
    # A type that nobody knows must not make names without end.
    note(f"block:{kind[:64]}")
