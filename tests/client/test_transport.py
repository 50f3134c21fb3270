"""What the client does with connections: kept ones that died, answers that break off, servers that are none."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

import treering_client
from treering_client import Client
from treering_client.errors import CutShort, RequestError, TreeringError, Unreachable
from treering_client.transport import Transport

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'


@contextlib.contextmanager
def server(*connections):
    """A server that plays one list of answers to each connection in turn, then closes it; `seen` has the requests."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    seen: list[bytes] = []

    def play():
        for answers in connections:
            with contextlib.suppress(OSError):
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(10)
                    for answer in answers:
                        text = peer.recv(65536)
                        while b"\r\n\r\n" not in text:
                            text += peer.recv(65536)
                        seen.append(text)
                        peer.sendall(answer)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        listener.close()
        thread.join(15)
        assert not thread.is_alive()


@contextlib.contextmanager
def transport(url):
    made = Transport(url, "k", timeout_s=5)
    try:
        yield made
    finally:
        made.close()


def test_a_connection_is_kept_and_used_again():
    with server([OK, OK]) as (url, seen), transport(url) as http:
        assert http.call("GET", "/x") == {"a": 1}
        assert http.call("POST", "/x", {}) == {"a": 1}
        assert len(seen) == 2


def test_a_kept_connection_that_died_is_replaced_where_a_request_may_be_repeated():
    with server([OK], [OK]) as (url, seen), transport(url) as http:
        http.call("GET", "/x")
        assert http.call("GET", "/x") == {"a": 1}
        assert len(seen) == 2


def test_a_request_that_may_not_be_repeated_is_sent_once():
    with server([OK], [OK]) as (url, seen), transport(url) as http:
        http.call("GET", "/x")
        with pytest.raises(Unreachable):
            http.call("POST", "/rollouts/r/close", {})
        # The second connection of the play, so that it ends.
        assert http.call("GET", "/x") == {"a": 1}
        assert [text.split()[0] for text in seen] == [b"GET", b"GET"]


def test_an_answer_that_breaks_off_is_no_answer():
    cut = b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a"'
    with server([cut]) as (url, _), transport(url) as http, pytest.raises(Unreachable, match="broke its answer off"):
        http.call("GET", "/x")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n<ht>",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
def test_a_server_that_is_no_treering_is_said_to_be_none(answer):
    with server([answer]) as (url, _), transport(url) as http, pytest.raises(TreeringError) as refused:
        http.call("GET", "/x")
    assert isinstance(refused.value, Unreachable) or "another program" in str(refused.value)


def test_a_stream_without_its_last_line_was_cut():
    body = b'{"rollout": "a"}\n'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with server([answer]) as (url, _), Client(url, "k", timeout_s=5) as client:
        lines = client.sequences()
        assert next(lines) == {"rollout": "a"}
        with pytest.raises(CutShort):
            next(lines)


def test_a_stream_goes_on_from_its_cursor():
    def page(body):
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    first = page(b'{"rollout": "a"}\n{"end": true, "rollouts": 1, "next": "c1"}\n')
    second = page(b'{"rollout": "b"}\n{"end": true, "rollouts": 1, "next": null}\n')
    with server([first], [second]) as (url, seen), Client(url, "k", timeout_s=5) as client:
        assert [line["rollout"] for line in client.sequences(group="g")] == ["a", "b"]
        assert b"group=g" in seen[1]
        assert b"after=c1" in seen[1]


def test_a_silent_server_is_waited_for_within_the_limit():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        http = Transport(f"http://127.0.0.1:{listener.getsockname()[1]}", "k", timeout_s=0.2)
        with pytest.raises(Unreachable, match="timed out"):
            http.call("GET", "/x")


def test_proxy_variables_are_not_looked_at(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with server([OK]) as (url, _), transport(url) as http:
        assert http.call("GET", "/x") == {"a": 1}


def test_a_refusal_carries_code_and_hint():
    body = b'{"error": {"code": "no_calls", "message": "None.", "hint": "Look."}}'
    answer = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with server([answer]) as (url, _), transport(url) as http, pytest.raises(RequestError) as refused:
        http.call("PUT", "/x", {})
    assert (refused.value.status, refused.value.code, refused.value.hint) == (409, "no_calls", "Look.")


def test_it_says_who_asks():
    with server([OK]) as (url, seen), transport(url) as http:
        http.call("GET", "/x")
    (asked,) = seen
    assert f"\r\nUser-Agent: treering-client/{treering_client.__version__}\r\n".encode() in asked
    assert b"\r\nAuthorization: Bearer k\r\n" in asked
