"""Libraries that do not install lightly read our exports, where somebody has them: see docs/trainers/README.md.

TREERING_SLIME, TREERING_MILES, TREERING_SKYRL, TREERING_AREAL, TREERING_PRIME_RL and TREERING_VERL name a folder with
the library's code. It runs in TRL's environment, which has torch, numpy and pydantic; of SkyRL, AReaL and verl, what is
asked is taken out of its file, since what the file imports wants a cluster.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graph.formats.refused import Refused
from tests.real import library, program
from tests.real.handmade import Made, drawn, native

# Library → its variable, its format.
LIBRARIES = {
    "slime": ("TREERING_SLIME", "slime"),
    "miles": ("TREERING_MILES", "slime"),
    "skyrl": ("TREERING_SKYRL", "skyrl"),
    "areal": ("TREERING_AREAL", "areal"),
    "prime-rl": ("TREERING_PRIME_RL", "prime-rl"),
    "verl": ("TREERING_VERL", "verl"),
}
# prime-rl's struct needs msgspec, which this Python has, and nothing else.
PYTHONS = {"prime-rl": Path(sys.executable)}
NAMED = [name for name, (variable, _) in LIBRARIES.items() if os.environ.get(variable)]


def forms(made: list[Made], format_: str) -> list[tuple[Made, Any]]:
    """Return the rollouts that a format can carry, in it."""
    found = []
    for one in made:
        try:
            found.append((one, one.form(format_)))
        except Refused:  # ungraded, or without a temperature: other tests say which
            continue
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMED)
def test_it_reads_what_was_made_by_hand(name: str, made: list[Made], tmp_path: Path):
    variable, format_ = LIBRARIES[name]
    given = Path(os.environ[variable]).expanduser()
    python = PYTHONS.get(name, program.REAL / "trl" / "bin" / "python")
    case = forms(made, format_)
    assert len(case) > len(made) / 2
    asked, report = tmp_path / "case.json", tmp_path / "report.json"
    asked.write_bytes(library.encoded([form for _, form in case]))
    subprocess.run(
        [str(python), str(library.HERE / "read_optional.py"), name, str(asked), str(report)],
        env=program.environment(tmp_path) | {"PYTHONPATH": str(given)},
        cwd=tmp_path,
        timeout=library.LIMIT_S,
        check=True,
    )
    for (one, _), rows in zip(case, msgspec.json.decode(report.read_bytes()), strict=True):
        assert drawn(rows) == drawn(native(one.form("native"))), one.name
