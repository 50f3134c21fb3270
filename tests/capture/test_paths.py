"""Which route a request means, and which secret it shows."""

import pytest
from multidict import CIMultiDict

from capture.paths import Route, find_secret, locate, without_key


@pytest.mark.parametrize(
    ("method", "path", "kind", "dialect"),
    [
        ("POST", "/v1/chat/completions", "call", "chat"),
        ("POST", "/chat/completions", "call", "chat"),
        ("POST", "/gateway/eu/v1/chat/completions", "call", "chat"),
        ("POST", "/v1/chat/completions/", "call", "chat"),
        ("POST", "/v1/completions", "call", "completions"),
        ("POST", "/v1/responses", "call", "responses"),
        ("GET", "/v1/responses/chatcmpl-1", "stored", "responses"),
        ("POST", "/v1/messages", "call", "messages"),
        ("POST", "/v1/messages/count_tokens", "count", "messages"),
        ("POST", "/v1beta/models/m:generateContent", "call", "gemini"),
        ("POST", "/v1beta/models/m:streamGenerateContent", "call", "gemini"),
        ("POST", "/v1beta/models/m:countTokens", "count", "gemini"),
        ("POST", "/v1beta/models/m:predict", "unknown", "gemini"),
        ("GET", "/v1beta/models", "models", "gemini"),
        ("GET", "/v1/chat/completions", "unknown", "chat"),
        ("POST", "/v1/chat/completions/render", "unknown", "chat"),
        ("POST", "/v1/chatcompletions", "unknown", "chat"),
        ("GET", "/v1/models", "models", "chat"),
        ("GET", "/models", "models", "chat"),
        ("GET", "/state", "state", "chat"),
        ("PUT", "/v1/state", "state", "chat"),
        ("GET", "/gateway/eu/state/", "state", "chat"),
        ("GET", "/r/secret/task", "task", "chat"),
        ("POST", "/state", "unknown", "chat"),
        ("PUT", "/task", "unknown", "chat"),
        ("DELETE", "/state", "unknown", "chat"),
        ("GET", "/v1/models/state", "model", "chat"),
        ("GET", "/healthz", "health", "chat"),
        ("HEAD", "/", "health", "chat"),
        ("GET", "/", "unknown", "chat"),
        ("POST", "/tokenize", "relay", "chat"),
        ("POST", "/v1/tokenize", "relay", "chat"),
        ("POST", "/v1/embeddings", "relay", "chat"),
        ("POST", "/inference/v1/abort_requests", "unknown", "chat"),
        ("POST", "/inference/v1/generate", "unknown", "chat"),
        ("POST", "/pause", "unknown", "chat"),
    ],
)
def test_a_route_is_found_by_its_last_segments(method: str, path: str, kind: str, dialect: str) -> None:
    route = locate(method, path)
    assert (route.kind, route.dialect) == (kind, dialect)


def test_geminis_path_names_the_model_and_says_if_it_streams() -> None:
    route = locate("POST", "/v1beta/models/Qwen%2FQwen3-8B:streamGenerateContent")
    assert (route.target, route.streamed) == ("Qwen/Qwen3-8B", True)
    assert locate("POST", "/v1beta/models/m:generateContent").streamed is False


def test_headers_tell_the_dialect_where_the_path_does_not() -> None:
    assert locate("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"}).dialect == "messages"
    assert locate("GET", "/models", headers={"x-goog-api-key": "k"}).dialect == "gemini"
    assert locate("POST", "/v1/nope", headers={"anthropic-version": "2023-06-01"}).dialect == "messages"


def test_a_models_id_may_hold_slashes() -> None:
    assert locate("GET", "/v1/models/Qwen/Qwen3-8B") == Route(kind="model", target="Qwen/Qwen3-8B")
    assert locate("GET", "/v1/models/Qwen%2FQwen3-8B") == Route(kind="model", target="Qwen/Qwen3-8B")


def test_the_operator_lets_a_path_through() -> None:
    assert locate("POST", "/v1/rerank").kind == "unknown"
    assert locate("POST", "/v1/rerank", allowed=("/v1/rerank",)) == Route(kind="relay", target="/v1/rerank")


def test_a_secret_in_the_path_is_taken_off_it() -> None:
    route = locate("POST", "/r/sk-a%2Bb/v1/chat/completions")
    assert route == Route(kind="call", secret="sk-a+b")


def test_secrets_are_looked_for_in_one_order() -> None:
    headers = CIMultiDict(
        {"Authorization": "Bearer one", "X-Api-Key": "two", "x-goog-api-key": "three", "api-key": "four"}
    )
    route = Route(kind="call", secret="six")
    seen = []
    for name in ("authorization", "x-api-key", "x-goog-api-key", "api-key"):
        seen.append(find_secret(headers, "key=five", route))
        del headers[name]
    seen += [find_secret(headers, "key=five", route), find_secret(headers, "", route)]
    assert seen == ["one", "two", "three", "four", "five", "six"]


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic abc"])
def test_an_authorisation_that_shows_no_key_is_none(value: str) -> None:
    assert find_secret(CIMultiDict({"Authorization": value}), "", Route(kind="call")) is None


def test_the_scheme_is_read_without_regard_to_case() -> None:
    assert find_secret(CIMultiDict({"authorization": "bearer k"}), "", Route(kind="call")) == "k"


@pytest.mark.parametrize(
    ("query", "left"),
    [("", ""), ("a=%2F+&b", "a=%2F+&b"), ("key=s", ""), ("a=1&key=s&b=2", "a=1&b=2"), ("k%65y=s&keys=1", "keys=1")],
)
def test_a_querys_key_goes_no_further(query: str, left: str) -> None:
    assert without_key(query) == left


def test_a_query_that_goes_on_holds_no_secret_anywhere() -> None:
    secret = "sk-treering-" + "Ab3_x" * 8 + "xyz"
    quoted = secret.replace("-", "%2D").replace("_", "%5F")
    assert without_key(f"a=1&x={secret}&{secret}&b=%2F&y={quoted}&k%65y=z") == "a=1&b=%2F"
