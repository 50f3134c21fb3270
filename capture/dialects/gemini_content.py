"""Gemini's contents to chat messages: part by part, in order, and nothing left out unnamed.

Rules
1. Contents of the model that follow each other are one turn: SDKs keep a stream's chunks as so many contents. Its
   texts are joined by nothing; thoughts become `reasoning`, function calls tool calls.
2. A turn without thoughts has those that its signatures hold (`gemini_signature`).
3. Each `functionResponse` becomes a tool message, at its place; its images open the user message behind the results.
   The result's text is `output` where the response has that alone, as the API reads it, else the response as JSON.
4. A result belongs to the call with its id; without one that is known, to the oldest unanswered call of its name.
   A call without an id gets one made from its place, name and arguments: the same in each request that holds it.
5. What stays out without a word is `UNSAID`; what stays out with a repair's name is `LEFT_OUT`, and so is a part of a
   kind that nobody knows (`part:KIND`). What would leave the model blind is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from capture.dialects import messages_fields as field
from capture.dialects.gemini_fields import Node
from capture.dialects.gemini_signature import thought_of, unbase64

UNSAID = {
    "thought": "says what a text is",
    "thoughtSignature": "holds a thought, or proves it to the API that had it",
    "partMetadata": "the agent's own notes",
    "displayName": "names a medium to people",
    "scheduling": "when a live session goes on",
    "willContinue": "a live session's",
}
"""Fields of a part that have no meaning for an engine, each with the reason."""

LEFT_OUT = {
    "videoMetadata": "which frames the API takes of a video",
    "mediaResolution": "how closely the API looks at a medium",
    "mediaProcessing": "how the API prepares a medium",
}
"""Fields of a part that no engine has and that could change the reply; the repair is `part.FIELD`."""

_REFUSED = {
    "executableCode": "code that the API runs itself",
    "codeExecutionResult": "a result of the API's own tool",
    "toolCall": "a call that the API makes itself",
    "toolResponse": "a result of the API's own tool",
}
_KINDS = ("text", "functionCall", "functionResponse", "inlineData", "fileData", *_REFUSED)
_AUDIO = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}
"""Names of audio formats that the chat dialect spells otherwise."""

ChatPart = dict[str, Any]
Note = Callable[[str], None]


def chat_messages(body: Node, note: Note) -> list[dict[str, Any]]:
    """Return the chat messages of a body's `systemInstruction` and `contents`.

    `note` is told the name of each repair. Raises `ClientError` naming the part at fault.
    """
    out = system_messages(body, note)
    body.required("contents")
    contents = body.nodes("contents")
    if not contents:
        raise field.wrong(body.path("contents"), "a list of one content at least")
    return out + of_contents(contents, Calls(), note)


def system_messages(body: Node, note: Note) -> list[dict[str, Any]]:
    """Return the chat message of a body's `systemInstruction`, none where it says nothing."""
    system = _system(body, note)
    return [{"role": "system", "content": system}] if system else []


def of_contents(contents: Sequence[Node], calls: Calls, note: Note) -> list[dict[str, Any]]:
    """Return the chat messages of contents that follow each other; `calls` are those of what came before."""
    out: list[dict[str, Any]] = []
    turn: _Turn | None = None
    for content in contents:
        role = content.optional_text("role") or "user"
        if role == "model":
            turn = turn or _Turn()
            for part in content.nodes("parts"):
                turn.take(part, calls, note)
        elif role in ("user", "function", "tool"):
            if turn is not None:
                out.append(turn.message())
                turn = None
            out += _user(content, calls, note)
        else:
            raise field.wrong(content.path("role"), "'user' or 'model'")
    return [*out, turn.message()] if turn is not None else out


class Calls:
    """The calls of the history so far, and which of them await a result."""

    def __init__(self, before: Calls | None = None) -> None:
        """Go on from `before`, which stays as it is."""
        self.n: int = 0 if before is None else before.n
        self.ids: set[str] = set() if before is None else set(before.ids)
        # Id and name, the oldest first.
        self.open: list[tuple[str, str]] = [] if before is None else list(before.open)

    def state(self, given: Iterable[str]) -> Hashable:
        """Return all that decides what comes next, where its results have these ids."""
        return self.n, tuple(self.open), tuple([id_ in self.ids for id_ in given])

    def go_on(self, calls: Iterable[tuple[str, str]], answers: Iterable[str]) -> None:
        """Take calls, by id and name, and then results by the ids of those that they answer."""
        for call in calls:
            self.n += 1
            self.ids.add(call[0])
            self.open.append(call)
        answered = set(answers)
        self.open = [call for call in self.open if call[0] not in answered]

    def call(self, part: Node) -> dict[str, Any]:
        """Take a call; return it as the chat dialect has it."""
        given = part.get("args")
        arguments = {} if given is None else field.mapping(given, part.path("args"))
        name = part.text("name")
        # Python's writer keeps 1.0 a float, NaN, and the order of keys.
        text = json.dumps(arguments, ensure_ascii=False)
        id_ = part.optional_text("id") or self._made(name, text)
        self.n += 1
        self.ids.add(id_)
        self.open.append((id_, name))
        return {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}

    def answer(self, part: Node) -> str:
        """Take a result; return the id of the call that it answers."""
        id_, name = part.optional_text("id"), part.optional_text("name")
        if id_ not in self.ids:
            # Without a call it keeps what it has: the engine is to say what it thinks of it.
            id_ = next((made for made, called in self.open if called == name), id_ or self._made(name, "result"))
        self.open = [call for call in self.open if call[0] != id_]
        return id_

    def _made(self, name: str, text: str) -> str:
        place = f"{self.n}\0{name}\0{text}".encode("utf-8", "surrogatepass")
        return f"call_{hashlib.blake2b(place, digest_size=12).hexdigest()}"


class _Turn:
    """What the model said in one turn."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._sealed: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def take(self, part: Node, calls: Calls, note: Note) -> None:
        if signature := part.optional_text("thoughtSignature"):
            self._sealed.append(thought_of(signature))
        kind = _kind(part, note)
        if kind == "text":
            (self._thoughts if part.flag("thought") else self._texts).append(part.text("text"))
        elif kind == "functionCall":
            self._calls.append(calls.call(Node(part.get("functionCall"), part.path("functionCall"))))
        elif kind:
            raise field.untranslatable(part.path(kind), "what a model can't have said to an engine")

    def message(self) -> dict[str, Any]:
        text = "".join(self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not self._calls else None}
        if thought := "".join(self._thoughts) or "".join(self._sealed):
            message["reasoning"] = thought
        if self._calls:
            message["tool_calls"] = self._calls
        return message


def _kind(part: Node, note: Note) -> str:
    """Return what a part holds, empty where that is nothing, or nothing that an engine could be told."""
    names = part.names()
    if names == ["text"]:
        return "text"
    kinds = [name for name in names if name in _KINDS]
    if len(kinds) > 1:
        raise field.wrong(part.at, f"one thing, and holds {' and '.join(kinds)}")
    for name in names:
        if name in LEFT_OUT:
            note(f"part.{name}")
        elif name not in _KINDS and name not in UNSAID:
            # A kind that nobody knows must not make names without end.
            note(f"part:{name[:64]}")
    if kinds and (why := _REFUSED.get(kinds[0])):
        raise field.untranslatable(part.path(kinds[0]), why)
    if not names:
        raise field.wrong(part.at, "one thing, and holds none")
    return kinds[0] if kinds else ""


def _system(body: Node, note: Note) -> str:
    content = body.node("systemInstruction")
    texts = []
    for part in content.nodes("parts") if content is not None else ():
        kind = _kind(part, note)
        if kind not in ("text", ""):
            raise field.untranslatable(part.path(kind), "what is no text in a system instruction")
        texts.append(part.optional_text("text"))
    # As vLLM joins the parts of a text.
    return "\n".join(filter(None, texts))


def _user(content: Node, calls: Calls, note: Note) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    parts: list[ChatPart] = []
    # Of the results so far, for the user message behind them.
    media: list[ChatPart] = []
    for part in content.nodes("parts"):
        kind = _kind(part, note)
        if kind == "functionResponse":
            if parts:
                out.append(_said(parts))
                parts = []
            response = Node(part.get("functionResponse"), part.path("functionResponse"))
            out.append({"role": "tool", "tool_call_id": calls.answer(response), "content": _result(response)})
            media += _media_of(response, note)
            continue
        if kind == "functionCall":
            raise field.wrong(part.path(kind), "in a content of the model's")
        found = _part(part, kind)
        if found and not parts:
            parts, media = media, []
        parts += found
    parts = parts or media
    if parts or not out:
        out.append(_said(parts))
    return out


def _said(parts: list[ChatPart]) -> dict[str, Any]:
    said = [part for part in parts if part.get("text") != ""]
    if len(said) == 1 and said[0]["type"] == "text":
        return {"role": "user", "content": said[0]["text"]}
    return {"role": "user", "content": said or ""}


def _result(response: Node) -> str:
    given = response.get("response")
    if given is None:
        return ""
    fields = field.mapping(given, response.path("response"))
    shown = fields["output"] if list(fields) == ["output"] else fields
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def _media_of(response: Node, note: Note) -> list[ChatPart]:
    media: list[ChatPart] = []
    for part in response.nodes("parts"):
        kind = _kind(part, note)
        if kind not in ("inlineData", "fileData", ""):
            raise field.wrong(part.path(kind), "a medium")
        media += _part(part, kind)
    if media:
        note("function_response_media")
    return media


def _part(part: Node, kind: str) -> list[ChatPart]:
    """Return the chat part of what a user or a function may say."""
    if kind == "text":
        return [{"type": "text", "text": part.text("text")}]
    if kind == "inlineData":
        return [_inline(Node(part.get(kind), part.path(kind)))]
    if kind == "fileData":
        return [_file(Node(part.get(kind), part.path(kind)))]
    return []


def _inline(blob: Node) -> ChatPart:
    family, subtype = _type_of(blob)
    raw = unbase64(blob.text("data"))
    if not raw:
        raise field.wrong(blob.path("data"), "bytes in base64")
    if family == "text":
        try:
            return {"type": "text", "text": raw.decode()}
        except UnicodeDecodeError as error:
            raise field.wrong(blob.path("data"), "text in UTF-8") from error
    data = base64.b64encode(raw).decode()
    if family == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO.get(subtype, subtype)}}
    return _by_url(blob, family, f"data:{family}/{subtype};base64,{data}")


def _file(file: Node) -> ChatPart:
    family, _ = _type_of(file)
    uri = file.text("fileUri")
    if not uri.startswith(("http://", "https://")) or "generativelanguage.googleapis.com/" in uri:
        raise field.untranslatable(
            file.path("fileUri"), "a file of the API's own store", hint="Send its bytes, as inlineData."
        )
    # Whether the engine may fetch it is the rollout's to say.
    return _by_url(file, family, uri)


def _type_of(medium: Node) -> tuple[str, str]:
    family, slash, subtype = medium.text("mimeType").partition(";")[0].strip().lower().partition("/")
    if not slash or not subtype:
        raise field.wrong(medium.path("mimeType"), "a media type such as image/png")
    return family, subtype


def _by_url(medium: Node, family: str, url: str) -> ChatPart:
    if family not in ("image", "audio", "video"):
        raise field.untranslatable(
            medium.path("mimeType"), f"a medium of type {family!r}", hint="Send its text, or its pages as images."
        )
    return {"type": f"{family}_url", f"{family}_url": {"url": url}}
