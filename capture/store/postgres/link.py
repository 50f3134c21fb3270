"""Connections: how they are made, how long each wait may be, and what an error of the driver means.

Time limits. Nothing waits for ever: a connection CONNECT_S, a statement COMMAND_S here and a little less over there, a
lock LOCK_S, and a transaction whose client has gone silent is ended by the server after IDLE_S, so that a machine which
fell off the network doesn't keep its locks.

The password is in no address that is shown, no log and no error: what the driver says is passed on without details, and
a URL that can't be understood is never quoted.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from urllib.parse import parse_qsl, unquote, urlsplit

from capture.errors import StoreError, TreeringError, UsageError
from capture.store.base import Durability
from capture.store.postgres import schema
from capture.store.postgres.driver import Connection, Pool, asyncpg

CONNECT_S = 5.0
COMMAND_S = 15.0
LOCK_S = 10.0
IDLE_S = 15.0
ACQUIRE_S = 15.0
"""How long a read waits for a connection of the pool."""

POOL = 4
"""Connections beside the writer's, for arrivals and reads: each is a process over there, times the replicas."""

# `process` has to wait for the log to be written, since PostgreSQL keeps what isn't in its own memory: without it the
# death of a PostgreSQL process would cost the last commits.
_SYNCHRONOUS: dict[Durability, str] = {"process": "local", "power": "on", "none": "off"}

_ACCEPTED = (
    "a PostgreSQL store is postgresql://user:password@host:5432/database, where a password's @ is %40, its / %2F"
)


class Sort(Enum):
    """What an error of the driver means for the write that met it."""

    # The server can't be reached, or serves nobody: try again.
    DOWN = "down"
    # Two transactions met; one of them has to be run again.
    RACE = "race"
    # No room, or no right to write: as it is for a full disk.
    FULL = "full"
    # The store's fault, and it answered: trying again brings nothing.
    FAILED = "failed"
    # The write itself is wrong.
    OURS = "ours"


_DOWN = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_RACE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.ForeignKeyViolationError)
_FULL = (asyncpg.DiskFullError,)
_FAILED = (
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ObjectNotInPrerequisiteStateError,
)


def sort(error: BaseException) -> Sort:
    """Return what an error means."""
    if isinstance(error, ValueError):
        # asyncpg's own, of an argument that can't be sent; it is an `InterfaceError` too.
        return Sort.OURS
    for kinds, meaning in ((_RACE, Sort.RACE), (_FULL, Sort.FULL), (_DOWN, Sort.DOWN), (_FAILED, Sort.FAILED)):
        if isinstance(error, kinds):
            return meaning
    return Sort.OURS


class Address:
    """A store's URL, taken apart as far as people may see it."""

    def __init__(self, url: str) -> None:
        """Raises `UsageError`, which quotes nothing of a URL that can't be understood."""
        try:
            parts = urlsplit(url)
            host, port, user, password = parts.hostname, parts.port, parts.username, parts.password
            options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        except ValueError:
            raise UsageError("the store's PostgreSQL URL can't be understood", hint=_ACCEPTED) from None
        if parts.scheme not in ("postgresql", "postgres") or parts.fragment:
            raise UsageError("the store's PostgreSQL URL can't be understood", hint=_ACCEPTED)
        name = parts.path.removeprefix("/")
        if not name or "/" in name:
            raise UsageError("the store's PostgreSQL URL names no database", hint=_ACCEPTED)
        host = host or options.get("host", "")
        shown = f"[{host}]" if ":" in host else host if not host.startswith("/") else ""
        at = f"{unquote(user)}@" if user else ""
        colon = f":{port}" if port else ""
        socket = f"?host={host}" if host.startswith("/") else ""
        self.url = url
        self.shown = f"postgresql://{at}{shown}{colon}/{name}{socket}"
        self._secrets = {unquote(word) for word in (password, options.get("password")) if word}
        self._secrets |= {word for word in (password,) if word}

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    def sentence(self, error: BaseException) -> str:
        """Return what an error says in a line, without details and without the password."""
        said = str(error.args[0]) if error.args else ""
        if isinstance(error, OSError) and error.strerror:
            said = error.strerror
        if isinstance(error, TimeoutError) and not said:
            said = "no answer in time"
        line = (said or type(error).__name__).strip().splitlines()[0]
        for secret in self._secrets:
            line = line.replace(secret, "…")
        return line

    def failed(self, error: BaseException, *, reading: bool = False) -> TreeringError:
        """Return the error for those who wait, with the driver's as its cause."""
        if isinstance(error, TreeringError):
            return error
        meaning = sort(error)
        if meaning is Sort.FULL:
            out = StoreError("store_full", f"{self.shown} can't grow: the disk is full", hint="make room on its disk")
        elif meaning is Sort.OURS and not reading:
            out = StoreError("store_failed", f"a write to {self.shown} failed: {self.sentence(error)}")
        else:
            verb = "read" if reading else "written"
            out = StoreError("store_failed", f"{self.shown} can't be {verb}: {self.sentence(error)}")
        out.__cause__ = error
        return out


class Link:
    """Makes connections to one database, all alike."""

    def __init__(self, address: Address, durability: Durability) -> None:
        self.address = address
        self._settings = {
            "application_name": "treering",
            "search_path": "treering",
            "synchronous_commit": _SYNCHRONOUS[durability],
            "statement_timeout": f"{int(COMMAND_S * 900)}",
            "lock_timeout": f"{int(LOCK_S * 1000)}",
            "idle_in_transaction_session_timeout": f"{int(IDLE_S * 1000)}",
            "jit": "off",
            # What is asked is found by an index. While a table is small a plan without one looks as good, and a plan
            # is kept for as long as the table takes to be measured again.
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
        }

    def __repr__(self) -> str:
        return f"<Link {self.address.shown}>"

    async def connect(self, *, climbing: bool = False) -> Connection:
        """Return a new connection. Raises the driver's errors; unless `climbing`, `StoreError` as `schema.version`."""
        async with asyncio.timeout(CONNECT_S):
            db: Connection = await asyncpg.connect(
                self.address.url, timeout=CONNECT_S, command_timeout=COMMAND_S, server_settings=self._settings
            )
        if not climbing:
            await self._check(db)
        return db

    async def pool(self) -> Pool:
        """Return a pool; it makes its connections as they are needed. Raises the driver's errors."""
        pool: Pool = await asyncpg.create_pool(
            self.address.url,
            min_size=0,
            max_size=POOL,
            max_inactive_connection_lifetime=0.0,
            timeout=CONNECT_S,
            command_timeout=COMMAND_S,
            server_settings=self._settings,
            # What we run leaves nothing behind that would have to be reset: a round trip less.
            reset=_nothing,
            init=self._check,
        )
        return pool

    async def _check(self, db: Connection) -> None:
        """See that no newer Treering has climbed on while we were away: we would write what it can't read."""
        try:
            found = await schema.version(db)
            if found != schema.VERSION:
                raise StoreError("store_failed", f"{self.address.shown} was emptied while it was in use")
        except BaseException:  # cancelled in the middle, a connection is no more good
            await discard(db)
            raise


async def _nothing(_db: Connection) -> None:
    return


async def discard(db: Connection | None) -> None:
    """Let go of a connection that can't be trusted any more."""
    if db is not None and not db.is_closed():
        db.terminate()
        # Let its transport see the end, within this turn of the loop.
        await asyncio.sleep(0)
