"""The OpenAPI document: true to the routers, to what the routes read, and to itself."""

import re

import pytest

from capture import api, bulk, exports, paths
from capture.openapi import document
from capture.openapi_routes import TABLE
from tests.house import house


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
        ("/rollouts", api._LIST),
        ("/rollouts/{id}", api._SHOW),
        ("/rollouts/{id}/calls", api._CALLS),
        ("/rollouts/{id}/sequences", {**exports.ASKED, "open": None}),
        ("/sequences", bulk.ASKED),
    ],
)
def test_a_query_is_what_its_route_reads(path, read):
    assert set(rows("control")["GET", path].query) == set(read)


def test_each_reference_leads_somewhere_and_each_form_is_used():
    said = document()
    found = set()

    def walk(thing):
        if isinstance(thing, dict):
            if "$ref" in thing:
                found.add(thing["$ref"])
            for each in thing.values():
                walk(each)
        elif isinstance(thing, list):
            for each in thing:
                walk(each)

    walk(said)
    assert found == {f"#/components/schemas/{name}" for name in said["components"]["schemas"]}


def test_operations_have_names_of_their_own():
    names = [each["operationId"] for item in document()["paths"].values() for each in item.values() if "tags" in each]
    assert len(names) == len(set(names)) == len(TABLE)


async def test_it_is_served_with_the_address_of_the_data_plane(tmp_path):
    async with house("scripted", tmp_path) as home:
        said = await home.control("GET", "/openapi.json")
        assert said["openapi"] == "3.1.0"
        assert said["paths"]["/v1/chat/completions"]["servers"] == [{"url": home.appliance.data_url}]
        assert "servers" not in said["paths"]["/rollouts"]
