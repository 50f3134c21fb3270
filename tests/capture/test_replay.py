"""Seeds from a folder of saved rollouts: what is read, what is drawn, and what never comes back."""

import json
import os
import shutil

import pytest

from capture.errors import ClientError
from capture.replay import Buffer, Filter, append
from graph.saved import Saved, read


def saved(name, **rest):
    """A rollout with a point behind its first message, and an end."""
    told = {
        "format": "treering.rollout", "version": 1, "rollout": name,
        "messages": [{"role": "user", "content": name}, {"role": "assistant", "content": "yes"}],
        "points": [{"k": 0, "kinds": ["tool_result"], "messages": [0]}],
        "whole": {"kinds": ["whole"], "messages": [0, 1]},
    }  # fmt: skip
    return told | rest


def write(path, *rollouts, at=0):
    """Write lines, as a file of its own, written `at` seconds after the epoch."""
    path.parent.mkdir(exist_ok=True)
    made = path.with_suffix(".made")
    made.write_text("".join(json.dumps(one) + "\n" for one in rollouts))
    os.utime(made, (at, at))
    made.rename(path)
    return path


def drawn(buffer, *groups):
    return [buffer.draw(group).rollout for group in groups]


def fails(buffer, group="none"):
    with pytest.raises(ClientError) as error:
        buffer.draw(group)
    assert (error.value.code, error.value.status) == ("replay_empty", 409)
    return error.value.message


# -- order ------------------------------------------------------------------------------------------------------------


def test_newest_first(tmp_path):
    write(tmp_path / "b.jsonl", saved("old-1"), saved("old-2"), at=1)
    write(tmp_path / "a.jsonl", saved("new-1"), saved("new-2"), at=2)
    assert drawn(Buffer(tmp_path), "1", "2", "3", "4") == ["new-2", "new-1", "old-2", "old-1"]


def test_when_all_were_drawn_the_newest_are_drawn_again(tmp_path):
    write(tmp_path / "a.jsonl", saved("1"), saved("2"))
    assert drawn(Buffer(tmp_path), *"abc") == ["2", "1", "2"]


def test_what_came_last_is_drawn_next(tmp_path):
    path = write(tmp_path / "a.jsonl", saved("1"))
    buffer = Buffer(tmp_path)
    assert drawn(buffer, "a") == ["1"]
    append(path, read(json.dumps(saved("2")).encode()))
    assert drawn(buffer, "b") == ["1"]
    buffer.rescan()
    assert drawn(buffer, "c") == ["2"]


def test_every_rollout_of_a_group_gets_the_same_seed(tmp_path):
    path = write(tmp_path / "a.jsonl", saved("1"), saved("2"))
    buffer = Buffer(tmp_path)
    first = buffer.draw("g")
    assert buffer.source("g").file == path
    assert [buffer.draw("g") for _ in range(7)] == [first] * 7
    # Whatever became of the file.
    path.unlink()
    buffer.rescan()
    assert buffer.draw("g") is first
    buffer.forget("g")
    fails(buffer, "g")


def test_which_point_a_group_gets_follows_from_its_name(tmp_path):
    points = [{"k": k, "kinds": ["fork"], "messages": [0]} for k in range(50)]
    write(tmp_path / "a.jsonl", saved("1", points=points))
    ks = [Buffer(tmp_path).draw(group).k for group in "abcdef"]
    assert ks == [Buffer(tmp_path).draw(group).k for group in "abcdef"]
    assert len(set(ks)) > 1


def test_an_instruction_comes_behind_the_seed(tmp_path):
    write(tmp_path / "a.jsonl", saved("1"))
    seed = Buffer(tmp_path, filter=Filter(kinds=("whole",))).draw("g", instruction="Are you sure?")
    assert [message["content"] for message in seed.messages] == ["1", "yes", "Are you sure?"]
    assert (seed.k, seed.awaits) == (None, "reply")


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_vanished_file_takes_all_of_its_candidates_with_it(tmp_path):
    write(tmp_path / "a.jsonl", saved("old"), at=1)
    gone = write(tmp_path / "b.jsonl", saved("new-1"), saved("new-2"), saved("new-3"), at=2)
    buffer = Buffer(tmp_path)
    assert drawn(buffer, "a") == ["new-3"]
    gone.unlink()
    assert drawn(buffer, "b", "c") == ["old", "old"]
    assert {candidate.file.name for candidate in buffer.candidates()} == {"a.jsonl"}


def test_a_file_that_another_took_the_place_of_is_gone_too(tmp_path):
    path = write(tmp_path / "a.jsonl", saved("first"), saved("second"))
    buffer = Buffer(tmp_path)
    write(path, saved("another, of a different length"))
    fails(buffer, "a")
    buffer.rescan()
    assert drawn(buffer, "b") == ["another, of a different length"]


def test_a_folder_that_is_not_there(tmp_path):
    fails(Buffer(tmp_path / "none"))


def test_older_files_come_back_into_play_when_newer_ones_go(tmp_path):
    for at in (1, 2, 3):
        write(tmp_path / f"{at}.jsonl", saved(f"r{at}"), at=at)
    buffer = Buffer(tmp_path, window=2)
    assert drawn(buffer, *"abcd") == ["r3", "r2", "r3", "r2"]
    (tmp_path / "3.jsonl").unlink()
    buffer.rescan()
    assert drawn(buffer, "e") == ["r1"]


def test_a_newer_file_whose_candidates_were_dropped_makes_room(tmp_path):
    for at in (1, 2):
        write(tmp_path / f"{at}.jsonl", saved(f"r{at}"), at=at)
    buffer = Buffer(tmp_path, window=1)
    assert drawn(buffer, "a") == ["r2"]
    buffer.drop(buffer.source("a"))
    assert drawn(buffer, "b") == ["r1"]


def test_only_steps_whose_files_are_complete_are_read(tmp_path):
    for step in (9, 10):
        write(tmp_path / f"step_{step}" / "rank_0.jsonl", saved(f"step-{step}"))
    fails(Buffer(tmp_path))
    (tmp_path / "step_9" / "STABLE").touch()
    buffer = Buffer(tmp_path)
    assert drawn(buffer, "a", "b") == ["step-9", "step-9"]
    (tmp_path / "step_10" / "STABLE").touch()
    buffer.rescan()
    assert drawn(buffer, "c", "d") == ["step-10", "step-10"]


def test_the_later_step_comes_first(tmp_path):
    for step, at in ((9, 5), (10, 3), (100, 1)):
        write(tmp_path / f"step_{step}" / "rank_0.jsonl", saved(f"step-{step}"), at=at)
        (tmp_path / f"step_{step}" / "STABLE").touch()
    write(tmp_path / "loose.jsonl", saved("loose"), at=9)
    assert drawn(Buffer(tmp_path), *"abcd") == ["step-100", "step-10", "step-9", "loose"]


def test_a_line_is_read_when_its_end_was_written(tmp_path):
    path = write(tmp_path / "a.jsonl", saved("1"))
    half = json.dumps(saved("2"))
    with path.open("a") as file:
        file.write(half[:40])
        file.flush()
        buffer = Buffer(tmp_path)
        assert drawn(buffer, "a", "b") == ["1", "1"]
        file.write(half[40:] + "\n")
    buffer.rescan()
    assert drawn(buffer, "c") == ["2"]


def test_hidden_and_other_files_are_not_read(tmp_path):
    for name in (".a.jsonl", "b.json", "c.jsonl.tmp"):
        write(tmp_path / name, saved("no"))
    fails(Buffer(tmp_path))


def test_lines_longer_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("capture.replay.CHUNK", 7)
    write(tmp_path / "a.jsonl", saved("1"), saved("2"))
    assert drawn(Buffer(tmp_path), "a", "b") == ["2", "1"]


def test_a_rollout_is_decoded_when_it_is_drawn_and_not_before(tmp_path, monkeypatch):
    decoded = []

    def counting(text):
        decoded.append(text)
        return read(text)

    monkeypatch.setattr("graph.saved.read", counting)
    write(tmp_path / "a.jsonl", saved("1"), saved("2"))
    buffer = Buffer(tmp_path)
    assert decoded == []
    buffer.draw("a")
    assert len(decoded) == 1


def test_a_line_that_is_none_is_passed_over(tmp_path):
    path = write(tmp_path / "a.jsonl", saved("1"))
    with path.open("a") as file:
        file.write('{"nodes": 3}\n\n[]\nnot json\n')
    assert drawn(Buffer(tmp_path), "a", "b") == ["1", "1"]


def test_what_was_appended_behind_half_a_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"half":')
    append(path, Saved(rollout="r"))
    append(path, Saved(rollout="s"))
    lines = path.read_bytes().splitlines()
    assert [read(each).rollout for each in lines[1:]] == ["r", "s"]


# -- drops ------------------------------------------------------------------------------------------------------------


def test_a_scan_never_brings_back_what_was_dropped(tmp_path):
    path = write(tmp_path / "a.jsonl", saved("1"), saved("2"), at=1)
    buffer = Buffer(tmp_path)
    assert drawn(buffer, "a") == ["2"]
    buffer.drop(buffer.source("a"))
    buffer.rescan()
    assert drawn(buffer, "b", "c") == ["1", "1"]
    # Not when the file went and came back either.
    kept = shutil.copy(path, tmp_path / "kept")
    path.unlink()
    buffer.rescan()
    shutil.move(kept, path)
    buffer.rescan()
    assert drawn(buffer, "d") == ["1"]
    buffer.drop(buffer.source("d"))
    fails(buffer)


def test_the_candidates_of_a_file_that_came_back_are_in_play_again(tmp_path):
    path = write(tmp_path / "a.jsonl", saved("1"))
    buffer = Buffer(tmp_path)
    kept = shutil.move(path, tmp_path / "kept")
    fails(buffer, "a")
    shutil.move(kept, path)
    buffer.rescan()
    assert drawn(buffer, "b") == ["1"]


# -- filters ----------------------------------------------------------------------------------------------------------

MANY = [
    saved("a", group="g", labels={"split": "train"}, reward=1.0),
    saved("b", group="h", labels={"split": "test"}, reward=0.0),
    saved("c", group="g", labels={}, reward=None),
    saved("d", points=[{"k": 0, "kinds": ["fork", "tool_result"], "messages": [0]}]),
    saved("e", points=[]),
]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, {"a", "b", "c", "d"}),
        ({"rollouts": ("a", "x")}, {"a"}),
        ({"groups": ("g",)}, {"a", "c"}),
        ({"labels": (("split", "test"),)}, {"b"}),
        ({"kinds": ("fork",)}, {"d"}),
        ({"kinds": ("whole",)}, {"a", "b", "c", "d", "e"}),
        ({"least_reward": 0.5}, {"a"}),
        ({"most_reward": 0.5}, {"b"}),
        ({"least_reward": 0.0, "most_reward": 1.0}, {"a", "b"}),
        ({"groups": ("g",), "least_reward": 0.0}, {"a"}),
    ],
)
def test_a_filter(tmp_path, asked, names):
    write(tmp_path / "a.jsonl", *MANY)
    assert set(drawn(Buffer(tmp_path, filter=Filter(**asked)), *"123456789")) == names


@pytest.mark.parametrize("name", ["rollouts", "groups", "labels", "kinds"])
def test_an_empty_filter_matches_nothing(tmp_path, name):
    write(tmp_path / "a.jsonl", *MANY)
    assert f"{name}=(nothing)" in fails(Buffer(tmp_path, filter=Filter(**{name: ()})))


def test_an_empty_buffer_fails_at_once_and_names_the_filter(tmp_path):
    write(tmp_path / "a.jsonl", *MANY)
    buffer = Buffer(tmp_path, filter=Filter(labels=(("split", "dev"),), kinds=("fork",), least_reward=0.5))
    told = fails(buffer)
    assert "labels=split:dev, kinds=fork, least_reward=0.5" in told
    assert str(tmp_path) in told
    assert "any rollout" in fails(Buffer(tmp_path / "empty"))


def test_a_kind_that_is_none():
    with pytest.raises(ValueError, match="tool_result, before_compaction"):
        Filter(kinds=("toolresult",))


def test_a_replayed_rollout_is_no_source_unless_asked_for_by_name(tmp_path):
    write(tmp_path / "a.jsonl", saved("first"), saved("replay", replay_of="first"))
    assert drawn(Buffer(tmp_path), "a", "b") == ["first", "first"]
    assert drawn(Buffer(tmp_path, filter=Filter(rollouts=("replay",))), "a") == ["replay"]


def test_a_verifiers_trace(tmp_path):
    nodes = [
        {"message": {"role": "user", "content": "u"}},
        {"message": {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]}, "parent": 0},
        {"message": {"role": "tool", "content": "1", "tool_call_id": "c"}, "parent": 1},
    ]
    write(tmp_path / "a.jsonl", {"version": 1, "id": "t", "task": {}, "agent": {}, "nodes": nodes})
    assert [message["role"] for message in Buffer(tmp_path).draw("g").messages] == ["user", "assistant", "tool"]
