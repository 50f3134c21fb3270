"""Several processes on one machine: a supervisor with the control plane, and workers that serve one data port.

    agents ──▶ one listening socket ──▶ worker 1 … worker N ──▶ engines
                                            │  channel: a socket pair, one a worker
    trainers ──▶ control plane ──▶ supervisor ──▶ SQLite (PostgreSQL: each worker has its own connections)

Reading order: `frames`, `exchanges` and `records` (what passes), `channel` (asking and answering), `remote` and `desk`
(the store over a channel: the worker's end and the supervisor's), `worker`, `supervisor`.
"""
