"""`treering verify`, against an appliance on the scripted engine and an engine that scores as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from capture import cli
from tests.house import house


@contextlib.asynccontextmanager
async def scorer(score):
    """An engine that gives every id the score that `score(place, id)` says."""

    async def completions(request):
        ids = (await request.json())["prompt"]
        scores = [None] + [{str(id_): {"logprob": score(n, id_)}} for n, id_ in enumerate(ids) if n]
        return web.json_response({"choices": [{"prompt_logprobs": scores}]})

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"vllm=http://127.0.0.1:{server.port}"
    finally:
        await server.close()


@pytest.fixture
async def home(tmp_path):
    async with house("scripted", tmp_path, sampling={"temperature": 1.0}) as one:
        yield one


@pytest.fixture
async def rollout(home):
    made = await home.rollout(id="r")
    async with home.chat(made, stream=False) as answer:
        assert answer.status == 200
        await answer.read()
    await home.control("POST", "/rollouts/r/close", json={})
    return await home.control("GET", "/rollouts/r/sequences")


@pytest.fixture
def run(home, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREERING_ADMIN_KEY", home.appliance.admin_key)

    async def run(*words):
        code = await asyncio.to_thread(cli.main, ["verify", *words, "--url", home.appliance.control_url])
        return code, *capsys.readouterr()

    return run


async def test_equal_scores_pass(rollout, run):
    (row,) = rollout["sequences"]
    async with scorer(lambda n, id_: row["logprobs"][n] or -7.0) as engine:
        code, out, err = await run("r", "--engine", engine, "--largest", "0", "--mean", "0")
        assert (code, err) == (0, "")
        assert out.startswith(f"r: ok: {row['n_trained_tokens']} trained tokens in 1 rows")
        code, out, _ = await run("r", "--engine", engine, "--json")
        (one,) = json.loads(out)["rollouts"]
        assert (one["largest"], one["mean"], one["ok"]) == (0.0, 0.0, True)


async def test_a_difference_is_shown_where_it_is_largest_and_exits_with_1(rollout, run):
    (row,) = rollout["sequences"]
    last = len(row["input_ids"]) - 1
    async with scorer(lambda n, id_: (row["logprobs"][n] or -7.0) - (2.0 if n == last else 0.0)) as engine:
        code, out, _ = await run("r", "--engine", engine)
        assert code == 1
        assert "DIFFERS" in out
        assert f"largest at row 0, position {last}, call 0, token {row['input_ids'][last]}" in out
        assert "engine: sampled by scripted=" in out
        code, _, _ = await run("r", "--engine", engine, "--largest", "3", "--mean", "3")
        assert code == 0


async def test_without_an_engine_the_one_that_sampled_is_asked(rollout, run):
    # The scripted engine has no route for ids: what it answers is told, and nothing is called equal.
    code, out, err = await run("r")
    assert (code, out) == (3, "")
    assert "The engine answered 404" in err
    assert "must take token ids" in err


async def test_several_rollouts_are_told_one_by_one_and_all_must_pass(rollout, run):
    (row,) = rollout["sequences"]
    async with scorer(lambda n, id_: row["logprobs"][n] or -7.0) as engine:
        code, out, _ = await run("r", "r", "--engine", engine)
        assert (code, out.count("r: ok")) == (0, 2)


async def test_what_is_not_there_is_said(home, rollout, run):
    code, _, err = await run("nobody")
    assert code == 1
    assert "There is no rollout 'nobody'" in err
    await home.rollout(id="open")
    code, _, err = await run("open")
    assert code == 1
    assert "is open" in err
    code, _, err = await run("r", "--engine", "scripted")
    assert code == 2


async def test_an_engine_that_is_not_there_exits_with_3(rollout, run):
    code, _, err = await run("r", "--engine", "vllm=http://127.0.0.1:9")
    assert code == 3
    assert "127.0.0.1:9" in err
