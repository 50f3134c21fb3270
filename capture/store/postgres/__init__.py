"""The PostgreSQL store: any number of processes, on any number of machines, over one database.

store     what the loop sees          writer    groups, retries, debts
prepared  a write made ready; pure    kept      content by digest, bodies as references; pure
batch     writes applied to what is stored      changes, contents   what of it is written, a statement a table
rollouts  rollouts, engines, answers  calls     reads of calls       states    what tool servers keep
leases    who is alive, and the calls of those who aren't
schema    the format's ladder         link      connections, time limits, what an error means      driver    asyncpg

asyncpg is imported here alone: a Treering over SQLite doesn't need it.
"""

from __future__ import annotations

from capture.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
