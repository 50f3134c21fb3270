"""Connections: what an error means, and that no word of it is the password."""

import pytest

from capture.errors import StoreError, UsageError
from capture.store.postgres.driver import asyncpg, columns
from capture.store.postgres.link import Address, Sort, sort
from tests.capture.store.places import DatabasePlace
from tests.postgres import PASSWORD, QUOTED

URL = "postgresql://user:s%40cret@db.example:5433/t"


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (ConnectionRefusedError(111, "Connection refused"), Sort.DOWN),
        (TimeoutError(), Sort.DOWN),
        (asyncpg.ConnectionDoesNotExistError("x"), Sort.DOWN),
        (asyncpg.InterfaceError("connection is closed"), Sort.DOWN),
        (asyncpg.AdminShutdownError("x"), Sort.DOWN),
        (asyncpg.CrashShutdownError("x"), Sort.DOWN),
        (asyncpg.CannotConnectNowError("x"), Sort.DOWN),
        (asyncpg.TooManyConnectionsError("x"), Sort.DOWN),
        (asyncpg.IdleInTransactionSessionTimeoutError("x"), Sort.DOWN),
        (asyncpg.DeadlockDetectedError("x"), Sort.RACE),
        (asyncpg.SerializationError("x"), Sort.RACE),
        (asyncpg.DiskFullError("x"), Sort.FULL),
        (asyncpg.OutOfMemoryError("x"), Sort.FAILED),
        (asyncpg.LockNotAvailableError("x"), Sort.FAILED),
        (asyncpg.ReadOnlySQLTransactionError("x"), Sort.FAILED),
        (asyncpg.InvalidPasswordError("x"), Sort.FAILED),
        (asyncpg.InvalidCatalogNameError("x"), Sort.FAILED),
        (asyncpg.IndexCorruptedError("x"), Sort.FAILED),
        (asyncpg.UniqueViolationError("x"), Sort.OURS),
        (asyncpg.UndefinedTableError("x"), Sort.OURS),
        (asyncpg.exceptions._base.DataError("an argument that can't be sent"), Sort.OURS),
        (ZeroDivisionError("bug"), Sort.OURS),
    ],
)
def test_what_an_error_means(error, meaning):
    assert sort(error) is meaning


def test_a_sentence_is_one_line_without_details_and_without_the_password():
    address = Address(URL)
    error = asyncpg.UniqueViolationError("no s@cret,\nnor s%40cret")
    error.detail = "Key (secret)=(s@cret) already exists."
    assert address.sentence(error) == "no …,"
    assert address.sentence(asyncpg.PostgresError("with s%40cret in it")) == "with … in it"
    assert address.sentence(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert address.sentence(TimeoutError()) == "no answer in time"
    assert address.sentence(ZeroDivisionError()) == "ZeroDivisionError"
    assert repr(address) == "<Address postgresql://user@db.example:5433/t>"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (asyncpg.DiskFullError("x"), "store_full", "the disk is full"),
        (ConnectionRefusedError(111, "Connection refused"), "store_failed", "can't be written: Connection refused"),
        (ZeroDivisionError("bug"), "store_failed", "a write to postgresql://user@db.example:5433/t failed: bug"),
    ],
)
def test_what_those_who_wait_are_told(error, code, said):
    failed = Address(URL).failed(error)
    assert isinstance(failed, StoreError)
    assert (failed.code, failed.status) == (code, 507 if code == "store_full" else 503)
    assert said in failed.message
    assert failed.__cause__ is error
    assert Address(URL).failed(failed) is failed


def test_rows_become_columns():
    assert columns([(1, "a"), (2, "b")], 2) == [[1, 2], ["a", "b"]]
    assert columns([], 2) == [[], []]


def test_an_option_that_cannot_be_understood_is_a_usage_error():
    with pytest.raises(UsageError):
        Address("postgresql://host/t?sslmode")


# -- opening


async def test_a_server_that_is_not_there_is_an_error_that_names_it(postgres, database):
    await postgres.drop(database.url)
    with pytest.raises(StoreError, match="does not exist") as caught:
        await database.store().open()
    assert caught.value.code == "store_failed"
    nobody = DatabasePlace("postgresql://u:hidden@127.0.0.1:1/t")
    with pytest.raises(StoreError, match=r"postgresql://u@127\.0\.0\.1:1/t can't be opened") as caught:
        await nobody.store().open()
    assert "hidden" not in str(caught.value)


async def test_a_wrong_password_is_refused_and_not_said(database):
    wrong = DatabasePlace(database.url.replace(QUOTED, "wr%40ng"))
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        await wrong.store().open()
    said = f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert "wr@ng" not in said
    assert PASSWORD not in said
