import os
import stat
import subprocess
import sys

import pytest

from capture.errors import StoreError
from capture.store.lock import Lock


def test_one_holds_it_and_the_other_is_told_who(tmp_path):
    one, two = Lock(tmp_path / "t.db"), Lock(tmp_path / "t.db")
    one.take()
    with pytest.raises(StoreError, match=rf"t\.db is in use by process {os.getpid()}"):
        two.take()
    one.free()
    one.free()
    two.take()
    two.free()


def test_it_ends_with_its_process(tmp_path):
    code = (
        f"from pathlib import Path; from capture.store.lock import Lock; Lock(Path({str(tmp_path / 't.db')!r})).take()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    lock = Lock(tmp_path / "t.db")
    lock.take()
    lock.free()


def test_its_file_is_the_owners(tmp_path):
    lock = Lock(tmp_path / "t.db")
    lock.take()
    assert stat.S_IMODE((tmp_path / "t.db-lock").stat().st_mode) == 0o600
    assert repr(lock).endswith("held>")
    lock.free()
    assert repr(lock).endswith("free>")
