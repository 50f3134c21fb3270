"""Which route a request means, and which secret it shows."""

import pytest
from multidict import CIMultiDict

from capture.paths import Route, find_secret, locate


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v1/chat/completions", "chat"),
        ("POST", "/chat/completions", "chat"),
        ("POST", "/gateway/eu/v1/chat/completions", "chat"),
        ("POST", "/v1/chat/completions/", "chat"),
        ("GET", "/v1/chat/completions", "unknown"),
        ("POST", "/v1/chat/completions/render", "unknown"),
        ("POST", "/v1/chatcompletions", "unknown"),
        ("GET", "/v1/models", "models"),
        ("GET", "/models", "models"),
        ("GET", "/healthz", "health"),
        ("HEAD", "/", "health"),
        ("GET", "/", "unknown"),
        ("POST", "/tokenize", "relay"),
        ("POST", "/v1/tokenize", "relay"),
        ("POST", "/v1/embeddings", "relay"),
        ("POST", "/inference/v1/abort_requests", "unknown"),
        ("POST", "/inference/v1/generate", "unknown"),
        ("POST", "/v1/completions", "unknown"),
        ("POST", "/pause", "unknown"),
    ],
)
def test_a_route_is_found_by_its_last_segments(method: str, path: str, kind: str) -> None:
    assert locate(method, path).kind == kind


def test_a_models_id_may_hold_slashes() -> None:
    assert locate("GET", "/v1/models/Qwen/Qwen3-8B") == Route(kind="model", target="Qwen/Qwen3-8B")
    assert locate("GET", "/v1/models/Qwen%2FQwen3-8B") == Route(kind="model", target="Qwen/Qwen3-8B")


def test_the_operator_lets_a_path_through() -> None:
    assert locate("POST", "/v1/rerank").kind == "unknown"
    assert locate("POST", "/v1/rerank", allowed=("/v1/rerank",)) == Route(kind="relay", target="/v1/rerank")


def test_a_secret_in_the_path_is_taken_off_it() -> None:
    route = locate("POST", "/r/sk-a%2Bb/v1/chat/completions")
    assert route == Route(kind="chat", secret="sk-a+b")


def test_secrets_are_looked_for_in_one_order() -> None:
    headers = CIMultiDict(
        {"Authorization": "Bearer one", "X-Api-Key": "two", "x-goog-api-key": "three", "api-key": "four"}
    )
    route = Route(kind="chat", secret="six")
    seen = []
    for name in ("authorization", "x-api-key", "x-goog-api-key", "api-key"):
        seen.append(find_secret(headers, "key=five", route))
        del headers[name]
    seen += [find_secret(headers, "key=five", route), find_secret(headers, "", route)]
    assert seen == ["one", "two", "three", "four", "five", "six"]


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic abc"])
def test_an_authorisation_that_shows_no_key_is_none(value: str) -> None:
    assert find_secret(CIMultiDict({"Authorization": value}), "", Route(kind="chat")) is None


def test_the_scheme_is_read_without_regard_to_case() -> None:
    assert find_secret(CIMultiDict({"authorization": "bearer k"}), "", Route(kind="chat")) == "k"
