"""What exporters hold their own output against, where a library would take a broken one and train on it.

Each function takes lists or arrays, so that what came back from JSON is checked by the same words, and raises `Refused`
with `where` in front, which names the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph.formats.refused import Refused

FAULT = "This is a fault in the rows themselves; format=native shows them."


def one_length(where: str, arrays: dict[str, Sequence[Any] | np.ndarray]) -> None:
    """Refuse arrays of different lengths, and empty ones."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise Refused(f"{where}: {', '.join(f'{n} {name}' for name, n in lengths.items())}.", hint=FAULT)
    if 0 in lengths.values():
        raise Refused(f"{where}: {' and '.join(lengths)} {'is' if len(lengths) == 1 else 'are'} empty.", hint=FAULT)


def token_ids(where: str, ids: Sequence[int] | np.ndarray) -> None:
    """Refuse ids that no vocabulary has."""
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and int(array.min()) < 0):
        raise Refused(f"{where}: token ids are whole numbers, 0 or more, in one list.", hint=FAULT)


def scored(where: str, mask: Sequence[Any] | np.ndarray, logprobs: Sequence[float] | np.ndarray) -> None:
    """Refuse a mask of other than 0 and 1 or without a 1, and logprobs that do not go with it.

    A trained token has a finite logprob; one that is not trained has 0.0.
    """
    masks, values = np.asarray(mask), np.asarray(logprobs, dtype=np.float64)
    trained = masks == 1
    if not (trained | (masks == 0)).all():
        raise Refused(f"{where}: the mask has other values than 0 and 1.", hint=FAULT)
    if not trained.any():
        raise Refused(f"{where}: nothing is trained.", hint="Leave the row out.")
    if not np.isfinite(values[trained]).all():
        raise Refused(f"{where}: a trained token has no logprob.", hint=FAULT)
    if (values[~trained] != 0.0).any():
        raise Refused(f"{where}: a token that is not trained has a logprob.", hint=FAULT)
