import json
import sys
from types import ModuleType

import pytest

from benchmarks import store


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, bool]]:
    """Stand in for what measures; holds what was asked of it."""
    asked: list[tuple[str, bool, bool]] = []

    def part(key: str, name: str) -> None:
        module = ModuleType(name)

        def rows(*, quick: bool, kill: bool) -> list[store.Row]:
            asked.append((key, quick, kill))
            return [{"store": key}]

        module.rows, module.table = rows, lambda rows: f"| {rows[0]['store']} |"
        module.__spec__ = object()
        monkeypatch.setitem(sys.modules, name, module)

    for key, name in store.PARTS.items():
        part(key, name)
    return asked


def test_every_part_is_measured_printed_and_kept_under_its_key(parts, tmp_path, capsys):
    file = tmp_path / "store.json"
    assert store.run(["--quick", "--json", str(file)]) == 0
    assert parts == [("rows", True, False), ("exports", True, False)]
    told = json.loads(file.read_text())
    assert (told["benchmark"], told["rows"], told["exports"]) == ("store", [{"store": "rows"}], [{"store": "exports"}])
    assert capsys.readouterr().out == "| rows |\n| exports |\n"


def test_kills_are_measured_alone_and_published_apart(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "KILLS", tmp_path / "store-kill.json")
    monkeypatch.setattr(store, "PUBLISHED", tmp_path / "store.json")
    store.run(["--kill", "--docs"])
    assert parts == [("rows", False, True)]
    assert json.loads((tmp_path / "store-kill.json").read_text())["rows"] == [{"store": "rows"}]
    assert not (tmp_path / "store.json").exists()


def test_one_part_alone(parts, capsys):
    store.run(["--only", "exports"])
    assert parts == [("exports", False, False)]


def test_what_is_published_keeps_the_part_that_was_not_measured(parts, tmp_path, monkeypatch, capsys):
    published = tmp_path / "store.json"
    monkeypatch.setattr(store, "PUBLISHED", published)
    store.run(["--only", "rows", "--docs"])
    store.run(["--only", "exports", "--docs"])
    told = json.loads(published.read_text())
    assert told["rows"] == [{"store": "rows"}]
    assert told["exports"] == [{"store": "exports"}]


def test_a_page_shows_the_last_run_alone():
    page = f"# Export\n\n{store.BEGIN}\n{store.END}\n\nMore.\n"
    once = store.with_table(page, "| 1 |\n")
    again = store.with_table(once, "| 2 |\n")
    assert "| 1 |" in once
    assert "| 1 |" not in again
    assert again.count("cores, load") == 1
    assert again.endswith(f"| 2 |\n\n{store.END}\n\nMore.\n")
    with pytest.raises(ValueError, match="substring"):
        store.with_table("# Export\n", "| 1 |\n")
