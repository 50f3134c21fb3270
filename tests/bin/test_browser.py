"""The browser is found by either of its names, and its absence is one sentence."""

import pytest

from bin import browser, setup


class Tools:
    """bin/setup.py, that must not get so far as to fetch anything."""

    SetupError = setup.SetupError


def a_program(path):
    path.touch(mode=0o755)
    return str(path)


def test_it_is_found_by_debians_name_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser.find_chromium() is None
    other = a_program(tmp_path / "chromium-browser")
    assert browser.find_chromium() == other
    ours = a_program(tmp_path / "chromium")
    assert browser.find_chromium() == ours


def test_without_it_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.SetupError, match=r"install Debian's package chromium$"):
        browser.set_up(Tools())


def test_it_is_a_part_of_the_setup():
    assert "real-browser" in setup.PARTS
    assert set(setup.versions("browser")) == {"playwright", "greenlet"}
    assert "axe-core" in setup.versions("npm")
