"""The command line's client, against a server on loopback."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from capture.client import Client, client, control_url, find_key, is_private, read_key, refusal, segment
from capture.errors import ClientError, EngineError, StoreError, UsageError
from capture.settings import Settings
from capture.version import version


@pytest.fixture
def served():
    """Return a function that serves one kind of answer; it gives the address and a list of what was asked."""
    with contextlib.ExitStack() as stack:

        def serve(status, body, headers=()):
            seen = []

            class Handler(BaseHTTPRequestHandler):
                def answer(self):
                    length = int(self.headers.get("Content-Length", 0))
                    seen.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
                    self.send_response(status)
                    for name, value in headers:
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 -- the names that http.server calls

                def log_message(self, *args):
                    pass

            server = HTTPServer(("127.0.0.1", 0), Handler)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}", seen

        yield serve


def test_what_is_sent(served):
    url, seen = served(200, b'{"ok":true}')
    client = Client(url + "/behind/", key="the-key")
    query = {"state": "open", "group": None, "label": ["a:1", "b:2"]}
    assert client.json("POST", f"/rollouts/{segment('a/b')}", query=query, body={"n": 8}) == {"ok": True}
    ((method, path, headers, body),) = seen
    assert (method, path) == ("POST", "/behind/rollouts/a%2Fb?state=open&label=a%3A1&label=b%3A2")
    assert headers["Authorization"] == "Bearer the-key"
    assert headers["User-Agent"] == f"treering/{version()}"
    assert json.loads(body) == {"n": 8}


def test_the_key_goes_to_no_proxy_and_follows_no_redirect(served, monkeypatch):
    elsewhere, lured = served(200, b"{}")
    url, seen = served(302, b"", [("Location", elsewhere)])
    monkeypatch.setenv("http_proxy", elsewhere)
    with pytest.raises(UsageError):
        Client(url, key="the-key").request("GET", "/rollouts")
    assert len(seen) == 1
    assert lured == []


def test_an_empty_answer_is_none(served):
    url, _ = served(204, b"")
    assert Client(url).json("GET", "/rollouts/a") is None


def test_an_answer_read_as_it_comes(served):
    url, seen = served(200, b"one\ntwo\n")
    with Client(url, key="the-key").stream("/sequences", query={"group": "g", "label": []}) as answer:
        assert list(answer) == [b"one\n", b"two\n"]
    assert seen[0][:2] == ("GET", "/sequences?group=g")
    url, _ = served(404, b'{"error": {"code": "no_rollouts", "message": "none", "hint": ""}}')
    with pytest.raises(ClientError, match="none"), Client(url).stream("/sequences"):
        pass


def test_nobody_there():
    with pytest.raises(UsageError, match="no answer from"):
        Client("http://127.0.0.1:1").request("GET", "/rollouts")


@pytest.mark.parametrize("url", ["127.0.0.1:8401", "ftp://h", "http://", "http://h:port"])
def test_a_url_that_is_none(url):
    with pytest.raises(UsageError, match="is no URL"):
        Client(url)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "rollout_not_found", ClientError),
        (409, "no_calls", ClientError),
        (401, "unauthorized", UsageError),
        (507, "store_full", StoreError),
        (502, "engine_unreachable", EngineError),
    ],
)
def test_an_error_is_raised_as_it_was_named(status, code, kind):
    body = json.dumps({"error": {"code": code, "message": "M.", "hint": "H."}}).encode()
    error = refusal(status, body, "http://h")
    assert type(error) is kind
    assert (error.message, error.hint) == ("M.", "H.")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"error": "no"}', b'{"error": null}', b"\xff"])
def test_an_answer_that_is_not_treerings(body):
    error = refusal(502, body, "http://h")
    assert type(error) is UsageError
    assert "http://h answered 502" in error.message


def test_where_the_key_comes_from(tmp_path):
    store = f"sqlite:///{tmp_path}/t.db"
    assert find_key(Settings(store=store)) is None
    (tmp_path / "t.db.key").write_text("beside\n")
    assert find_key(Settings(store=store)) == "beside"
    assert find_key(Settings(store=store, admin_key="variable")) == "variable"
    named = tmp_path / "named"
    named.write_text(" named \n")
    assert find_key(Settings(store=store, admin_key="variable", admin_key_file=str(named))) == "named"


@pytest.mark.parametrize("content", [b"", b"two words", b"two\nlines", "schlüssel".encode(), b"\xff"])
def test_a_file_that_holds_no_key(content, tmp_path):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_key(path)


def test_a_key_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_key(tmp_path / "none")


def test_private(tmp_path):
    path = tmp_path / "key"
    path.touch(mode=0o600)
    assert is_private(path)
    path.chmod(0o640)
    assert not is_private(path)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8401", "http://127.0.0.1:8401"),
        ("0.0.0.0:1", "http://127.0.0.1:1"),
        ("[::1]:2", "http://[::1]:2"),
        ("host:3", "http://host:3"),
    ],
)
def test_the_control_plane_as_seen_from_here(listen, url):
    assert control_url(Settings(admin_listen=listen)) == url


def test_the_control_plane_is_the_flags_else_the_variables_else_the_settings(monkeypatch, tmp_path):
    settings = Settings(store=f"sqlite:///{tmp_path}/t.db")
    assert client(settings, None).url == "http://127.0.0.1:8401"
    monkeypatch.setenv("TREERING_URL", "http://trainer:1")
    assert client(settings, None).url == "http://trainer:1"
    assert client(settings, "http://other:2").url == "http://other:2"
