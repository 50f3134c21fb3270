"""The store: where rollouts and calls are kept. `base` is the interface; one file (or folder) a database."""
