"""The OpenAPI document: whole, and served."""

from capture.openapi import document
from capture.openapi_routes import TABLE
from tests.house import house


def test_operations_have_names_of_their_own():
    names = [each["operationId"] for item in document()["paths"].values() for each in item.values() if "tags" in each]
    assert len(names) == len(set(names)) == len(TABLE)


async def test_it_is_served_with_the_address_of_the_data_plane(tmp_path):
    async with house("scripted", tmp_path) as home:
        said = await home.control("GET", "/openapi.json")
        assert said["openapi"] == "3.1.0"
        assert said["paths"]["/v1/chat/completions"]["servers"] == [{"url": home.appliance.data_url}]
        assert "servers" not in said["paths"]["/rollouts"]
