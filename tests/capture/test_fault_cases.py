"""Faults of engines and networks that users of such systems have met, and rewards that found no call."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from capture import onboarding, silence, upstream
from tests import tongues
from tests.engine import STREAM, Engine, running, whole
from tests.faults import faulty
from tests.house import House, house
from tests.playbook import case, data_of
from tests.wire import wired


def test_case_12_the_two_kinds_of_logprobs_are_no_multiples_of_each_other() -> None:
    found = case(12)
    expected, logits, chosen = found["expected"], found["logits"], found["chosen"]

    def logprob(temperature: float) -> float:
        scaled = [logit / temperature for logit in logits]
        return scaled[chosen] - math.log(sum(map(math.exp, scaled)))

    assert logprob(1.0) == pytest.approx(expected["raw_logprob"], abs=1e-6)
    assert logprob(found["temperature"]) == pytest.approx(expected["processed_logprob"], abs=1e-6)
    divided = expected["raw_logprob"] / found["temperature"]
    assert divided == pytest.approx(expected["raw_divided_by_T_is_wrong"], abs=1e-6)
    assert divided != pytest.approx(expected["processed_logprob"], abs=1e-3)


async def test_case_12_nothing_is_rescaled_and_how_tokens_were_drawn_is_on_record(tmp_path: Path) -> None:
    found = case(12)
    expected = found["expected"]
    form = whole([5])
    form["choices"][0]["logprobs"]["content"][0]["logprob"] = expected["raw_logprob"]
    async with running() as engine, house(engine, tmp_path, logprobs_mode="raw") as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            both.create_task(tongues.told(home.chat(rollout, temperature=found["temperature"], top_p=0.9)))
            (await engine.next()).answer(form)
        call = await home.call(rollout, 0)
        assert call["logprobs"] == pytest.approx([expected["raw_logprob"]], abs=1e-6)
        graph = await home.graph(rollout)
        on_record = {**call["sampling"]["sent"], "logprobs_mode": graph["rollout"]["logprobs_mode"]}
        assert {name: on_record[name] for name in expected["record_fields"]} == {
            "temperature": 0.5, "top_p": 0.9, "top_k": None, "min_p": None, "logprobs_mode": "raw",
        }  # fmt: skip
        assert "logprobs_not_of_sampler" in [finding["code"] for finding in graph["findings"]]


async def test_case_55_each_reply_gets_the_reward_of_its_id(tmp_path: Path) -> None:
    found = case(55)
    expected = found["expected"]
    async with running() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        seen = []
        for n, reply in enumerate(found["responses"]):
            async with asyncio.TaskGroup() as both:
                asked = both.create_task(tongues.told(home.chat(rollout, seed=n)))
                (await engine.next()).answer(whole([5 + n], prompt=[1, 2, 3, n], reply_id=reply["id"]))
            seen.append(json.loads(asked.result()[1])["id"])
        assert seen == expected["record_response_ids"]
        path = f"/rollouts/{rollout['id']}/reward"
        refused = await home.control("PUT", path, json={"per_call": {**found["rewards"], "chatcmpl-9": 1}}, status=422)
        assert ("error" in refused, refused["error"]["code"]) == (True, "unknown_call")
        assert (await home.control("GET", f"/rollouts/{rollout['id']}"))["per_call_rewards"] == {}
        await home.control("PUT", path, json={"per_call": found["rewards"]})
        rows = (await home.control("GET", f"/rollouts/{rollout['id']}/sequences?open=1"))["sequences"]
        given = {call: reward for row in rows for call, reward in row["call_rewards"].items()}
        assert [given[str(n)] for n in range(2)] == expected["rewards_per_call"]


async def test_case_90_a_long_silence_of_the_engine_is_none_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first chunk comes when as many comments have gone out as fit into the case's 20 s."""
    found = case(90)
    cut_s = float(found["generate"]["cutter"].split()[-2])
    until_first_s = float(found["generate"]["engine"].split()[-2])
    assert cut_s > silence.SILENCE_S
    comments = int(until_first_s / silence.SILENCE_S)
    monkeypatch.setattr(silence, "SILENCE_S", 0.02)
    async with running() as engine, house(engine, tmp_path) as home, faulty(home.appliance.data_url) as way:
        rollout = await home.rollout()
        client = openai.AsyncOpenAI(base_url=way.url + "/v1", api_key=rollout["secret"], max_retries=0)

        async def ask() -> str:
            stream = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async with asyncio.TaskGroup() as both:
            reply = both.create_task(ask())
            asked = await engine.next()
            # Headers at once: an event of the engine's own that says nothing.
            asked.send(b": hello\n\n")
            async with asyncio.timeout(20):
                while way.passed["down"].count(silence.KEEP_ALIVE) < comments:  # noqa: ASYNC110  bytes on their way
                    await asyncio.sleep(0)
            asked.send(*STREAM).end()
        assert (reply.result() == "Hello") == found["expected"]["stream_survives"]
        await client.close()
        said = bytes(way.passed["down"]).split(b"\r\n\r\n", 1)[1]
        # Without the chunked framing: what a parser that reads the data of every event gets.
        lines = [line for line in said.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data: ")]
        assert data_of(b"\n\n".join(lines) + b"\n\n")[-1] == "[DONE]"
        assert all(isinstance(form, dict) for form in data_of(b"\n\n".join(lines) + b"\n\n")[:-1])


async def refused(home: House, rollout: Any, name: str, *, stream: bool) -> tuple[int, Any, Any]:
    async with tongues.ask(home, rollout, name, stream=stream) as response:
        return response.status, response.headers, await response.json(content_type=None)


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("status", case(93)["upstream_statuses"])
async def test_case_93_a_status_passes_with_what_says_when_to_come_again(
    tmp_path: Path, status: int, stream: bool
) -> None:
    said = {"error": {"message": f"It is {status}.", "type": "t", "code": status, "param": None}}

    async def fails(request: web.Request) -> web.StreamResponse:
        return web.json_response(said, status=status, headers={"Retry-After": "7", "x-should-retry": "false"})

    async with wired(fails) as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()
        got, headers, body = await refused(home, rollout, "chat", stream=stream)
        assert (got == status, body) == (case(93)["expected"]["client_status"] == "same", said)
        assert (headers["Retry-After"], headers["x-should-retry"]) == ("7", "false")
        got, headers, body = await refused(home, rollout, "messages", stream=stream)
        shape = case(93)["expected"]["anthropic_error_shape"]
        assert (got, headers["Retry-After"]) == (status, "7")
        assert (body["type"], body["error"].keys() >= shape["error"].keys()) == (shape["type"], True)
        assert f"It is {status}." in body["error"]["message"]


@pytest.mark.parametrize("stream", tongues.STREAMED)
@pytest.mark.parametrize("name", tongues.NAMES)
async def test_case_93_what_is_no_answer_is_an_error_in_the_dialect(tmp_path: Path, name: str, stream: bool) -> None:
    expected = case(93)["expected"]
    how = "keyless"
    asked = asyncio.Event()

    async def fails(request: web.Request) -> web.StreamResponse:
        if how == "keyless":
            return web.json_response({"error": "who are you?"}, status=401)
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async with wired(fails) as engine, house(engine, tmp_path, engine_silence=0.2) as home:
        rollout = await home.rollout()

        async def status() -> int:
            got, _, body = await refused(home, rollout, name, stream=stream)
            assert body["error"]["message"]
            return got

        if name != "completions":
            # The engine under the hand has no route for it.
            assert await status() == expected["upstream_401_becomes"]
            how = "stalled"
            assert await status() == expected["stalled_becomes"]
            assert asked.is_set()
        await engine.close()
        assert await status() == expected["refused_becomes"]


async def test_an_engine_that_falls_silent_in_a_stream_is_given_up(tmp_path: Path) -> None:
    async with running() as engine, house(engine, tmp_path, engine_silence=0.3) as home:
        rollout = await home.rollout()
        async with asyncio.TaskGroup() as both:
            reply = both.create_task(tongues.cut(home.chat(rollout, stream=True)))
            asked = await engine.next()
            asked.send(*STREAM[:3])
            async with asyncio.timeout(10):
                await asked.dropped.wait()
        assert reply.result() != b""
        await home.idle(rollout)
        call = await home.call(rollout, 0)
        assert (call["status"], call["sampled_ids"], call["error"]["blame"]) == ("aborted", [5, 6], "engine")


async def test_an_engine_that_is_not_up_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setattr(onboarding, "POLL_S", 0.01)
    missed = asyncio.Event()
    unreachable = upstream.Engine._unreachable

    def noted(self: upstream.Engine, error: Exception) -> Any:
        missed.set()
        return unreachable(self, error)

    monkeypatch.setattr(upstream.Engine, "_unreachable", noted)
    late = Engine()

    async def comes_up() -> None:
        await missed.wait()
        await late.start(unused_tcp_port)

    async with asyncio.TaskGroup() as both:
        both.create_task(comes_up())
        async with house(f"vllm=http://127.0.0.1:{unused_tcp_port}", tmp_path, engine_wait=20.0) as home:
            (shown,) = (await home.control("GET", "/engines"))["engines"]
            assert (shown["healthy"], shown["tier"]) == (True, "train")
    await late.close()
