"""The trainer's client against a whole appliance on the scripted engine; what it does with threads, from threads."""

from __future__ import annotations

import asyncio
import json
import pickle
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.house import house
from treering_client import Client, RequestError, Rollout, Unreachable

CLIENT = Path(__file__).resolve().parents[2] / "client"


def speak(rollout: Rollout, text: str = "Hello") -> dict:
    """An agent of one call, as a trainer's own thread would run it."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(
        rollout.base_url + "/chat/completions", data=body,
        headers={"Authorization": f"Bearer {rollout.secret}", "Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


async def in_thread(folder, work, **settings):
    """Run a trainer's code in a thread, with the client of a fresh appliance."""
    async with house("scripted", folder, **settings) as home:
        with Client(home.appliance.control_url, home.appliance.admin_key, timeout_s=20) as client:
            return await asyncio.to_thread(work, client)


async def test_a_rollout_from_registration_to_sequences(tmp_path):
    def work(client):
        with client.rollout(task="Say hello.", labels={"split": "train"}, limits={"max_calls": 3}) as r:
            assert r.env["OPENAI_API_KEY"] == r.secret
            assert r.env["OPENAI_BASE_URL"] == r.base_url
            reply = speak(r)
            assert r.wait("idle", idle_s=0, timeout_s=10)
            assert [call["id"] for call in r.graph()["calls"]] == [reply["id"]]
            (call,) = r.calls(ids=True)
            r.reward(0.5, per_call={reply["id"]: 1.0}, details={"why": "short"})
            form = r.sequences()
            assert r.closed
            return call, form, client.attach(r.id).show()

    call, form, shown = await in_thread(tmp_path, work)
    (row,) = form["sequences"]
    assert row["input_ids"] == call["prompt_ids"] + call["sampled_ids"]
    assert row["loss_mask"] == [0] * len(call["prompt_ids"]) + [1] * len(call["sampled_ids"])
    assert (form["reward"], form["final"]) == (0.5, True)
    assert (shown["state"], shown["labels"]) == ("closed", {"split": "train"})


async def test_a_block_that_fails_closes_its_rollout_and_keeps_its_error(tmp_path):
    def work(client):
        with pytest.raises(ZeroDivisionError), client.rollout(task="x") as r:
            _ = 1 / 0
        assert r.closed
        with pytest.raises(urllib.error.HTTPError) as refused:
            speak(r)
        refused.value.close()
        return refused.value.code, client.attach(r.id).closed

    assert await in_thread(tmp_path, work) == (401, True)


async def test_a_failed_close_does_not_hide_the_error_that_ended_the_block(tmp_path):
    def work(client):
        def block():
            with client.rollout(task="x") as r:
                r.delete()
                r.closed = False
                raise KeyError("the trainer's own")

        with pytest.raises(KeyError):
            block()

    await in_thread(tmp_path, work)


async def test_a_group_is_registered_at_once(tmp_path):
    def work(client):
        group = client.rollouts(4, "Say hello.", id="g", sampling={"temperature": 1.0})
        for rollout in group:
            with rollout as r:
                speak(r)
        lines = list(client.sequences("native", group="g"))
        return [r.id for r in group], [line["rollout"] for line in lines]

    ids, lines = await in_thread(tmp_path, work)
    assert ids == ["g-0", "g-1", "g-2", "g-3"]
    assert sorted(lines) == ids


async def test_what_is_refused_says_why_and_what_to_do(tmp_path):
    def work(client):
        with client.rollout(task="x") as r, pytest.raises(RequestError) as refused:
            r.reward(1.0)
        r.reward(None)
        with pytest.raises(RequestError) as unknown:
            client.attach("nobody")
        return refused.value, unknown.value

    no_calls, unknown = await in_thread(tmp_path, work)
    assert (no_calls.status, no_calls.code) == (409, "no_calls")
    assert no_calls.hint
    assert no_calls.hint in str(no_calls)
    assert (unknown.status, unknown.code) == (404, "rollout_not_found")


async def test_a_wrong_key_is_an_error_of_its_own(tmp_path):
    async with house("scripted", tmp_path) as home:
        with Client(home.appliance.control_url, "wrong") as client, pytest.raises(RequestError) as refused:
            await asyncio.to_thread(client.rollout, task="x")
        assert refused.value.status == 401


async def test_waiting_ends_with_its_time(tmp_path):
    def work(client):
        with client.rollout(task="x") as r:
            return r.wait("closed", timeout_s=0.1)

    assert await in_thread(tmp_path, work) is False


def test_an_address_where_nothing_listens_is_named():
    with Client("http://127.0.0.1:9", "k", timeout_s=5) as client, pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        client.rollout(task="x")


def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(ValueError, match="like http://"):
        Client("127.0.0.1:8401", "k")


def test_it_can_be_sent_to_another_process():
    client = Client("http://127.0.0.1:8401", "the-admin-key", timeout_s=7)
    again = pickle.loads(pickle.dumps(client))
    assert repr(again) == repr(client)
    assert again._transport._headers == client._transport._headers
    own = Client("https://127.0.0.1:8401", "k", context=ssl.create_default_context())
    with pytest.raises(TypeError, match="make it where it is used"):
        pickle.dumps(own)


def test_the_key_is_in_no_repr(monkeypatch):
    monkeypatch.setenv("TREERING_URL", "http://user:pass@example.org:8401")
    client = Client(key="the-admin-key")
    assert repr(client) == "<Client http://example.org:8401>"


def test_the_core_needs_the_standard_library_alone():
    """Imported in a Python without site-packages: what it would miss there, a trainer's environment may not have."""
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(CLIENT)!r}); import treering_client",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
