"""What is compiled, where that was built (`setup.py`): each module has its twin in Python, which serves without it."""

from __future__ import annotations

import importlib
from types import ModuleType


def maybe_compiled(name: str) -> ModuleType | None:
    """Return the module of that name that is in C; None where it was not built."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
