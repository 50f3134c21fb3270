import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import pages, performance


def test_the_docs_conclude_from_the_runs_that_lie_beside_them() -> None:
    page = performance.PAGE.read_text()
    assert performance.with_conclusions(page, performance.documents()) == page


def test_every_part_has_its_place_in_the_docs() -> None:
    page = performance.PAGE.read_text()
    for name in performance.PARTS:
        assert pages.between(page, name).strip()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    marks = [*performance.PARTS, "goals", "sizing"]
    page.write_text("".join(f"<!-- {name}: made by x -->\n<!-- end of {name} -->\n" for name in marks))

    def part(name: str, made: performance.Part) -> performance.Part:
        async def measure() -> dict[str, Any]:
            if name == "replay":
                raise RuntimeError("no core was left")
            return json.loads(made.document.read_text())

        return msgspec.structs.replace(made, measure=measure, quick=measure, document=tmp_path / made.document.name)

    for made in performance.PARTS.values():
        (tmp_path / made.document.name).write_text(made.document.read_text())
    monkeypatch.setattr(performance, "PARTS", {name: part(name, made) for name, made in performance.PARTS.items()})
    monkeypatch.setattr(performance, "PAGE", page)
    return page


def test_a_part_that_fails_does_not_keep_the_others_from_the_docs(
    parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert performance.run(["--docs"]) == 1
    assert "replay: RuntimeError('no core was left')" in capsys.readouterr().err
    page = parts.read_text()
    assert not pages.between(page, "replay")
    assert all(pages.between(page, name) for name in ("overhead", "calls", "memory", "workers", "goals", "sizing"))


def test_a_short_run_writes_no_docs(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = parts.read_text()
    assert performance.run(["--quick", "--docs", "--only", "calls"]) == 0
    assert parts.read_text() == before
    assert "the 1,000th call of a rollout" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        performance.run(["--only", "nothing"])
