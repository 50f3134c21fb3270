"""docs/engines.md says what each adapter asks for."""

from pathlib import Path

import pytest

from capture.dialects.chat import Chat
from capture.onboarding import ADAPTERS
from tests.playbook import body

PAGE = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
ROWS = {cells[1].strip().strip("`"): cells for line in PAGE.splitlines() if len(cells := line.split("|")) == 10}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_every_kind_has_a_row_that_names_what_is_asked_for(kind: str) -> None:
    adapter = ADAPTERS[kind]()
    plain, streamed, tier = ROWS[kind][2], ROWS[kind][3], ROWS[kind][8]
    if "the same" in streamed:
        streamed += plain
    for column, asked in ((plain, body()), (streamed, body(stream=True))):
        for name in adapter.inject(Chat().read(asked)):
            assert f"`{name}" in column
    assert tier.strip() == f"`{adapter.require_tier}`"
