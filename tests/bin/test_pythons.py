"""A Python is found, else fetched, else its absence is one sentence."""

import json

import pytest

from bin import pythons, setup


class Tools:
    """bin/setup.py, with some Pythons at hand, and a uv that fetches or doesn't."""

    SetupError = setup.SetupError

    def __init__(self, at_hand, *, uv="uv", fetches=True):
        self.at_hand, self.uv, self.fetches = at_hand, uv, fetches
        self.ran = []

    def find_python(self, version):
        return self.at_hand.get(version)

    def find_uv(self):
        return self.uv

    def pins(self, table, folder):
        return f"{table}.txt"

    def install_environment(self):
        return {"UV_PYTHON_DOWNLOADS": "never"}

    def run(self, argv, *, env, limit_s):
        self.ran.append((argv, env))
        if not self.fetches:
            raise self.SetupError("uv python failed with exit code 1")
        name = argv[-1]
        folder = pythons.Path(env["UV_PYTHON_INSTALL_DIR"]) / f"cpython-{name}.9-linux" / "bin"
        folder.mkdir(parents=True)
        (folder / f"python{name}").touch()

    def started(self, interpreter, version):
        return interpreter


def test_what_is_at_hand_is_taken_and_the_rest_is_fetched(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(pythons, "dependencies", lambda tools: ["x>=1,<2"])
    monkeypatch.setattr(pythons, "download", lambda tools, version, folder, *wanted: loaded.append((version, *wanted)))
    tools = Tools({(3, 11): "/bin/python3.11", (3, 13): "/bin/python3.13"})
    pythons.install(tools, tmp_path / "pythons")
    found = json.loads((tmp_path / "pythons" / "pythons.json").read_text())
    assert found["3.11"] == "/bin/python3.11"
    assert found["3.12"] == str(tmp_path / "pythons/fetched/cpython-3.12.9-linux/bin/python3.12")
    ((argv, env),) = tools.ran
    assert argv == ["uv", "python", "install", "-q", "--no-bin", "3.12"]
    assert env["UV_PYTHON_DOWNLOADS"] == "manual"
    assert loaded == [
        *((version, "-c", "test.txt", "x>=1,<2") for version in pythons.VERSIONS),
        ((3, 11), "--no-deps", "-r", "oldest.txt"),
    ]


def numbers(version):
    return tuple(map(int, version.split(".")))


def test_the_oldest_are_those_that_pyproject_allows():
    pinned = setup.versions("oldest")
    for name, least in map(pythons.first, pythons.dependencies(setup)):
        assert numbers(pinned[name]) == numbers(least), name
    assert pythons.first("backports.zstd>=1,<2; python_version < '3.14'") == ("backports-zstd", "1")
    with pytest.raises(ValueError, match="names no first version"):
        pythons.first("x<2")


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (Tools({}, uv=None), r"^there is no Python 3\.11 here, and no uv to fetch one: put python3\.11 on the PATH$"),
        (Tools({}, fetches=False), r"^there is no Python 3\.11 here, and uv could not fetch one: put python3\.11 on"),
    ],
)
def test_one_that_cannot_be_had_is_a_sentence(tools, said, tmp_path):
    with pytest.raises(setup.SetupError, match=said):
        pythons.install(tools, tmp_path / "pythons")
    assert not (tmp_path / "pythons" / "pythons.json").exists()
