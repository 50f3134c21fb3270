"""The forms: each is what the document refers to, and what the code says of the same."""

import msgspec
import pytest

from capture.openapi import document
from capture.openapi_forms import schemas
from capture.registration import New
from tests.house import house


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


def test_a_registration_has_the_fields_that_are_read():
    one, several = schemas()["Registration"]["anyOf"]
    assert set(one["properties"]) == set(New.__struct_fields__)
    assert set(several["properties"]["rollouts"]["items"]["properties"]) == set(New.__struct_fields__) - {"n"}


@pytest.mark.parametrize(
    ("path", "name"), [("", "Rollout"), ("/graph", "Graph"), ("/calls/0", "Call"), ("/findings", "Finding")]
)
async def test_what_is_required_is_there(path, name, tmp_path):
    async with house("scripted", tmp_path) as home:
        rollout = await home.rollout()
        async with home.chat(rollout) as answer:
            await answer.read()
        await home.idle(rollout)
        found = await home.control("GET", f"/rollouts/{rollout['id']}{path}")
        shown = found["findings"][0] if name == "Finding" else found
        form = schemas()[name]
        assert set(form["required"]) <= set(shown)
        # No field of a rollout or a call is passed over in silence.
        if name in ("Rollout", "Graph", "Finding"):
            assert set(shown) == set(form["properties"])
    assert msgspec.json.encode(form)
