"""The trainers' environments are made from pins alone, and say what they lack."""

from typing import Any

import pytest

from bin import setup, trainers


def test_every_library_has_its_pins_and_its_part():
    for name, trainer in trainers.TRAINERS.items():
        assert f"real-{name}" in setup.PARTS
        assert any(name in setup.versions(table) for table in trainer.tables)
    assert setup.GROUPS["real-trainers"] == [f"real-{name}" for name in trainers.TRAINERS]


def test_an_environment_of_two_tables_has_no_package_twice():
    """Two pins of one package could differ, and neither installer would say which it took."""
    for trainer in trainers.TRAINERS.values():
        names = [name for table in trainer.tables for name in setup.versions(table)]
        assert len(set(names)) == len(names)


def test_no_version_of_torch_can_be_a_cuda_build():
    tables = [setup.versions(table) for trainer in trainers.TRAINERS.values() for table in trainer.tables]
    assert {pins["torch"] for pins in tables if "torch" in pins} == {setup.versions("vllm")["torch"]}
    assert not [name for pins in tables for name in pins if name.startswith(("nvidia", "cuda", "torchvision"))]


@pytest.mark.parametrize(("name", "told"), [("trl", True), ("tinker", False)])
def test_a_failing_install_says_where_torch_may_be_had(name: str, told: bool, monkeypatch):
    def fail(argv: list[str], **options: Any) -> str:
        raise setup.SetupError("uv pip failed with exit code 1")

    monkeypatch.setattr(setup, "run", fail)
    monkeypatch.setattr(setup, "make_venv", lambda *_: None)
    monkeypatch.setattr(setup, "need_python", lambda *_: "python")
    monkeypatch.setattr(setup, "installer", lambda *_: ["uv"])
    with pytest.raises(setup.SetupError, match=r"^uv pip failed") as caught:
        trainers.install(setup, name)
    assert (setup.TORCH_LINKS in str(caught.value)) == told


def test_a_library_that_does_not_import_is_not_whole(monkeypatch):
    """The last thing that is run is an import; its failure is the install's."""
    ran: list[list[str]] = []

    def run(argv: list[str], **options: Any) -> str:
        ran.append(argv)
        if "-c" in argv:
            raise setup.SetupError("python -c failed with exit code 1")
        return ""

    monkeypatch.setattr(setup, "run", run)
    monkeypatch.setattr(setup, "make_venv", lambda *_: None)
    monkeypatch.setattr(setup, "need_python", lambda *_: "python")
    monkeypatch.setattr(setup, "installer", lambda *_: ["uv"])
    with pytest.raises(setup.SetupError, match=r"^python -c failed"):
        trainers.install(setup, "tinker")
    install, check = ran
    assert install[:2] == ["uv", "--no-deps"]
    assert check[-1] == "import tinker"
