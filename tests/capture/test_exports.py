"""What sequences may be asked for; the forms themselves are tests/graph's."""

import pytest

from capture.errors import ClientError
from capture.exports import FORMATS, export, export_in
from graph.sequences import DRIFTS, Options


@pytest.mark.parametrize(
    ("asked", "format_", "drift"),
    [
        ({}, "native", "split"),
        ({"drift": "realign"}, "native", "realign"),
        ({"drift": "tree"}, "tree", "tree"),
        ({"format": "tree"}, "tree", "tree"),
    ],
)
def test_a_format_and_what_it_does_at_a_drift_imply_each_other(asked, format_, drift):
    found = export(asked)
    assert (found.format, found.options) == (format_, Options(drift=drift))


def test_all_else_goes_into_the_options():
    asked = {"roles": ("main", "subagent"), "drift": "realign", "threshold": 7, "constrained": "train"}
    assert export(asked).options == Options(**asked)


def test_what_a_format_cannot_do_is_refused_by_name():
    with pytest.raises(ClientError, match="format=tree has no drift=split") as caught:
        export({"format": "tree", "drift": "split"})
    assert caught.value.status == 422


def test_a_body_has_the_options_as_json_values():
    body = {"roles": ["main", "summary"], "threshold": 7, "drift": "realign"}
    assert export_in(body).options == Options(roles=("main", "summary"), threshold=7, drift="realign")
    with pytest.raises(ClientError) as caught:
        export_in({"format": "native", "drift": "tree"})
    assert caught.value.code == "invalid_body"


def test_every_drift_has_a_format():
    assert {drift for drifts in FORMATS.values() for drift in drifts} == set(DRIFTS)
