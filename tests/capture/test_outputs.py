"""A file in the making: what is on the disk at each moment."""

import json

import pytest

from capture.errors import CaptureError, ClientError, UsageError
from capture.outputs import Output
from capture.pages import End

LINE = b'{"rollout":"a"}\n'
LAST = b'{"end":true,"rollouts":1,"refused":0,"next":"cr1"}\n'
ASKED = {"format": "native", "group": "g"}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs.jsonl"


def opened(out, **rest):
    return Output(str(out), asked=ASKED, **rest)


def page(output, *lines, end=LAST):
    output.commit(output.end + output.take(iter([*lines, end])))


def folder(out) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir())


def test_it_has_its_name_when_all_is_there(out):
    output = opened(out)
    page(output, LINE)
    assert folder(out) == ["runs.jsonl.part", "runs.jsonl.part.json"]
    assert json.loads((out.parent / "runs.jsonl.part.json").read_bytes())["size"] == len(LINE)
    output.finish()
    assert folder(out) == ["runs.jsonl"]
    assert out.read_bytes() == LINE + b'{"end":true,"rollouts":1,"refused":0,"next":null}\n'


def test_what_was_not_committed_is_cut_off(out):
    output = opened(out)
    page(output, LINE)
    with pytest.raises(ClientError):
        output.take(iter([LINE, LINE[:5]]))
    output.close()
    again = opened(out)
    assert (again.end.rollouts, again.end.next) == (1, "cr1")
    page(again, LINE, end=LAST.replace(b'"cr1"', b"null"))
    assert again.whole
    again.finish()
    assert out.read_bytes().startswith(LINE * 2 + b'{"end"')


def test_one_at_a_time(out):
    output = opened(out)
    with pytest.raises(UsageError, match="another export"):
        opened(out)
    output.close()
    opened(out).close()


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("{", "can't be read"),
        ('{"asked": {}, "version": 1, "odd": 1}', "can't be read"),
        ('{"asked": {"format": "native", "group": "g"}, "version": 2}', "another version"),
        ('{"asked": {"format": "native", "group": "g"}, "size": 99}', "shorter"),
        ('{"asked": {"format": "native"}}', r"other options \(group\)"),
    ],
)
def test_what_does_not_fit_is_not_gone_on_with(out, note, said):
    (out.parent / "runs.jsonl.part.json").write_text(note)
    with pytest.raises(UsageError, match=said) as caught:
        opened(out)
    assert "--restart" in caught.value.hint
    output = opened(out, restart=True)
    assert output.end == End()
    output.close()


def test_plain_has_no_last_line(out):
    output = opened(out, plain=True)
    page(output, LINE)
    output.finish()
    assert out.read_bytes() == LINE


def test_it_shows_how_far_it_is(out):
    output = opened(out)
    page(output, LINE)
    assert repr(output) == f"<Output {out}: 1 rollouts>"
    output.close()


def test_a_disk_that_fills_keeps_what_is_whole(out, monkeypatch):
    output = opened(out)
    page(output, LINE)

    def full(data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(output, "_file", type("Full", (), {"write": staticmethod(full)}))
        with pytest.raises(CaptureError, match="No space left") as caught:
            output.take(iter([LINE, LAST]))
    assert caught.value.code == "not_written"
    output.close()
    again = opened(out)
    assert again.end.rollouts == 1
    again.close()


@pytest.mark.parametrize("name", ["", "folder", "new/"])
def test_a_folder_is_no_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="no file"):
        Output(name, asked=ASKED)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
