"""Streams through the whole appliance: faults that users of such systems have met."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine import STREAM, Exchange, chunk, event, running, usage_chunk, whole
from tests.house import house
from tests.playbook import case, data_of


def refusing(behaviour: dict[str, Any], seen: list[dict[str, Any]]):
    """An engine that answers a streamed request for ids with an error; its other streams hold none."""

    def auto(exchange: Exchange) -> bool:
        seen.append(exchange.body)
        refused = behaviour["if_stream_and_return_token_ids"]
        if not exchange.body.get("stream"):
            exchange.answer(whole(exchange.body.get("allowed_token_ids") or [5, 6, 7]))
        elif exchange.body.get("return_token_ids"):
            exchange.answer(refused["body"], status=refused["status"])
        else:
            for piece in STREAM:
                exchange.send(piece.replace(b'"token_ids"', b'"x"').replace(b'"prompt_token_ids"', b'"y"'))
            exchange.end()
        return True

    return auto


async def test_case_94_an_engine_that_refuses_ids_in_streams_serves_them_all_the_same(tmp_path: Path) -> None:
    found = case(94)
    expected = found["expected"]
    seen: list[dict[str, Any]] = []
    async with (
        running(auto=refusing(found["engine_behaviour"], seen)) as engine,
        house(engine, tmp_path, require_tier="eval") as home,
    ):
        # Found out at the start.
        assert home.appliance.engine.tier == "eval"
        assert "streamed" in home.appliance.engine.tier_reason
        seen.clear()
        rollout = await home.rollout()
        for _ in range(2):
            async with home.chat(rollout, **found["client_request"]["body"]) as answer:
                body = await answer.read()
                assert answer.status == expected["client_status"]
                assert (answer.content_type == "text/event-stream") == expected["client_sees_sse"]
            assert "".join(form["choices"][0]["delta"].get("content", "") for form in data_of(body)[:-1]) == "Hello"
            assert body.endswith(b"data: [DONE]\n\n")
        # Repeated once, and never asked again.
        assert [ask.get("return_token_ids") for ask in seen] == [True, None, None]
        await home.idle(rollout)
        graph = await home.graph(rollout)
        codes = {one["code"]: one["calls"] for one in graph["findings"]}
        assert codes["injection_refused"] == [0]
        assert (codes["no_token_ids"] == [0, 1]) == expected["tokens_captured_or_flagged"]
        assert [call["status"] for call in graph["calls"]] == ["complete", "complete"]


async def test_case_94_an_agents_own_mistake_is_not_repeated(tmp_path: Path) -> None:
    error = {"object": "error", "message": "messages must not be empty", "type": "BadRequestError", "code": 400}
    async with running() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()

        def refuses(exchange: Exchange) -> bool:
            engine.requests.append(exchange)
            exchange.answer(error, status=400)
            return True

        engine._auto = refuses
        async with home.chat(rollout, **case(94)["client_request"]["body"]) as answer:
            assert (answer.status, await answer.json()) == (400, error)
        assert len(engine.requests) == 1


def as_stream(reply: dict[str, Any]) -> list[bytes]:
    """The whole reply of the case as an engine streams it: a piece at a time, its usage in a chunk of its own."""
    (choice,) = reply["choices"]
    message = choice["message"]
    forms = [chunk(role=True), chunk(11), chunk(12), chunk(13), chunk(14), chunk(15)]
    deltas = [form["choices"][0]["delta"] for form in forms]
    deltas[1]["reasoning"] = message["reasoning"]
    at = 2
    for index, call in enumerate(message["tool_calls"]):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        opening = {"index": index, "id": call["id"], "type": "function", "function": {"name": name, "arguments": ""}}
        deltas[at]["tool_calls"] = [opening]
        deltas[at + 1]["tool_calls"] = [{"index": index, "function": {"arguments": arguments}}]
        at += 2
    forms.append(chunk(finish=choice["finish_reason"]))
    usage = reply["usage"]
    forms.append(usage_chunk(usage["completion_tokens"], prompt=usage["prompt_tokens"]))
    for form in forms:
        form |= {"id": reply["id"], "model": reply["model"]}
    return [*map(event, forms), event("[DONE]")]


@pytest.mark.parametrize("asks_usage", [False, True])
async def test_case_95_a_stream_says_what_the_whole_reply_says(tmp_path: Path, asks_usage: bool) -> None:
    """Treering makes no stream out of a whole reply. What it makes is the other way round: the record's whole."""
    found = case(95)
    expected, upstream = found["expected"], found["upstream_response"]
    async with running() as engine, house(engine, tmp_path) as home:
        rollout = await home.rollout()

        def streams(exchange: Exchange) -> bool:
            assert exchange.body["stream"] is True
            exchange.send(*as_stream(upstream)).end()
            return True

        engine._auto = streams
        options = {"stream_options": {"include_usage": True}} if asks_usage else {}
        async with home.chat(rollout, model="m", stream=True, **options) as answer:
            body = await answer.read()
        forms = data_of(body)[:-1]
        assert body.splitlines()[-2].decode() == expected["last_line"]
        deltas = [choice["delta"] for form in forms for choice in form["choices"]]
        assert deltas[0]["role"] == "assistant"
        parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
        assert [part["index"] for part in parts if part.get("id")] == expected["tool_indices"]
        finishes = [choice["finish_reason"] for form in forms for choice in form["choices"] if choice["finish_reason"]]
        assert finishes == [expected["finish_reason"]]
        assert ([form["usage"] for form in forms if form.get("usage")] == [upstream["usage"]]) == asks_usage
        assert expected["usage_chunk_only_if_client_asked"]

        await home.idle(rollout)
        reply = (await home.call(rollout, 0))["reply"]
        assert {name: value for name, value in reply["choices"][0]["message"].items() if value} == {
            name: value for name, value in upstream["choices"][0]["message"].items() if value
        }
        assert expected["assembled_message_equals_upstream"]
        assert reply["choices"][0]["finish_reason"] == expected["finish_reason"]
        assert (reply["id"], reply["model"]) == (upstream["id"], upstream["model"])
        assert (await home.call(rollout, 0))["usage"] == upstream["usage"]
