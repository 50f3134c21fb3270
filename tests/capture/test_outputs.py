"""A file in the making: what is on the disk at each moment."""

import json

import pytest

from capture.errors import ClientError, UsageError
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
