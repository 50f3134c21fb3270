"""The store's interface, and the values that pass through it.

Every write is ordered: what was handed over first is committed first, and in the same group or an earlier one. Only
`finish` and the control plane's changes are awaited; a call's start, its spool, its notices and the mark of delivery
ride with the next group. Reads see all that was handed over before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from capture.digests import Digests
from capture.store.summary import Look, Overview, Sheet, Summary
from graph.records import Call, FloatArray, IntArray, Message, Notice, Rollout, Stop

FORMAT_VERSION = 6
"""Version of the stored format; a store with a higher one is refused, a lower one climbs the ladder of migrations."""

Durability = Literal["process", "power", "none"]


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for at registration and is not part of the graph's `Rollout`."""

    engine: str | None = None
    strict_model: bool = False
    tokens: Literal["engine", "pinned"] = "engine"
    require_tier: Literal["train", "eval"] | None = None
    allow: tuple[str, ...] = ()
    # `data` is for the rollout's tool servers, `private` for nobody on the data plane.
    task_data: Any = None
    task_private: Any = None
    # Seconds from the last call to the rollout's expiry.
    ttl_s: float = 86_400.0
    reach: dict[str, str] = {}
    # The tunnel's URL that one of its consumers was told.
    public: str | None = None
    # Digest of the registration's body: the same id with another body is a conflict.
    body: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as it is stored."""

    rollout: Rollout
    registration: Registration
    # SHA-256 of the two secrets; the secrets themselves are stored nowhere.
    secret: bytes
    tools_secret: bytes
    # Grows with every change to the rollout or its calls.
    version: int = 0


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """A request as somebody has taken it apart already, so that the store needn't; only of one that is strict JSON."""

    # Top-level keys in order, values as raw JSON.
    fields: dict[str, bytes]
    # The raw elements of `fields[key]`, and the digest of each (`capture.digests.digest`).
    elements: Sequence[bytes]
    names: Digests
    # The same in canonical form; of another dialect than chat they have none.
    messages: Sequence[Message]
    # As `fields`, of what the engine got.
    sent: dict[str, bytes] | None = None
    key: str = "messages"


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What passed, as JSON text. Equal as JSON to the original; key order and numbers are kept."""

    request: bytes
    # As the engine got it; None when it was never sent.
    sent: bytes | None = None
    # As the agent got it; of a stream the assembled whole; None when nothing came.
    reply: bytes | None = None
    # Keys blame ("client", "engine" or "treering"), status (int), message.
    error: dict[str, Any] | None = None
    usage: bytes | None = None
    # The engine's entries (token, logprob, bytes, top_logprobs) where the client asked for alternatives, as JSON.
    top_logprobs: bytes | None = None
    # What couldn't be decoded for the record, a line each.
    undecoded: bytes | None = None
    # Each with the keys at (ISO 8601) and complete (bool).
    deliveries: tuple[dict[str, Any], ...] = ()
    # Of `request` (and `sent`), handed over and not stored.
    parts: Parts | None = None
    # Of `sent` alone, where the request is of another dialect.
    sent_parts: Parts | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """How a prompt is stored: the first `shared` ids of call `holder`'s prompt + sampled ids, then the rest.

    `holder` must be committed.
    """

    holder: int
    shared: int
    # The check sum of the whole prompt (`store.rows.check`), where somebody has worked it out already.
    check: int | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One choice of one ended call, ready to be stored."""

    call: Call
    exchange: Exchange
    # None: the prompt is stored whole.
    delta: Delta | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A call that runs, ready to be stored."""

    call: Call
    request: bytes
    # Those of its request, where known.
    parts: Parts | None = None


class Spool(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a running stream has brought so far, whole: after a crash it is what is left of the call."""

    prompt_ids: IntArray | None
    sampled_ids: IntArray | None
    logprobs: FloatArray | None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A page of rollouts: filters, order, and where the last page ended."""

    state: Literal["open", "closed"] | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    order: Literal["created", "closed"] = "created"
    # Opaque; the `next` of the page before.
    after: str | None = None
    limit: int = 100


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some entries, and the cursor for more (None at the end; for `order=closed` never None, so that it can tail)."""

    entries: tuple[Entry, ...]
    next: str | None


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator said of an engine; in the store, so that every process obeys."""

    # New calls wait.
    held: bool = False
    # Of its weights, as told; None when nobody told.
    version: str | None = None


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout has used of its limits. A request for several choices is one call."""

    # Calls that ended `complete` or `aborted`.
    sampled: int = 0
    # Calls that started and have not ended, the arrival that asks included.
    running: int = 0
    # Over ended calls: see `new_tokens`.
    new_tokens: int = 0
    # UTC, ISO 8601; the arrival that asks included.
    first_call_at: str | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout's tool servers keep with it."""

    # Grows by one with each change; 0: nothing was set.
    version: int = 0
    # JSON, as it was sent.
    body: bytes = b"null"
    # UTC, ISO 8601.
    changed_at: str | None = None


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A call's place in its rollout, and all that is to be known of the rollout at that very moment."""

    # The number of the first choice; the others follow.
    n: int
    # A reading of the rollout's counter.
    arrived: int
    entry: Entry
    spent: Spent
    # By name; an engine of which nobody said anything is missing.
    engines: dict[str, EngineState]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened; kept for a day."""

    # Opaque; what comes later has a later one, in the order of `Store.events`.
    id: str
    # UTC, ISO 8601.
    at: str
    # A row of `capture.events.NAMES`.
    name: str
    rollout: str | None = None
    # The call's number.
    call: int | None = None
    data: dict[str, Any] = {}


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """An event that no write of the record implies, as it is handed over."""

    at: str
    name: str
    rollout: str | None = None
    call: int | None = None
    data: dict[str, Any] = {}


def new_tokens(call: Call, delta: Delta | None) -> int:
    """Return what an ended call adds to `Spent.new_tokens`.

    Its sampled tokens, and those of its prompt that it does not share with an earlier call; the choices of one call
    share a prompt, which counts with the first. Where the engine gave no ids, the sampled tokens are its usage, and the
    prompt, of which nobody knows what it shares, counts nothing.
    """
    sampled = len(call.sampled_ids) if call.sampled_ids is not None else call.usage_sampled or 0
    if call.choice or call.prompt_ids is None:
        return sampled
    return sampled + len(call.prompt_ids) - (0 if delta is None else delta.shared)


class Store(Protocol):
    """Where rollouts and calls are kept. All methods raise `StoreError` when the store can't be used."""

    @property
    def failure(self) -> str | None:
        """Why the store can't be written at present (a sentence), or None."""

    @property
    def recovered(self) -> tuple[tuple[str, int], ...]:
        """The calls (rollout, n) that were running when the last process died; known after `open`."""

    @property
    def where(self) -> str:
        """The store's address without secrets, for people."""

    @property
    def shared(self) -> bool:
        """Whether other processes may write the same rollouts: then numbers, order and limits are the store's.

        `arrive` gives them out, and a `Call` is handed to `finish` with `ended` None, which the store gives.
        """

    @property
    def identity(self) -> str | None:
        """What tells this store from every other, known after `open`: its processes are one appliance.

        None where only one process ever answers for it.
        """

    async def open(self) -> None:
        """Open or create; climb the migrations; end what was running when the last process died (`recovered`)."""

    async def close(self) -> None:
        """Commit all that was handed over, and close."""

    async def add(self, entries: Sequence[Entry], *, key: str | None = None, answer: bytes | None = None) -> None:
        """Add rollouts, all or none.

        With `key` (an Idempotency-Key, a space, and a digest of its body) the `answer` is kept for an hour.
        Raises `ClientError`: `id_taken` (409) naming the id, `idempotency_key_raced` (409) if the key was answered
        since it was looked up, `idempotency_key_reused` (422) if that was for another body.
        """

    async def answered(self, key: str, body: str) -> bytes | None:
        """Return the answer kept under an Idempotency-Key, None for a new key.

        Raises `ClientError` `idempotency_key_reused` (422) if `body` (a digest) differs.
        """

    async def get(self, rollout: str) -> Entry | None: ...

    async def by_secret(self, digest: bytes) -> tuple[Entry, Literal["agent", "tools"]] | None: ...

    async def page(self, query: Query) -> Page:
        """Return a page of rollouts. Raises `ClientError` `bad_cursor` (400)."""

    async def change(self, rollout: str, changes: Mapping[str, Any]) -> Entry | None:
        """Set fields of the stored `Rollout` (by name); return the entry as changed, None if there is none such."""

    async def delete(self, rollout: str) -> bool:
        """Remove a rollout, its calls, and the content that only it used; False if there is none such."""

    async def arrive(self, rollout: str, *, choices: int, started_at: str) -> Arrival | None:
        """Give a call its number and its place in time, and say what is spent, in one atomic step.

        It runs from here until `finish` or `abort`. None when the rollout is gone, sealed or closed.
        """

    async def seal(self, rollout: str, *, cut: bool = False) -> None:
        """Let no more calls arrive, in any process; opening a closed rollout again takes the seal off.

        With `cut` what still runs is to be cut, by whichever process runs it: each looks at `sealed` every second.
        """

    async def sealed(self) -> dict[str, bool]:
        """Return the rollouts that are sealed and not closed yet, and whether what runs of them is to be cut."""

    async def running(self, rollout: str | None = None, *, engine: str | None = None) -> list[tuple[str, int]]:
        """Return (rollout, n) of the calls that run, in any process, in order.

        With `engine`, those that went to it, and those that have not begun and so may yet.
        """

    async def abort(self, calls: Sequence[tuple[str, int]]) -> None:
        """End calls whose process can't any more, `aborted` with what was spooled; one that doesn't run is left."""

    async def stop(self, rollout: str, n: int, limit: str) -> Stop:
        """Count a call that met a limit; return the rollout's `stopped` as it now is, its `at_call` the first's."""

    async def engines(self) -> dict[str, EngineState]:
        """Return what the operator said of each engine, by name."""

    async def set_engine(self, name: str, *, held: bool | None = None, version: str | None = None) -> None:
        """Note a hold, or the version of an engine's weights; None leaves what there is."""

    def begin(self, rollout: str, call: Call, request: bytes, *, parts: Parts | None = None) -> None:
        """Note that a call runs; `parts` are those of its request, where known."""

    def begin_later(self, rollout: str, n: int, made: Callable[[], Start]) -> None:
        """Note that a call runs, of which `made` tells; a store that writes its start a little later asks only then."""

    def spool(self, rollout: str, n: int, spool: Spool) -> None:
        """Keep what a running stream has brought so far."""

    async def finish(self, rollout: str, records: Sequence[Record]) -> None:
        """Store an ended call, all choices at once, and return when it is committed.

        An `ended` that is None is given out here: it is after all that was committed of the rollout before, and before
        whatever arrives once this returns.
        """

    def deliver(self, rollout: str, numbers: Sequence[int], *, delivered: bool, at: str) -> None:
        """Mark whether a reply reached its client; adds to its deliveries."""

    def notice(self, rollout: str, notice: Notice) -> None:
        """Keep a notice."""

    async def calls(self, rollout: str, *, after: int = -1, limit: int | None = None) -> list[Call]:
        """Return calls in order of `n`, prompts whole."""

    async def exchange(self, rollout: str, n: int) -> Exchange | None: ...

    async def notices(self, rollout: str) -> list[Notice]: ...

    async def state(self, rollout: str) -> State | None:
        """Return the state of a rollout's tool servers; None if there is no such rollout."""

    async def set_state(
        self, rollout: str, body: bytes, *, at: str, owner: bytes | None = None, expected: frozenset[int] | None = None
    ) -> State | None:
        """Set that state in one atomic step, and return it as it now is, committed.

        `owner`: the digest of the tools' secret that must still open the rollout; None when the rollout is gone, sealed
        or closed, or is another's by now. Raises `ClientError` 412 `state_changed` unless its version is one of those
        `expected` (None: any).
        """

    async def summarise(self, made: Sequence[tuple[Entry, Summary]]) -> None:
        """Keep summaries of rollouts, each with an entry that says of which; one that is gone is left out.

        Where a later version's is there already, that stays.
        """

    async def sheet(self, look: Look) -> Sheet:
        """Return a page of rollouts by their summaries. Raises `ClientError` `bad_cursor` (400)."""

    async def overview(self, look: Look) -> Overview:
        """Return sums over the rollouts that are looked for; order, cursor and limit say nothing here."""

    async def events(self, after: str, *, rollout: str | None = None, limit: int = 500) -> list[Event]:
        """Return the committed events behind one, by its id, of all rollouts or of one, the oldest first.

        `"0"` stands before the oldest that is kept. Raises `ClientError`: 400 `bad_cursor` for what is no id, 410
        `events_gone` for one behind which something was dropped.
        """

    async def newest_event(self) -> str:
        """Return the id of the newest event that `events` would return."""

    async def tell(self, told: Sequence[Telling]) -> None:
        """Add events; those of a rollout that is gone are left out."""

    async def drop_events(self, before: str) -> bool:
        """Drop some of the events from before a time; False when none is left to drop."""

    async def flush(self) -> None:
        """Return when all that was handed over is committed."""
