"""A request's messages as they were read, and what is asked of all of them at once.

Most of a long request was said before. Of that only what every call asks is kept (`Heard`, 33 bytes a message); the
messages themselves are in the request, and are read from there by whoever wants them: hardly anybody does, for the
store has them. To keep them took twice a conversation's text, for each of those that run at the time; and what is said
for the first time in a long request is not read either, but where it says what is asked only to who reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, eq
from typing import Generic, NamedTuple, TypeVar, overload

import msgspec

from capture.digests import Digests
from graph.records import Message

Item = TypeVar("Item")


class Element(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message as it came, and what is to be known of it."""

    raw: bytes
    # The digest of `raw`, as `capture.store.contents` has it.
    name: bytes
    # The digest of its value, whatever its order of keys.
    value: bytes
    message: Message
    # The first part that an engine would have to fetch (`content[1].image_url`), None where there is none.
    fetched: str | None
    # It holds what secrets of ours begin with.
    suspect: bool = False


_RAW, _NAME, _VALUE, _MESSAGE = map(attrgetter, ("raw", "name", "value", "message"))
_FETCHED, _SUSPECT = attrgetter("fetched"), attrgetter("suspect")


class Heard(NamedTuple):
    """What is asked of all messages of a list, without the messages."""

    names: Digests = Digests()
    values: Digests = Digests()
    # Whether any names a medium that an engine would have to fetch, and any is suspect.
    fetches: bool = False
    suspect: bool = False

    def more(self, new: Sequence[Element]) -> Heard:
        """Return the same with messages behind them."""
        return Heard(
            Digests.of(map(_NAME, new), before=self.names),
            Digests.of(map(_VALUE, new), before=self.values),
            self.fetches or any(map(_FETCHED, new)),
            self.suspect or any(map(_SUSPECT, new)),
        )


class Column(Sequence[Item], Generic[Item]):
    """One thing of each message: of the new ones at hand, of those before them fetched when it is asked for."""

    # It holds no `Said`, which holds it: a request's megabytes are not left to the collector.
    __slots__ = ("__weakref__", "_before", "_fetch", "_new")

    def __init__(self, n_before: int, new: Sequence[Item], fetch: Callable[[], Sequence[Item]]) -> None:
        """`fetch` gives those of the `n_before` messages that come first."""
        self._before: int | Sequence[Item] = n_before
        self._new = new
        self._fetch = fetch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"

    def __len__(self) -> int:
        before = self._before
        return (before if isinstance(before, int) else len(before)) + len(self._new)

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...

    def __getitem__(self, at: int | slice) -> Item | Sequence[Item]:
        first = len(self) - len(self._new)
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1 and start >= first:
                return self._new[start - first : max(stop - first, 0)]
            return self._all()[at]
        place = at + len(self) if at < 0 else at
        if first <= place < len(self):
            return self._new[place - first]
        return self._all()[at]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or (len(self) == len(other) and all(map(eq, self, other)))

    __hash__ = None  # type: ignore[assignment]  # as any list

    def _all(self) -> Sequence[Item]:
        if isinstance(self._before, int):
            self._before = self._fetch()
        return [*self._before, *self._new]


class Unread(NamedTuple):
    """Messages of which the bytes can be had, and that are read when somebody asks what they say."""

    n: int
    # Gives their bytes.
    raws: Callable[[], Sequence[bytes]]
    # Says what these say.
    read: Callable[[Sequence[bytes]], Sequence[Element]]

    def elements(self) -> Sequence[Element]:
        """Return what they say."""
        return self.read(self.raws())

    def messages(self) -> Sequence[Message]:
        """Return the same without what else is known of them."""
        return tuple(map(_MESSAGE, self.elements()))


class Said(Column[Element]):
    """The messages of a request."""

    __slots__ = ("heard", "messages", "raws")

    def __init__(
        self, new: Iterable[Element] = (), *, unread: Sequence[Unread] = (), heard: Heard | None = None
    ) -> None:
        """`new` are those that come behind the `unread` ones, of which `heard` is known."""
        elements: Sequence[Element] = tuple(new)
        self.heard = NOTHING if heard is None else heard
        if elements:
            self.heard = self.heard.more(elements)
        self.raws: Sequence[bytes] = list(map(_RAW, elements))
        self.messages: Sequence[Message] = tuple(map(_MESSAGE, elements))
        # Each part before what is behind it; the whole begins with the first.
        first: Unread | None = None
        for part in reversed(unread):
            if first is not None:
                elements = Column(first.n, elements, first.elements)
            first = part
            self.raws = Column(part.n, self.raws, part.raws)
            self.messages = Column(part.n, self.messages, part.messages)
        super().__init__(*((0, elements, tuple) if first is None else (first.n, elements, first.elements)))


NOTHING = Heard()
"""Of no message."""
