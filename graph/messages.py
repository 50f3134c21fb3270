"""Canonical messages: what is the same however an agent or an engine spells it.

Rules
1. Two messages are equal when their digests are: role, text, tool names with their arguments as parsed JSON, and media.
   Ids and reasoning are read, for links and causes, but not compared: agents drop and rewrite them.
2. Every spelling of one thing gives one digest. Agents were seen to echo a reply's content as "", as null, not at all,
   or as a list of text parts; its arguments verbatim or re-serialised; its reasoning under either of two names.
3. Nothing raises, whatever JSON comes: what can't be understood is kept by its digest, so that a record of it never
   decides whether a request is forwarded.

The forms read are those of OpenAI's chat completions (openai 1.60 and later) and what vLLM 0.32 adds to them: text as
a part that is a plain string, `reasoning` beside `reasoning_content`, thinking as a part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graph.records import Message, ToolCall

DIGEST_BYTES = 16
"""Of a message's digest: 128 bits, so that a chance collision needs 2^64 messages."""

LARGE = 1 << 20
"""Characters from which texts are hashed one by one, and not copied together first."""

SAFE_INTEGER = 2**53
"""Beyond it an agent written in JavaScript can't echo an integer exactly, so it is compared as a double."""

_SAME_ROLE = {"developer": "system", "function": "tool"}
_TEXT_PARTS = {"text", "input_text", "output_text"}
_THINKING_PARTS = {"thinking", "reasoning", "reasoning_text"}
# Where a part of this type keeps what it is about: an address, data, or an object with one of them.
_MEDIA_KEYS = {
    "image_url": ("image_url", "url"),
    "input_image": ("image_url", "file_id"),
    "video_url": ("video_url", "url"),
    "audio_url": ("audio_url", "url"),
    "input_audio": ("input_audio", "data"),
    "file": ("file", "file_data"),
}


def from_chat(obj: Any) -> Message:
    """Read one chat message, of a request or of a reply, as parsed from JSON.

    Anything that isn't an object becomes a message without a role, known by its digest alone.
    """
    if type(obj) is dict and (plain := _maybe_plain(obj)) is not None:
        return plain
    if not isinstance(obj, Mapping):
        return _message(role="", media=(_digest_of(obj),))
    text, thinking, media = _content(obj.get("content"))
    if not text and isinstance(refusal := obj.get("refusal"), str):
        text = refusal
    role = obj.get("role")
    answers = obj.get("tool_call_id")
    return _message(
        role=_SAME_ROLE.get(role, role) if isinstance(role, str) else "",
        text=text,
        reasoning=_first_text(obj.get("reasoning_content"), obj.get("reasoning"), thinking),
        tool_calls=tuple(_tool_calls(obj)),
        tool_call_id=answers if isinstance(answers, str) else None,
        media=media,
    )


def canonical_json(text: str) -> str:
    """Return JSON text with sorted keys, no spaces, and numbers spelled one way; stripped text where it isn't JSON.

    Numbers are compared as an agent written in JavaScript would echo them: 1.0 is 1, and an integer beyond 2^53 is the
    double next to it. NaN and infinities are no JSON.
    """
    try:
        return _spell(json.loads(text, parse_constant=_no_constant))
    except (ValueError, RecursionError, OverflowError):
        # Broken, endless or absurd: the text stands for itself.
        return text.strip()


def tools_digest(tools: Any) -> str | None:
    """Return a digest, in hex, of a request's tool list as parsed from JSON; None when it has none or an empty one.

    The order of tools counts, since the prompt shows it; cache marks don't.
    """
    if tools is None or tools == []:
        return None
    return _digest_of([_without_marks(tool) for tool in tools] if isinstance(tools, list) else tools)


def tool_names(tools: Any) -> tuple[str, ...]:
    """Return the names in a request's tool list as parsed from JSON, in its order, without those that have none."""
    if not isinstance(tools, list):
        return ()
    found = []
    for tool in tools:
        if isinstance(tool, Mapping):
            function = tool.get("function")
            name = (function if isinstance(function, Mapping) else tool).get("name")
            if isinstance(name, str):
                found.append(name)
    return tuple(found)


def equal(a: Message, b: Message) -> bool:
    """Say if two messages are the same in canonical form."""
    return a.digest == b.digest


def chain(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """Return cumulative digests: item k names the first k messages, so there is one more of them than messages."""
    digests = [b""]
    for message in messages:
        digests.append(hashlib.blake2b(digests[-1] + message.digest, digest_size=DIGEST_BYTES).digest())
    return tuple(digests)


def strings(arguments: str) -> tuple[str, ...]:
    """Return the non-empty strings in a tool call's arguments, keys left out; the whole text where it isn't JSON."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return (arguments,) if arguments.strip() else ()
    found: list[str] = []
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, str) and value:
            found.append(value)
        elif isinstance(value, dict):
            todo.extend(reversed(value.values()))
        elif isinstance(value, list):
            todo.extend(reversed(value))
    return tuple(found)


def _maybe_plain(obj: dict[str, Any]) -> Message | None:
    """Read a message of a role and a text, and of what it answers, as nearly all are; None for any other.

    Engines say null for all else that a reply could have.
    """
    get = obj.get
    text, answers = get("content"), None
    if type(text) is not str:
        return None
    if len(obj) > 2:
        if get("tool_calls") or get("reasoning_content") or get("reasoning") or get("function_call") is not None:
            return None
        if not text and get("refusal") is not None:
            return None
        answers = get("tool_call_id")
        if answers is not None and not (type(answers) is str and answers.isascii()):
            return None
    said = obj.get("role")
    begin = _PLAIN.get(said) if type(said) is str else None
    if begin is None:
        return None
    role, hashed = begin
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return None
    # As `_message` hashes it: role, text, no tool calls.
    told = b"".join((hashed, len(raw).to_bytes(8, "little"), raw, _NO_CALLS))
    named = hashlib.blake2b(told, digest_size=DIGEST_BYTES).digest()
    return Message(role=role, text=text, tool_call_id=answers, digest=named)


def _message(
    *,
    role: str,
    text: str = "",
    reasoning: str = "",
    tool_calls: tuple[ToolCall, ...] = (),
    tool_call_id: str | None = None,
    media: tuple[str, ...] = (),
) -> Message:
    role, text, reasoning = _sound(role), _sound(text), _sound(reasoning)
    parts = [role, text, str(len(tool_calls))]
    for call in tool_calls:
        # A tool without parameters: engines stream no arguments at all, and agents echo an empty object.
        parts += [call.name, call.canonical or "{}"]
    return Message(
        role=role,
        text=text,
        reasoning=reasoning,
        tool_calls=tool_calls,
        tool_call_id=None if tool_call_id is None else _sound(tool_call_id),
        media=media,
        digest=_hash([*parts, *media]).digest(),
    )


def _content(content: Any) -> tuple[str, str, tuple[str, ...]]:
    """Split content into text, thinking, and digests of everything else, in order."""
    if content is None:
        return "", "", ()
    if isinstance(content, str):
        return content, "", ()
    text: list[str] = []
    thinking: list[str] = []
    media: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            text.append(part)
            continue
        if not isinstance(part, Mapping):
            media += [] if part is None else [_digest_of(part)]
            continue
        kind = _first_text(part.get("type"))
        if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            text.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            text.append(part["refusal"])
        elif kind in _THINKING_PARTS:
            thinking.append(_first_text(part.get("thinking"), part.get("reasoning"), part.get("text")))
        else:
            media.append(_media_digest(part))
    return "".join(text), "".join(thinking), tuple(media)


def _media_digest(part: Mapping[str, Any]) -> str:
    """Name a part by what it shows, and not by how it is wrapped: the same image keeps its digest as detail changes."""
    for key in _MEDIA_KEYS.get(_first_text(part.get("type")), ()):
        value = part.get(key)
        if isinstance(value, Mapping):
            value = _first_text(value.get("url"), value.get("data"), value.get("file_data"), value.get("file_id"))
        if isinstance(value, str) and value:
            return _hash([value]).hexdigest()
    return _digest_of(_without_marks(part))


def _tool_calls(obj: Mapping[str, Any]) -> Iterable[ToolCall]:
    calls = obj.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping):
            # A custom tool has its free text under "input" (openai 1.99 and later).
            function: Mapping[str, Any] = next(
                (call[key] for key in ("function", "custom") if isinstance(call.get(key), Mapping)), {}
            )
            yield _tool_call(call.get("id"), function)
    if isinstance(legacy := obj.get("function_call"), Mapping):
        yield _tool_call(None, legacy)


def _tool_call(call_id: Any, function: Mapping[str, Any]) -> ToolCall:
    arguments = function.get("arguments", function.get("input"))
    if arguments is None:
        arguments = ""
    if not isinstance(arguments, str):
        # Some agents send the object itself.
        arguments = _spell_or_name(arguments)
    name = function.get("name")
    return ToolCall(
        id=_sound(call_id) if isinstance(call_id, str) and call_id else None,
        name=_sound(name) if isinstance(name, str) else "",
        arguments=_sound(arguments),
        canonical=_sound(canonical_json(arguments)),
    )


def _sound(text: str) -> str:
    """Put U+FFFD for half a surrogate pair: JavaScript agents send them, and no file or database takes them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def _first_text(*values: Any) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")


def _without_marks(value: Any) -> Any:
    """Leave out cache marks, which move from message to message as a conversation grows."""
    if not isinstance(value, Mapping):
        return value
    return {key: inner for key, inner in value.items() if key != "cache_control"}


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > SAFE_INTEGER:
        return int(float(value))
    return value


def _spell(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _spell_or_name(value: Any) -> str:
    try:
        return _spell(value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        # NaN, or deeper than the interpreter's stack: all such values are one, and none of them raises.
        return f"<{type(value).__name__}>"


def _digest_of(value: Any) -> str:
    return _hash([_spell_or_name(value)]).hexdigest()


def _hash(parts: Iterable[str]) -> hashlib.blake2b:
    """Hash strings so that no two lists of them run into each other; lone surrogates pass."""
    parts = list(parts)
    if sum(map(len, parts)) < LARGE:
        return hashlib.blake2b(b"".join(map(_counted, parts)), digest_size=DIGEST_BYTES)
    # The same without three copies of them.
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state


def _counted(part: str) -> bytes:
    raw = part.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "little") + raw


# By the role as it is said: the role, and the beginning of what is hashed.
_PLAIN: dict[str, tuple[str, bytes]] = {
    said: (_SAME_ROLE.get(said, said), _counted(_SAME_ROLE.get(said, said)))
    for said in ("system", "developer", "user", "assistant", "tool", "function")
}
_NO_CALLS = _counted("0")
