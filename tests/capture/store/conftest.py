"""`place` is a place of a store, of each sort in turn; `store` a store that is open over it."""

import pytest

from tests.capture.store.places import FilePlace, opened, with_database


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def place(request, tmp_path):
    if request.param == "sqlite":
        yield FilePlace(tmp_path)
        return
    async with with_database(request.getfixturevalue("postgres")) as found:
        yield found


@pytest.fixture
async def database(postgres):
    """A place in PostgreSQL alone."""
    async with with_database(postgres) as found:
        yield found


@pytest.fixture
async def store(place):
    store = await opened(place)
    yield store
    await store.close()
