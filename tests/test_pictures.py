"""docs/pictures: the files are what the generator makes, and nothing else lies there that it should have made."""

import re
from xml.etree import ElementTree

import pytest

from tests.pictures import FOLDER, PICTURES, draw
from tests.served import ROOT


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_generator_makes(name):
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == draw(name), "python -m tests.pictures"


def test_no_picture_is_left_from_before():
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(PICTURES)


def test_every_picture_is_shown_with_words_for_it():
    text = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    shown = dict(re.findall(r"!\[([^\]]*)\]\((?:docs/)?pictures/([a-z-]+)\.svg\)", text))
    assert set(shown.values()) == set(PICTURES)
    assert all(shown)


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_fetched_and_nothing_runs(name):
    drawn = draw(name)
    tree = ElementTree.fromstring(drawn)
    names = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert names <= {"svg", "title", "desc", "style", "rect", "circle", "path", "text"}
    assert not re.search(r"href|url\(|@import|on[a-z]+=", drawn)
