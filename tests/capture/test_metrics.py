"""Numbers: what a call adds to them, what they are added up to, and what is in no label."""

import re
from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from capture.metrics import GUEST, TABLE, Metrics, render
from tests.house import house


async def scraped(home, **headers):
    headers = {"Authorization": f"Bearer {home.appliance.admin_key}", **headers}
    async with home.session.get(home.appliance.control_url + "/metrics", headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return await answer.text()


def samples(text):
    """Sample's name and labels → value, of all families."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def draft(**fields):
    """As much of a draft as the numbers look at."""
    given = {
        "engine": "vllm=http://e", "dialect": "chat", "status": "complete", "n_tokens": (10, 4), "queued_ms": 1.0,
        "waited_s": 0.25, "first_token_ms": 200.0, "request": SimpleNamespace(streamed=True), "sent_after_s": 0.3,
        "behind_s": 0.002, "ended_ms": 4_000.0,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **fields})


def known():
    metrics = Metrics()
    metrics.know([SimpleNamespace(name="vllm=http://e")])
    return metrics


def test_what_a_call_adds():
    metrics = known()
    metrics.call(draft())
    metrics.call(draft(status="aborted", n_tokens=(10, 0), first_token_ms=None, behind_s=None))
    found = samples(metrics.text().decode())
    engine = ("engine", "vllm=http://e")
    assert found["treering_calls_total", ("dialect", "chat"), engine, ("status", "complete")] == 1
    assert found["treering_calls_total", ("dialect", "chat"), engine, ("status", "aborted")] == 1
    assert found["treering_prompt_tokens_total", engine] == 20
    assert found["treering_sampled_tokens_total", engine] == 4
    assert found["treering_first_token_seconds_sum", engine] == 0.2
    assert found["treering_call_seconds_count", engine] == 2
    # The wait for a place is the engine's, not ours.
    assert round(found["treering_added_seconds_sum", ("part", "before")], 6) == 0.1
    assert found["treering_added_seconds_sum", ("part", "behind")] == 0.002
    assert found["treering_queue_seconds_sum", engine] == 0.5


def test_engines_that_rollouts_bring_along_are_one_label():
    metrics = known()
    for n in range(3):
        metrics.call(draft(engine=f"vllm=http://guest-{n}"))
    metrics.call(draft(engine=None, sent_after_s=None, queued_ms=None))
    text = metrics.text().decode()
    assert "guest-1" not in text
    assert samples(text)["treering_prompt_tokens_total", ("engine", GUEST)] == 30
    assert samples(text)["treering_prompt_tokens_total", ("engine", "none")] == 10


def test_an_engines_password_is_in_no_label():
    metrics = Metrics()
    metrics.know([SimpleNamespace(name="vllm=http://me:hunter2@e:8000")])
    metrics.call(draft(engine="vllm=http://me:hunter2@e:8000"))
    assert b"hunter2" not in metrics.text()
    assert b"guest" not in metrics.text()


def test_workers_are_added_up_and_none_that_died_is_forgotten():
    head, first, second = known(), known(), known()
    first.call(draft())
    second.call(draft(n_tokens=(1, 1)))
    second._gauges["treering_held_bytes"].set(5)
    head.take(1, first.numbers())
    head.take(2, second.numbers())
    engine = ("engine", "vllm=http://e")
    total = samples(head.text().decode())
    assert total["treering_prompt_tokens_total", engine] == 11
    assert total["treering_held_bytes",] == 5
    head.gone(2)
    after = samples(head.text().decode())
    # What was a state of it is over.
    assert after["treering_held_bytes",] == 0
    assert after == {**total, ("treering_held_bytes",): 0}
    # Another in its place begins at nothing.
    third = known()
    third.call(draft(n_tokens=(100, 1)))
    head.take(2, third.numbers())
    assert samples(head.text().decode())["treering_prompt_tokens_total", engine] == 111


def test_buckets_stay_in_order_when_they_are_added_up():
    head, worker = Metrics(), known()
    worker.call(draft())
    head.take(1, worker.numbers())
    lines = [line for line in head.text().decode().splitlines() if line.startswith("treering_call_seconds_bucket")]
    edges = [float(re.search(r'le="([^"]+)"', line)[1]) for line in lines]
    assert edges == sorted(edges)
    assert len(edges) == 13


def test_every_metric_is_named_as_prometheus_wants_it():
    for row in TABLE:
        assert re.fullmatch(r"treering_[a-z_]+", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert not set(row.labels) & {"rollout", "id", "model", "label", "group"}
        assert f"`{row.name}`" in render()


async def test_what_an_appliance_shows(tmp_path):
    async with house("scripted", tmp_path) as home:
        rollout = await home.rollout(id="the-rollout", labels={"split": "the-label"})
        empty = await home.rollout()
        async with home.chat(rollout, stream=True) as answer:
            await answer.read()
        await home.idle(rollout)
        for each in (rollout, empty):
            await home.control("POST", f"/rollouts/{each['id']}/close", json={})
            await home.appliance.lookout.examined()
        text = await scraped(home)
        found = samples(text)
        (engine,) = home.appliance.fleet.engines
        label = ("engine", engine.name)
        assert found["treering_calls_total", ("dialect", "chat"), label, ("status", "complete")] == 1
        assert found["treering_commit_seconds_count",] == 1
        assert found["treering_engine_up", label] == found["treering_engine_train", label] == 1
        assert found["treering_in_flight", label] == found["treering_queued", label] == 0
        assert found["treering_rollouts_closed_total", ("calls", "some")] == 1
        assert found["treering_rollouts_closed_total", ("calls", "none")] == 1
        assert found["treering_findings_total", ("code", "no_calls"), ("level", "error")] == 1
        assert found["treering_store_up",] == found["treering_workers",] == 1
        assert {f"treering_{name.removeprefix('treering_')}" for name in _families(text)} == {
            row.name for row in TABLE if "tunnel" not in row.name
        } | {"treering_tunnel_up", "treering_tunnel_rollouts", "treering_tunnel_lost"}
        for secret in (rollout["secret"], home.appliance.admin_key, "the-rollout", "the-label"):
            assert secret not in text


def _families(text):
    return re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)


async def test_they_need_the_admin_key(tmp_path):
    async with (
        house("scripted", tmp_path) as home,
        home.session.get(home.appliance.control_url + "/metrics") as answer,
    ):
        assert answer.status == 401
