"""The PostgreSQL store: any number of processes, on any number of machines, over one database.

schema    the format's ladder         link     connections, time limits, and what an error means
kept      content by digest; pure     batch    many writes about calls as a few statements
rollouts  writes and reads of rollouts, engines and answers
calls     reads of calls              leases   who is alive, and the calls of those who aren't
writer    groups, retries, debts      store    what the loop sees

asyncpg is imported here alone: a Treering over SQLite doesn't need it.
"""

from __future__ import annotations

from capture.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
