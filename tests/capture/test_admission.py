"""From what an agent asked to what the engine is sent."""

import json

import pytest

from capture.admission import Rules, admit, engine_headers, hints, reply_headers, with_model
from capture.dialects.chat import Chat
from capture.dialects.completions import Completions
from capture.engines.vllm import Vllm
from capture.errors import ClientError

ASKED = {"model": "gpt-9", "messages": [{"role": "user", "content": "hi"}]}
INJECTED = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}


def sent(ask: dict, **rules) -> tuple[dict, object]:
    request = Chat().read(json.dumps(ask).encode())
    admitted = admit(request, Vllm(), Rules(**rules), served=("tiny",), rollout="r-1", n=3)
    return json.loads(admitted.body), admitted


def test_only_what_capture_needs_is_added() -> None:
    body, admitted = sent({**ASKED, "model": "tiny", "zzz": {"n": 12345678901234567890}})
    assert body == {**ASKED, "model": "tiny", "zzz": {"n": 12345678901234567890}, **INJECTED}
    assert admitted.reply_model is None


def test_any_model_is_served_by_the_rollouts() -> None:
    body, admitted = sent(ASKED)
    assert (body["model"], admitted.reply_model) == ("tiny", "gpt-9")
    body, admitted = sent(ASKED, model="other")
    assert (body["model"], admitted.reply_model) == ("other", "gpt-9")


def test_a_request_without_a_model_gets_the_rollouts_and_no_name_is_put_back() -> None:
    body, admitted = sent({"messages": []})
    assert (body["model"], admitted.reply_model) == ("tiny", None)


def test_a_strict_rollout_refuses_other_models() -> None:
    with pytest.raises(ClientError, match="gpt-9") as caught:
        sent(ASKED, strict_model=True)
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    assert sent({**ASKED, "model": "tiny"}, strict_model=True)[0]["model"] == "tiny"


def test_pins_replace_the_clients_values_and_both_are_kept() -> None:
    body, admitted = sent({**ASKED, "temperature": 0.2}, pins={"temperature": 1.0, "top_p": 1.0})
    assert (body["temperature"], body["top_p"]) == (1.0, 1.0)
    assert admitted.sampling["temperature"] == 1.0
    assert Chat().read(json.dumps({**ASKED, "temperature": 0.2}).encode()).sampling["temperature"] == 0.2


def test_a_pinned_seed_differs_by_rollout_and_call() -> None:
    request = Chat().read(json.dumps(ASKED).encode())

    def seed(rollout: str, n: int, **more) -> int:
        rules = Rules(pins={"seed": 7, **more})
        return json.loads(admit(request, Vllm(), rules, served=("tiny",), rollout=rollout, n=n).body)["seed"]

    assert seed("a", 0) == seed("a", 0)
    assert len({seed("a", 0), seed("a", 1), seed("b", 0), 7}) == 4
    assert seed("a", 0, seed_exact=True) == seed("b", 1, seed_exact=True) == 7


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"max_completion_tokens": 100}),
        ({"max_tokens": 50}, {"max_tokens": 50}),
        ({"max_tokens": 32_000}, {"max_tokens": 100}),
        ({"max_completion_tokens": 32_000}, {"max_completion_tokens": 100}),
        ({"max_tokens": 50, "max_completion_tokens": 200}, {"max_tokens": 50, "max_completion_tokens": 100}),
        ({"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": 100}),
    ],
)
def test_a_replys_length_is_clamped_under_the_name_that_the_client_used(asked: dict, expected: dict) -> None:
    body, _ = sent({**ASKED, **asked}, max_output_tokens=100)
    assert {name: value for name, value in body.items() if name.startswith("max_")} == expected


@pytest.mark.parametrize(
    ("asked", "expected"), [({}, 16), ({"max_tokens": None}, 100), ({"max_tokens": 50}, 50), ({"max_tokens": 500}, 100)]
)
def test_completions_know_the_older_name_alone(asked: dict, expected: int) -> None:
    request = Completions().read(json.dumps({"prompt": "x", **asked}).encode())
    rules = Rules(max_output_tokens=100)
    body = json.loads(admit(request, Vllm(), rules, served=("tiny",), rollout="r-1", n=0).body)
    assert body["max_tokens"] == expected
    assert "max_completion_tokens" not in body


def test_what_steers_the_engine_is_taken_out_and_named() -> None:
    steering = {"priority": 5, "cache_salt": "x", "kv_transfer_params": {}, "request_id": "mine"}
    body, admitted = sent({**ASKED, **steering})
    assert not set(steering) & set(body)
    assert sorted(admitted.removed) == sorted(steering)
    body, admitted = sent({**ASKED, **steering}, allow=frozenset({"priority"}))
    assert body["priority"] == 5
    assert "priority" not in admitted.removed


@pytest.mark.parametrize("url", ["http://169.254.169.254/x.png", "file:///etc/passwd", " HTTPS://h/x"])
def test_media_by_url_are_refused_by_name(url: str) -> None:
    ask = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    with pytest.raises(ClientError) as caught:
        sent(ask)
    assert caught.value.param == "messages[0].content[0].image_url"
    assert sent(ask, allow=frozenset({"media_urls"}))[0]["messages"] == ask["messages"]


def test_media_by_url_are_refused_where_only_pythons_reader_takes_it_for_json() -> None:
    ask = {
        "messages": [{"role": "user", "content": [{"image_url": "http://x"}]}, {"role": "user", "content": "\ud800"}]
    }
    with pytest.raises(ClientError) as caught:
        sent(ask)
    assert caught.value.param == "messages[0].content[0].image_url"


def test_media_in_the_request_pass() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    ask = {"messages": [{"role": "user", "content": [part]}]}
    assert sent(ask)[0]["messages"] == ask["messages"]


def test_the_agents_key_and_hop_by_hop_headers_stay_here() -> None:
    headers = [
        ("Authorization", "Bearer sk-secret"),
        ("X-Api-Key", "sk-secret"),
        ("Cookie", "a=b"),
        ("Connection", "keep-alive, X-Hop"),
        ("X-Hop", "1"),
        ("Host", "agent"),
        ("Content-Length", "9"),
        ("X-Request-Id", "steer"),
        ("x-treering-role", "main"),
        ("traceparent", "00-1"),
        ("User-Agent", "opencode"),
        ("Content-Type", "application/json"),
    ]
    out, removed = engine_headers(headers, frozenset())
    assert out == [("traceparent", "00-1"), ("User-Agent", "opencode"), ("Content-Type", "application/json")]
    assert removed == ["x-request-id"]
    out, removed = engine_headers(headers, frozenset({"X-Request-Id"}))
    assert ("X-Request-Id", "steer") in out
    assert removed == []


def test_the_engines_headers_pass_but_for_framing() -> None:
    headers = [
        ("Content-Type", "application/json"), ("Retry-After", "2"), ("x-request-id", "r"), ("x-ratelimit-limit", "1"),
        ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"),
        ("Transfer-Encoding", "chunked"), ("Content-Length", "3"), ("Content-Encoding", "gzip"),
        ("Connection", "close, X-Hop"), ("X-Hop", "1"),
    ]  # fmt: skip
    assert reply_headers(headers) == headers[:6]


def test_hints_are_kept_by_lower_case_name() -> None:
    headers = [("X-Session-Id", "ses_1"), ("x-treering-role", "title"), ("Accept", "*/*")]
    assert hints(headers) == {"x-session-id": "ses_1", "x-treering-role": "title"}


def test_a_forwarded_body_names_the_rollouts_model() -> None:
    assert json.loads(with_model(b'{"model": "gpt", "prompt": "x"}', "tiny")) == {"model": "tiny", "prompt": "x"}
    assert with_model(b'{"prompt": "x"}', "tiny") == b'{"prompt": "x"}'
    assert with_model(b"not json", "tiny") == b"not json"


SECRET = "sk-treering-" + "Ab3_x" * 8 + "xyz"


def test_no_header_with_a_secret_goes_on_whatever_its_name() -> None:
    given = [
        ("X-Auth", f"token {SECRET}"),
        ("Referer", f"http://x/r/{SECRET}/v1"),
        ("X-Kept", "sk-treering-"),
        ("X", "y"),
    ]
    assert engine_headers(given, frozenset()) == ([("X-Kept", "sk-treering-"), ("X", "y")], [])


def test_a_secret_in_a_hint_is_masked() -> None:
    assert hints([("X-Treering-Label", f"run {SECRET}!")]) == {"x-treering-label": "run sk-treering-…!"}


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("a\tb", "a\tb"), ("b\r\n X-Evil: 1", "b  X-Evil: 1"), ("a\x00\x01\x7fb", "a b"), ("\udce9é ", "\udce9é "),
        ("\x1b[31m", " [31m"),
    ],
)  # fmt: skip
def test_a_headers_value_is_one_line_both_ways(value: str, sent: str) -> None:
    assert engine_headers([("X-A", value)], frozenset()) == ([("X-A", sent)], [])
    assert reply_headers([("X-A", value)]) == [("X-A", sent)]
