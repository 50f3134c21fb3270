import importlib

import pytest

from benchmarks.__main__ import MEASUREMENTS, main


def test_every_measurement_is_there() -> None:
    assert all(callable(importlib.import_module(f"benchmarks.{name}").run) for name in MEASUREMENTS)


@pytest.mark.parametrize(("words", "code"), [([], 2), (["speed"], 2), (["--help"], 0)])
def test_other_words_list_what_there_is(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    said = capsys.readouterr()
    assert "overhead" in (said.err if code else said.out)
