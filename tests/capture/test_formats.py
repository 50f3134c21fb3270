"""The table of formats holds what it says."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from capture import exports
from capture.formats import FORMATS

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_each_has_its_module(name):
    module = importlib.import_module(FORMATS[name].module)
    given = list(inspect.signature(module.to_json).parameters)
    assert given == {"native": ["sequences"], "tree": ["tree"]}.get(name, ["graph", "sequences"])


def test_each_has_a_line_for_people_and_a_drift():
    for name, each in FORMATS.items():
        assert name == each.name
        assert each.help.endswith(".")
        assert each.drifts


def test_the_docs_name_each_format_and_each_refusal():
    page = (DOCS / "export.md").read_text()
    (listed,) = re.findall(r"^\| `format` \| (.*) \| the form \|$", page, re.M)
    assert re.findall(r"`([\w-]+)`", listed) == list(FORMATS)
    codes = set(re.findall(r"^    (\w+) {2,}\w", exports.__doc__, re.M))
    assert codes
    assert codes <= set(re.findall(r"`(\w+)`", page))
    for name, each in FORMATS.items():
        if each.drifts == ("split",):
            assert f"`{name}`" in page.partition("take `split` alone")[0].rpartition("`realign`, `tree`")[2]
