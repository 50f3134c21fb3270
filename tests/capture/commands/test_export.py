"""`treering export` against a control plane on a real store, as a shell runs it."""

import asyncio
import importlib
import io
import json
import os
import sys
from pathlib import Path

import pytest

from capture import bulk, cli, outputs, pages
from capture.commands import export
from tests.plane import KEY, control_plane


@pytest.fixture
async def plane(tmp_path):
    async with control_plane(tmp_path) as plane:
        yield plane


@pytest.fixture
def run(plane, monkeypatch, capsysbinary, tmp_path):
    """Return a function that exports and gives the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREERING_ADMIN_KEY", KEY)

    async def run(*words, url=True):
        where = ["--url", plane.url] if url else ["--store", plane.settings.store]
        code = await asyncio.to_thread(cli.main, ["export", *words, *where])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


@pytest.fixture
def rollouts(plane):
    """Return a function that makes closed rollouts; those named `empty…` have no calls."""

    async def rollouts(*names, group="g"):
        for name in names:
            body = {"id": name, "group": group, "labels": {"split": "train"}}
            await plane.rollouts.register(body, key=None, digest=name)
            if not name.startswith("empty"):
                await plane.call(name, 0, [1, 2, 3], [4, 5])
            await plane.rollouts.close_rollout(name, wait_s=0)

    return rollouts


def lines(data: bytes) -> list:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def names(data: bytes) -> list[str]:
    return [line["rollout"] for line in lines(data) if "rollout" in line]


async def test_to_standard_output(run, rollouts):
    await rollouts("a", "b")
    code, out, err = await run("--group", "g")
    assert (code, err) == (0, "")
    a, b, end = lines(out)
    assert (a["rollout"], b["sequences"][0]["input_ids"]) == ("a", [1, 2, 3, 4, 5])
    assert end == {"end": True, "rollouts": 2, "refused": 0, "next": None}


async def test_to_a_file_page_by_page(run, rollouts, monkeypatch, tmp_path):
    monkeypatch.setattr(export, "PAGE", 2)
    await rollouts("a", "b", "c", "d")
    await rollouts("other", group="h")
    code, out, err = await run("--group", "g", "--label", "split:train", "--out", "runs.jsonl")
    assert (code, out, err) == (0, b"", "")
    assert names((tmp_path / "runs.jsonl").read_bytes()) == ["a", "b", "c", "d"]
    assert lines((tmp_path / "runs.jsonl").read_bytes())[-1]["rollouts"] == 4
    # Nothing is left of what it was while it was made.
    assert not [*tmp_path.glob("runs.jsonl.*")]


async def test_the_options_of_sequences(run, rollouts):
    await rollouts("a")
    _, out, _ = await run("--format", "tree")
    assert lines(out)[0]["n_nodes"] == 2
    assert (await run("--drift", "tree"))[1] == out
    _, out, _ = await run("--format", "verl", "--drift", "realign", "--threshold", "7", "--roles", "main,subagent")
    assert lines(out)[0]["format"] == "verl"


async def test_refused_rollouts_are_lines_and_counted_by_reason(run, rollouts):
    await rollouts("a", "empty-1", "empty-2")
    code, out, err = await run()
    # Native says by itself why it is empty.
    assert (code, err) == (0, "")
    code, out, err = await run("--format", "verl")
    assert code == 0
    assert err == "refused 2 rollouts: 2 no_calls\n"
    _, refused, _, end = lines(out)
    assert (refused["rollout"], refused["refused"]["code"]) == ("empty-1", "no_calls")
    assert (end["rollouts"], end["refused"], end["reasons"]) == (3, 2, {"no_calls": 2})
    assert (await run("--format", "verl", "--strict"))[0] == 1
    code, out, err = await run("--format", "verl", "--plain")
    assert (code, names(out), err) == (0, ["a"], "refused 2 rollouts: 2 no_calls\n")


async def test_nothing_that_could_be_exported_is_a_failure(run, rollouts):
    await rollouts("empty-1")
    code, _, err = await run("--format", "trl")
    assert code == 1
    assert "no rollout could be exported" in err
    code, out, err = await run("--group", "nobody")
    assert (code, out) == (1, b"")
    assert "No rollout has group 'nobody'" in err


# -- going on ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def breaking(monkeypatch):
    """Return a function that breaks the answer behind so many lines, in the middle of one."""
    take = pages.copy_lines

    def breaking(after):
        left = [after]

        def copy_lines(answer, write, *, plain=False):
            def torn():
                for line in answer:
                    if not left[0]:
                        write(line[: len(line) // 2])
                        raise ConnectionResetError
                    left[0] -= 1
                    yield line

            return take(torn(), write, plain=plain)

        monkeypatch.setattr(pages, "copy_lines", copy_lines)

    yield breaking
    monkeypatch.setattr(pages, "copy_lines", take)


@pytest.mark.parametrize("after", range(6))
async def test_it_goes_on_where_it_stopped_and_no_line_is_torn(run, rollouts, breaking, monkeypatch, tmp_path, after):
    monkeypatch.setattr(export, "PAGE", 2)
    await rollouts("a", "b", "c", "d")
    whole = (await run("--out", "whole.jsonl"), (tmp_path / "whole.jsonl").read_bytes())[1]
    with monkeypatch.context():
        breaking(after)
        code, _, err = await run("--out", "runs.jsonl")
    assert code == 1
    assert "the same command goes on from there" in err
    assert not (tmp_path / "runs.jsonl").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREERING_ADMIN_KEY", KEY)
    code, _, err = await run("--out", "runs.jsonl")
    assert code == 0
    assert ("going on behind 2 rollouts" in err) == (after >= 3)
    assert (tmp_path / "runs.jsonl").read_bytes() == whole


async def test_standard_output_says_where_to_go_on(run, rollouts, breaking, monkeypatch):
    monkeypatch.setattr(export, "PAGE", 2)
    await rollouts("a", "b", "c")
    breaking(3)
    code, _, err = await run()
    assert code == 1
    words = err[err.index("--after") :].split()[:2]
    breaking(100)
    code, out, _ = await run(*words)
    assert (code, names(out)) == (0, ["c"])


async def test_one_that_is_whole_and_has_no_name_yet_gets_it(run, rollouts, monkeypatch, tmp_path):
    await rollouts("a")
    finish = outputs.Output.finish

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(outputs.Output, "finish", interrupted)
    assert (await run("--out", "runs.jsonl"))[0] == 130
    monkeypatch.setattr(outputs.Output, "finish", finish)
    assert (await run("--out", "runs.jsonl"))[0] == 0
    assert names((tmp_path / "runs.jsonl").read_bytes()) == ["a"]


async def test_a_process_that_is_killed_loses_a_page_at_most(run, rollouts, plane, monkeypatch, tmp_path):
    every = [f"r{n:03}" for n in range(export.PAGE * 2 + 5)]
    await rollouts(*every)
    reached, aside = asyncio.Event(), plane.rollouts.aside

    async def stuck(name):
        if name == every[export.PAGE + 10]:
            reached.set()
            await asyncio.Event().wait()
        return await aside(name)

    with monkeypatch.context() as patched:
        patched.setattr(plane.rollouts, "aside", stuck)
        words = [sys.executable, "-m", "capture.cli", "export", "--url", plane.url, "--out", "runs.jsonl"]
        source = str(Path(cli.__file__).parent.parent)
        env = {**os.environ, "PYTHONPATH": source, "TREERING_ADMIN_KEY": KEY}
        process = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, env=env)
        async with asyncio.timeout(60):
            await reached.wait()
            process.kill()
            await process.wait()
    assert json.loads((tmp_path / "runs.jsonl.part.json").read_bytes())["end"]["rollouts"] == export.PAGE
    code, _, err = await run("--out", "runs.jsonl")
    assert (code, err) == (0, f"going on behind {export.PAGE} rollouts\n")
    assert names((tmp_path / "runs.jsonl").read_bytes()) == every


async def test_it_goes_on_only_as_it_was_begun(run, rollouts, breaking, monkeypatch, tmp_path):
    monkeypatch.setattr(export, "PAGE", 1)
    await rollouts("a", "b", "c")
    breaking(3)
    await run("--out", "runs.jsonl")
    code, _, err = await run("--out", "runs.jsonl", "--format", "verl")
    assert code == 2
    assert "begun with other options (format)" in err
    breaking(100)
    assert (await run("--out", "runs.jsonl", "--format", "verl", "--restart"))[0] == 0
    assert {line.get("format") for line in lines((tmp_path / "runs.jsonl").read_bytes())} == {"verl", None}


async def test_a_file_that_exists_is_not_written_over(run, rollouts, tmp_path):
    await rollouts("a")
    (tmp_path / "runs.jsonl").write_text("mine")
    code, _, err = await run("--out", "runs.jsonl")
    assert code == 2
    assert "--overwrite" in err
    assert [path.name for path in tmp_path.glob("runs.jsonl*")] == ["runs.jsonl"]
    assert (tmp_path / "runs.jsonl").read_text() == "mine"
    assert (await run("--out", "runs.jsonl", "--overwrite"))[0] == 0
    assert names((tmp_path / "runs.jsonl").read_bytes()) == ["a"]


# -- elsewhere --------------------------------------------------------------------------------------------------------


async def test_to_another_s_storage(run, rollouts, tmp_path):
    fsspec = importlib.import_module("fsspec")
    await rollouts("a", "b")
    assert (await run("--out", "memory://exports/runs.jsonl"))[0] == 0
    with fsspec.open("memory://exports/runs.jsonl") as file:
        assert names(file.read()) == ["a", "b"]
    assert not [*tmp_path.glob("treering-export-*")]
    code, _, err = await run("--out", "memory://exports/runs.jsonl")
    assert (code, "exists" in err) == (2, True)
    assert (await run("--out", f"file://{tmp_path}/deep/runs.jsonl"))[0] == 0
    assert names((tmp_path / "deep" / "runs.jsonl").read_bytes()) == ["a", "b"]


async def test_parquet_is_put_together_from_its_pages(run, rollouts, monkeypatch, tmp_path):
    pq = importlib.import_module("pyarrow.parquet")
    monkeypatch.setattr(export, "PAGE", 2)
    await rollouts("a", "empty-1", "c")
    code, _, err = await run("--format", "parquet", "--out", "rows.parquet")
    assert (code, err) == (0, "refused 1 rollouts: 1 no_calls\n")
    file = pq.ParquetFile(tmp_path / "rows.parquet")
    rows = file.read().to_pylist()
    assert [(row["rollout"], row["input_ids"]) for row in rows] == [
        ("a", [1, 2, 3, 4, 5]), ("empty-1", None), ("c", [1, 2, 3, 4, 5]),
    ]  # fmt: skip
    assert json.loads(file.metadata.metadata[b"treering"]) == {
        "end": True, "rollouts": 3, "refused": 1, "next": None, "reasons": {"no_calls": 1},
    }  # fmt: skip
    assert [path.name for path in tmp_path.glob("rows.parquet*")] == ["rows.parquet"]


async def test_parquet_goes_on_with_its_next_page(run, rollouts, monkeypatch, tmp_path):
    pq = importlib.import_module("pyarrow.parquet")
    monkeypatch.setattr(export, "PAGE", 1)
    await rollouts("a", "b", "c")
    copy, left = pages.copy_bytes, [2]

    def torn(answer, write):
        if not left[0]:
            write(answer.read(100))
            raise pages.cut()
        left[0] -= 1
        copy(answer, write)

    monkeypatch.setattr(pages, "copy_bytes", torn)
    assert (await run("--format", "parquet", "--out", "rows.parquet"))[0] == 1
    monkeypatch.setattr(pages, "copy_bytes", copy)
    code, _, err = await run("--format", "parquet", "--out", "rows.parquet")
    assert (code, "going on behind 2 rollouts" in err) == (0, True)
    assert pq.read_table(tmp_path / "rows.parquet")["rollout"].to_pylist() == ["a", "b", "c"]


async def test_from_the_store_itself(plane, run, rollouts, tmp_path):
    await rollouts("a", "empty-1")
    _, served, _ = await run("--format", "verl")
    # The store is the appliance's while it runs.
    assert (await run("--format", "verl", "--offline", url=False))[0] == 4
    await plane.store.close()
    code, out, _ = await run("--format", "verl", "--offline", url=False)
    assert (code, out) == (0, served)
    assert (await run("--offline"))[0] == 2


# -- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "verifier"], "did you mean verifiers"),
        (["--format", "parquet"], "written to a file"),
        (["--format", "parquet", "--plain", "--out", "x"], "--plain is about lines"),
        (["--out", "x", "--after", "cr1"], "--after goes with --out -"),
        (["--overwrite"], "about files"),
        (["--out", "no/such/folder/x"], "can't write"),
        (["--out", "nosuch://x"], "nosuch"),
    ],
)
async def test_what_cannot_be_meant(run, rollouts, words, said):
    await rollouts("a")
    code, out, err = await run(*words)
    assert (code, out) == (2, b"")
    assert said in err


async def test_conflicting_options_are_the_control_plane_s_to_refuse(run, rollouts):
    await rollouts("a")
    code, _, err = await run("--format", "tree", "--drift", "split")
    assert (code, "no drift=split" in err) == (1, True)


async def test_progress_is_for_a_terminal_alone(run, rollouts, monkeypatch):
    await rollouts("a", "b")
    await rollouts("c", group="other")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(export, "PAGE", 1)
    monkeypatch.setattr(export, "TOLD_EVERY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert (await run("--out", "runs.jsonl", "--group", "g"))[0] == 0
    said = sys.stderr.getvalue()
    assert "\r\x1b[K[........................] 0 of 2 rollouts, " in said
    assert "\r\x1b[K[############............] 1 of 2 rollouts, " in said
    assert "MiB/s" in said
    assert said.endswith("exported 2 rollouts to runs.jsonl\n")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert (await run("--out", "again.jsonl", "--group", "g"))[0] == 0
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("done", "total", "before", "told"),
    [
        (1_200, None, 0, "1,200 rollouts"),
        (0, 0, 0, "0 rollouts"),
        (0, 4, 0, "[........................] 0 of 4 rollouts"),
        (1, 4, 0, "[######..................] 1 of 4 rollouts, 30 s left"),
        (2, 4, 1, "[############............] 2 of 4 rollouts, 20 s left"),
        (1, 100, 0, "[........................] 1 of 100 rollouts, 16 min left"),
        (5, 4, 0, "[########################] 5 of 4 rollouts"),
    ],
)
def test_a_bar_says_how_far_it_is(done, total, before, told):
    assert export.drawn(done, total, before=before, took_s=10.0) == told


async def test_nobody_there(run, rollouts, plane):
    code = await asyncio.to_thread(cli.main, ["export", "--url", "http://127.0.0.1:1", "--out", "runs.jsonl"])
    assert code == 2


def test_a_page_is_one_of_the_server_s():
    assert export.PAGE <= bulk.MOST
