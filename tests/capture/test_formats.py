"""The table of formats holds what it says."""

import importlib
import inspect

import pytest

from capture.formats import FORMATS


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
