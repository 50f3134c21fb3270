"""The store: where rollouts and calls are kept. `base` is the interface; `open_store` picks the database by URL.

sqlite      the store in one file: what the loop sees
writer      the thread that commits in groups      writes, reads    what each does to the file
contents    values and message lists, once each    bodies           JSON taken apart by key
migrations  the format's ladder                    rows, canonical  records to columns and back
check       is all of it there? (its faults)       backup           a copy while it is in use
retention   what is old, into an archive and out
"""

from __future__ import annotations

from capture.store.base import Store
from capture.store.opening import open_store

__all__ = ["Store", "open_store"]
