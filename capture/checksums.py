"""Check sums of a rollout's prompts, each worked out from that of the call whose ids it begins with.

A stored prompt is verified by the CRC-32 of all its bytes when it is put together (`capture.store.prompts`). A prompt
of 100,000 ids that adds 500 has one that is known but for those: CRC-32 goes on from where it stopped.
"""

from __future__ import annotations

from array import array

from capture.store import rows
from graph.records import IntArray

_UNKNOWN = -1


class Checksums:
    """Of each call the check sum of its prompt, and of prompt and sampled ids; 16 bytes a call."""

    def __init__(self) -> None:
        self._prompts: array[int] = array("q")
        self._paths: array[int] = array("q")

    def __repr__(self) -> str:
        return f"<Checksums of {sum(each != _UNKNOWN for each in self._prompts)} calls>"

    def of(self, prompt: IntArray, *, holder: int, shared: int, n_prompt: int, depth: int) -> int:
        """Return the check sum of a prompt whose first `shared` ids are those of call `holder`.

        That call's prompt has `n_prompt` ids, and `depth` with those that it sampled.
        """
        ids = rows.little(prompt)
        if holder < len(self._prompts) and self._prompts[holder] != _UNKNOWN:
            for end, check in ((depth, self._paths[holder]), (n_prompt, self._prompts[holder])):
                if end <= shared:
                    return rows.check(ids[end:].data, check)
        return rows.check(ids.data)

    def keep(self, n: int, check: int, sampled: IntArray) -> None:
        """Note the check sum of call `n`'s prompt."""
        more = n + 1 - len(self._prompts)
        for column in (self._prompts, self._paths):
            column.extend([_UNKNOWN] * more)
        self._prompts[n], self._paths[n] = check, rows.check(rows.little(sampled).data, check)
