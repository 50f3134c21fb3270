"""Where a rollout's consumers are, and the address that each is given."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from capture.errors import ClientError, EngineError, UsageError
from capture.reach import Reach, Wish
from capture.settings import Settings
from tests.house import house
from tests.leads import leads
from tests.processes import until


def wish(name="r", agent=None, tools=None):
    return Wish(rollout=name, agent=agent, tools=tools)


@contextlib.asynccontextmanager
async def relayed(home):
    """A way from outside in name only: a port that leads to the appliance's own, and can be cut."""
    port = int(home.appliance.data_url.rpartition(":")[2])
    writers = []

    async def serve(reader, writer):
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, forth))

        async def carry(source, sink):
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(carry(reader, forth))
            group.create_task(carry(back, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


async def test_without_a_tunnel_all_are_local():
    way = (await leads().lead([wish()]))["r"]
    assert (way.agent, way.tools, way.public) == ("http://127.0.0.1:8400", "http://127.0.0.1:8400", None)


@pytest.mark.parametrize("consumer", ["agent", "tools"])
async def test_a_remote_consumer_never_gets_loopback(consumer):
    with pytest.raises(ClientError, match=f"`reach.{consumer}` is remote") as refused:
        await leads().lead([wish("a"), wish("b", **{consumer: "remote"})])
    assert refused.value.status == 422
    assert "--tunnel" in refused.value.hint


async def test_a_listener_that_is_no_loopback_is_a_way_for_all():
    way = (await leads("10.1.2.3").lead([wish(agent="remote", tools="local")]))["r"]
    assert (way.agent, way.tools) == ("http://10.1.2.3:8400",) * 2


def test_a_description_that_can_not_be_read_is_a_usage_error():
    with pytest.raises(UsageError, match="a tunnel is one of"):
        Reach(Settings(tunnel=("ngrok",)))


async def test_a_way_that_is_loopback_after_all_is_warned_of(tmp_path, caplog):
    async with house("scripted", tmp_path) as outer, relayed(outer) as (_, url):
        outer.appliance.reach = outer.appliance.rollouts._reach = outer.appliance.rollouts._enrolment._reach = Reach(
            Settings(tunnel=(f"custom={url}",))
        )
        outer.appliance._lead()
        for _ in range(2):
            await outer.rollout()
        assert caplog.text.count("only agents on this machine reach it") == 1


async def test_a_tunnel_is_opened_only_when_somebody_needs_it(tmp_path):
    async with house("scripted", tmp_path, tunnel=("custom=http://127.0.0.1:9",)) as home:
        near = await home.rollout(reach={"agent": "local", "tools": "local"})
        assert near["url"] == home.appliance.data_url
        (tunnel,) = (await home.control("GET", "/tunnels"))["tunnels"]
        assert (tunnel["opened"], tunnel["reason"]) == (0, "not opened yet")
        ready = await home.control("GET", "/ready")
        assert ready["tunnel"]["ok"]


async def test_a_remote_rollout_gets_an_address_that_was_proved(tmp_path):
    async with house("scripted", tmp_path) as outer, relayed(outer) as (_, url):
        reach = outer.appliance.reach
        assert not reach.set_up
        # The very same, set up with the address that has just come to be.
        outer.appliance.reach = outer.appliance.rollouts._reach = outer.appliance.rollouts._enrolment._reach = Reach(
            Settings(tunnel=(f"custom={url}",))
        )
        outer.appliance._lead()
        far = await outer.rollout(reach={"agent": "remote", "tools": "local"})
        assert (far["url"], far["tools_url"]) == (url, outer.appliance.data_url)
        assert far["env"]["OPENAI_BASE_URL"] == f"{url}/v1"
        unsaid = await outer.rollout()
        assert (unsaid["url"], unsaid["tools_url"]) == (url, url)
        # Its tool servers come the same way, with a key of their own.
        for key, status in (("tools_secret", 200), ("secret", 403)):
            headers = {"Authorization": f"Bearer {unsaid[key]}"}
            async with outer.session.get(f"{unsaid['tools_url']}/state", headers=headers) as answer:
                assert answer.status == status
        async with outer.chat(far) as answer:
            assert answer.status == 200
            await answer.read()
        (tunnel,) = (await outer.control("GET", "/tunnels"))["tunnels"]
        assert (tunnel["healthy"], tunnel["rollouts"], tunnel["url"]) == (True, 2, url)
        await outer.control("POST", f"/rollouts/{far['id']}/close", json={})
        (tunnel,) = (await outer.control("GET", "/tunnels"))["tunnels"]
        assert tunnel["rollouts"] == 1


async def test_an_address_that_leads_elsewhere_is_an_error_at_registration(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "mine").mkdir()
    async with house("scripted", tmp_path / "other") as other:
        url = other.appliance.data_url
        async with house("scripted", tmp_path / "mine", tunnel=(f"custom={url}",)) as home:
            home.appliance.reach._pool._ready_s = 0.1
            home.appliance.reach._pool._pause_s = 0.0
            answer = await home.control("POST", "/rollouts", json={"reach": {"agent": "remote"}}, status=503)
            assert answer["error"]["code"] == "no_tunnel"
            assert "leads to another Treering" in answer["error"]["message"]
            assert (await home.control("GET", "/rollouts"))["rollouts"] == []
            (tunnel,) = (await home.control("GET", "/tunnels"))["tunnels"]
            assert (tunnel["healthy"], tunnel["rollouts"]) == (False, 0)


async def test_a_lost_tunnel_is_told_to_the_rollouts_on_it(tmp_path):
    async with house("scripted", tmp_path) as outer, relayed(outer) as (server, url):
        outer.appliance.reach = outer.appliance.rollouts._reach = outer.appliance.rollouts._enrolment._reach = Reach(
            Settings(tunnel=(f"custom={url}",))
        )
        outer.appliance._lead()
        pool = outer.appliance.reach._pool
        pool._ready_s, pool._pause_s = 0.1, 0.0
        far = await outer.rollout(reach={"agent": "remote"})
        server.close()
        await pool.look()
        await pool.look()
        await outer.control("POST", f"/rollouts/{far['id']}/close", json={})
        found = {
            each["code"]: each for each in (await outer.control("GET", f"/rollouts/{far['id']}/findings"))["findings"]
        }
        assert found["tunnel_lost"]["data"]["url"] == url
        assert found["no_calls"]["data"]["tunnel"].startswith("down: ")
        assert found["no_calls"]["data"]["engine"] == "reachable"
        assert "tunnel_lost" in found["no_calls"]["data"]["near"]
        ready = await outer.control("GET", "/ready", status=503)
        assert not ready["tunnel"]["ok"]


async def test_an_agent_that_never_came_through_a_good_tunnel_is_told_so(tmp_path):
    async with house("scripted", tmp_path) as home:
        rollout = await home.rollout()
        await home.control("POST", f"/rollouts/{rollout['id']}/close", json={})
        (found,) = [
            each for each in (await home.control("GET", f"/rollouts/{rollout['id']}/findings"))["findings"]
            if each["code"] == "no_calls"
        ]  # fmt: skip
        assert found["data"] == {"near": [], "engine": "reachable"}


async def test_a_group_is_led_in_parts_or_not_at_all(tmp_path):
    async with house("scripted", tmp_path) as outer, relayed(outer) as (server, url):
        reach = outer.appliance.reach = outer.appliance.rollouts._reach = outer.appliance.rollouts._enrolment._reach = (
            Reach(Settings(tunnel=(f"custom={url}",), tunnel_multiplex=3))
        )
        outer.appliance._lead()
        made = await outer.rollout(n=8, reach={"agent": "remote"})
        assert {each["url"] for each in made["rollouts"]} == {url}
        assert len(reach.held) == 8
        server.close()
        reach._pool._ready_s, reach._pool._pause_s = 0.1, 0.0
        with pytest.raises(EngineError, match="No tunnel can be had"):
            await reach.lead([wish(str(n), agent="remote") for n in range(5)])
        assert len(reach.held) == 8


async def test_a_registration_that_is_refused_takes_no_way_from_its_namesake(tmp_path):
    async with house("scripted", tmp_path) as outer, relayed(outer) as (_, url):
        outer.appliance.reach = outer.appliance.rollouts._reach = outer.appliance.rollouts._enrolment._reach = Reach(
            Settings(tunnel=(f"custom={url}",))
        )
        outer.appliance._lead()
        await outer.rollout(id="one")
        refused = await outer.control("POST", "/rollouts", json={"id": "one", "labels": {"a": "b"}}, status=409)
        assert refused["error"]["code"] == "id_taken"
        assert outer.appliance.reach.held == ("one",)
        assert outer.appliance.reach.told("one")["healthy"]


async def test_a_server_that_starts_again_takes_up_who_has_its_address_and_tells_the_others(tmp_path):
    async with house("scripted", tmp_path) as outer, relayed(outer) as (_, url):
        outer.appliance.reach = outer.appliance.rollouts._reach = outer.appliance.rollouts._enrolment._reach = Reach(
            Settings(tunnel=(f"custom={url}",))
        )
        outer.appliance._lead()
        kept = await outer.rollout(id="kept")
        await outer.rollout(id="local", reach={"agent": "local", "tools": "local"})
        await outer.rollout(id="closed")
        await outer.control("POST", "/rollouts/closed/close", json={})
    # The same store again, first with another address than before.
    async with house("scripted", tmp_path, tunnel=("ssh=nobody@127.0.0.1",)) as home:
        await until(lambda: not any("take up" in task.get_name() for task in asyncio.all_tasks()))
        found = {
            name: [
                each["data"]["url"]
                for each in (await home.control("GET", f"/rollouts/{name}/findings"))["findings"]
                if each["code"] == "tunnel_lost"
            ]
            for name in ("kept", "local", "closed")
        }
        assert found == {"kept": [kept["url"]], "local": [], "closed": []}
        assert home.appliance.reach.held == ()


async def test_a_server_that_starts_again_at_the_same_address_goes_on(tmp_path):
    async with house("scripted", tmp_path) as first:
        port = int(first.appliance.data_url.rpartition(":")[2])
    # A name of loopback stands for an address that others know.
    settings = {"tunnel": (f"custom=http://localhost:{port}",), "listen": f"127.0.0.1:{port}"}
    async with house("scripted", tmp_path, **settings) as before:
        made = await before.rollout(id="kept")
        assert made["url"] == f"http://localhost:{port}"
    async with house("scripted", tmp_path, **settings) as after:
        await until(lambda: after.appliance.reach.held)
        assert after.appliance.reach.told("kept")["healthy"]
        async with after.chat(made) as answer:
            assert answer.status == 200
        findings = (await after.control("GET", "/rollouts/kept/findings"))["findings"]
        assert "tunnel_lost" not in [each["code"] for each in findings]


async def test_while_it_leaves_a_tunnel_is_open_and_no_new_call_is_taken(tmp_path):
    async with house("scripted", tmp_path) as home:
        made = await home.rollout()
        await home.appliance.leave()
        async with home.chat(made) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
