"""A reply's output items, growing from chat deltas, and the events that tell of it.

Rules
1. One item is open at a time; a piece of another kind, or of another call, closes it. A piece for a call that is closed
   is an error (`ValueError`): it can't be told in this dialect any more, and no engine was seen to send one.
2. Pieces pass as they come. Two things wait: a call until its name is known, and, of a custom tool's text, half an
   escape.
3. A whole message is fed as one delta, so a whole reply and a streamed one can't differ in form.
4. Calls are told apart by `index`; a new id on an index that is in use starts a new call: two parallel calls were seen
   to come on index 0 both.

Events are dicts without their `sequence_number`, which the translator counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from capture.dialects.responses_custom import InputText
from capture.dialects.responses_items import item_id
from capture.dialects.responses_tools import Origin, Tools

Event = dict[str, Any]
Entries = list[dict[str, Any]]


class Output:
    """The items of one reply."""

    def __init__(self, reply_id: str, tools: Tools) -> None:
        self.reply_id = reply_id
        self._tools = tools
        self._events: list[Event] = []
        self._items: list[_Item] = []
        # The name of the text that the last delta said last.
        self._said: str | None = None
        # The call that an index stands for, and the one whose name is still to come.
        self._calls: dict[int | None, _Call] = {}
        self._nameless: _Call | None = None

    def __repr__(self) -> str:
        return f"<Output {', '.join(item.prefix for item in self._items) or 'empty'}>"

    def items(self) -> list[dict[str, Any]]:
        """Return the items as they stand."""
        return [item.shown() for item in self._items]

    def add(self, delta: Mapping[str, Any], entries: Entries | None = None) -> list[Event]:
        """Take the next delta, with the logprob entries of its text; return the events that tell of it.

        Raises `ValueError` for a piece that comes too late.
        """
        self._said = None
        # Some engines say their reasoning under both names.
        if text := _text(delta, "reasoning") or _text(delta, "reasoning_content"):
            self._said = "reasoning" if _text(delta, "reasoning") else "reasoning_content"
            self._of(_Reasoning).grow(text)
        if text := _text(delta, "content"):
            self._said = "content"
            self._of(_Message).grow("output_text", text, entries or [])
        if text := _text(delta, "refusal"):
            self._of(_Message).grow("refusal", text, [])
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            if isinstance(piece, Mapping):
                self._add_call(piece)
        if isinstance(legacy := delta.get("function_call"), Mapping):
            self._add_call({"index": 0, "function": legacy})
        return self._drained()

    def maybe_more(self) -> tuple[str, Event, list[str]] | None:
        """Return how more of the text that was said last would be told, None where it has been closed or has logprobs.

        That is: the delta's field, the event with an empty text, and the list that keeps the text's pieces.
        """
        item = self._items[-1] if self._items else None
        kind = _Message if self._said == "content" else _Reasoning
        if self._said is None or not isinstance(item, kind) or item.status != OPEN:
            return None
        kept = item.maybe_grow_more()
        if kept is None:
            return None
        (event,) = self._drained()
        return self._said, event, kept

    def close(self, status: str) -> list[Event]:
        """End the last item with `completed` or `incomplete`; return the events that tell of it."""
        if self._nameless is not None:
            self._place(self._nameless)
        self._shut(status)
        return self._drained()

    def tell(self, kind: str, **fields: Any) -> None:
        """Note an event: for the items."""
        self._events.append({"type": f"response.{kind}", **fields})

    def _of(self, kind: type[_T]) -> _T:
        """Return the open item if it is of a kind, else begin one."""
        last = self._items[-1] if self._items else None
        if type(last) is kind and last.status == OPEN:
            return last
        return self._place(kind(self))

    def _place(self, item: _T) -> _T:
        self._shut("completed")
        self._items.append(item)
        item.begin(len(self._items) - 1)
        return item

    def _shut(self, status: str) -> None:
        if self._items and self._items[-1].status == OPEN:
            self._items[-1].end(status)

    def _drained(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        index = piece.get("index")
        call = self._call(index if isinstance(index, int) else None, _text(piece, "id"))
        function = piece.get("function")
        fields: Mapping[str, Any] = function if isinstance(function, Mapping) else {}
        name = _text(fields, "name")
        if call.status == NOT_YET and name:
            call.is_named(name, self._tools.origin(name))
            self._nameless = None
            self._place(call)
        elif name not in ("", call.name):
            raise ValueError("a call's name came in pieces")
        if text := _text(fields, "arguments"):
            call.grow(text)

    def _call(self, index: int | None, id_: str) -> _Call:
        """Return the call that a piece belongs to; a new one isn't an item until its name is known."""
        call = self._calls.get(index)
        if call is None or (id_ and call.id_ not in ("", id_)) or (id_ and index is None):
            if self._nameless is not None:
                self._place(self._nameless)
            call = self._calls[index] = self._nameless = _Call(self)
        call.id_ = call.id_ or id_
        return call


NOT_YET, OPEN = "not yet", "in_progress"
"""The status of an item before its first event, and while it grows."""


class _Item(ABC):
    """One item. Its status, once it is over, is `completed` or `incomplete`."""

    prefix: str

    def __init__(self, output: Output) -> None:
        self._output = output
        self._at = {"output_index": 0}
        self.id = ""
        self.status = NOT_YET

    def begin(self, n: int) -> None:
        self.id = item_id(self.prefix, self._output.reply_id, n)
        self._at = {"output_index": n}
        self.status = OPEN
        self._output.tell("output_item.added", **self._at, item=self.shown())

    def end(self, status: str) -> None:
        self.finish()
        self.status = status
        self._output.tell("output_item.done", **self._at, item=self.shown())

    def tell(self, kind: str, **fields: Any) -> None:
        self._output.tell(kind, item_id=self.id, **self._at, **fields)

    @abstractmethod
    def finish(self) -> None:
        """Tell that the item's parts are over."""

    @abstractmethod
    def shown(self) -> dict[str, Any]:
        """Return the item as it stands."""


_T = TypeVar("_T", bound=_Item)


class _Reasoning(_Item):
    prefix = "rs"

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._pieces: list[str] = []

    def grow(self, text: str) -> None:
        if not self._pieces:
            self.tell("content_part.added", content_index=0, part={"type": "reasoning_text", "text": ""})
        self._pieces.append(text)
        self.tell("reasoning_text.delta", content_index=0, delta=text)

    def maybe_grow_more(self) -> list[str] | None:
        """Tell of more text, of which there is none, and return where it is kept; None where `grow` would tell more."""
        self.tell("reasoning_text.delta", content_index=0, delta="")
        return self._pieces

    def finish(self) -> None:
        text = "".join(self._pieces)
        self.tell("reasoning_text.done", content_index=0, text=text)
        self.tell("content_part.done", content_index=0, part={"type": "reasoning_text", "text": text})

    def shown(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}] if text else [],
            "encrypted_content": None,
            "status": self.status,
        }


class _Part:
    """A message's part: its kind (`output_text` or `refusal`), and what has come of it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.entries: Entries = []

    def shown(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self.entries)}


class _Message(_Item):
    prefix = "msg"

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._parts: list[_Part] = []

    def grow(self, kind: str, text: str, entries: Entries) -> None:
        if not self._parts or self._parts[-1].kind != kind:
            self._end_part()
            self._parts.append(_Part(kind))
            self.tell("content_part.added", content_index=len(self._parts) - 1, part=self._parts[-1].shown())
        part = self._parts[-1]
        part.pieces.append(text)
        part.entries += entries
        more = {"logprobs": entries} if kind == "output_text" else {}
        self.tell(f"{kind}.delta", content_index=len(self._parts) - 1, delta=text, **more)

    def maybe_grow_more(self) -> list[str] | None:
        """Tell of more text, of which there is none, and return where it is kept; None where `grow` would tell more."""
        part = self._parts[-1]
        if part.kind != "output_text":
            return None
        self.tell("output_text.delta", content_index=len(self._parts) - 1, delta="", logprobs=[])
        return part.pieces

    def finish(self) -> None:
        self._end_part()

    def _end_part(self) -> None:
        if self._parts:
            index, part = len(self._parts) - 1, self._parts[-1].shown()
            done = {name: value for name, value in part.items() if name in ("text", "refusal", "logprobs")}
            self.tell(f"{part['type']}.done", content_index=index, **done)
            self.tell("content_part.done", content_index=index, part=part)

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [part.shown() for part in self._parts],
            "status": self.status,
        }


class _Call(_Item):
    """A call of a function, or of a custom tool by the function that stands for it."""

    prefix = "fc"

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        # The engine's id and name for it.
        self.id_ = ""
        self.name = ""
        self._origin = Origin(name="")
        self._custom: InputText | None = None
        # Of the arguments or, of a custom tool, of its text.
        self._pieces: list[str] = []
        self._waiting: list[str] = []

    def is_named(self, name: str, origin: Origin) -> None:
        self.name, self._origin = name, origin
        if origin.custom:
            self.prefix = "ctc"
            self._custom = InputText()

    def begin(self, n: int) -> None:
        super().begin(n)
        for text in self._waiting:
            self.grow(text)

    def grow(self, text: str) -> None:
        if self.status == NOT_YET:
            self._waiting.append(text)
        elif self.status != OPEN:
            raise ValueError("a piece of a call came after the next item had begun")
        else:
            self._tell_delta(self._custom.feed(text) if self._custom else text)

    def _tell_delta(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self.tell(f"{self._field[0]}.delta", delta=text)

    @property
    def _field(self) -> tuple[str, str]:
        return ("custom_tool_call_input", "input") if self._custom else ("function_call_arguments", "arguments")

    def finish(self) -> None:
        if self._custom:
            self._tell_delta(self._custom.end())
        kind, field = self._field
        named = {} if self._custom else {"name": self._origin.name}
        self.tell(f"{kind}.done", **named, **{field: "".join(self._pieces)})

    def shown(self) -> dict[str, Any]:
        item = {
            "id": self.id,
            "type": "custom_tool_call" if self._custom else "function_call",
            # An engine that gives calls no id leaves it to the client's eyes; it must be one of its own all the same.
            "call_id": self.id_ or f"call_{self.id}",
            "name": self._origin.name,
            self._field[1]: "".join(self._pieces),
            "status": self.status,
        }
        return item if self._origin.namespace is None else {**item, "namespace": self._origin.namespace}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
