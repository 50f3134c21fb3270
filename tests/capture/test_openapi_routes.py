"""The table of routes: true to the routers, and to what the routes read."""

import re

import pytest

from capture import api, bulk, exports, listing, paths, token_text
from capture.openapi_routes import TABLE


def rows(plane):
    return {(row.method, row.path): row for row in TABLE if row.plane == plane}


def test_every_route_of_the_control_plane_is_in_it_and_no_other():
    served = {(route.method, route.path) for route in api.routes(None)}
    # The page's own files are no interface.
    pages = {(method, path) for method, path in served if path == "/" or path.startswith("/page")}
    assert set(rows("control")) == served - pages


def test_every_route_of_the_data_plane_means_what_it_says():
    for method, path in rows("data"):
        kind = paths.locate(method, re.sub(r"\{[a-z]+\}", "x", path)).kind
        assert kind not in ("unknown", "relay"), path


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/rollouts", listing.LISTED),
        ("/overview", listing.SUMMED),
        ("/rollouts/{id}", api._SHOW),
        ("/rollouts/{id}/calls", api._CALLS),
        ("/rollouts/{id}/calls/{n}/text", token_text.ASKED),
        ("/rollouts/{id}/sequences", {**exports.ASKED, "open": None, "ids": None}),
        ("/sequences", bulk.ASKED),
    ],
)
def test_a_query_is_what_its_route_reads(path, read):
    assert set(rows("control")["GET", path].query) == set(read)
