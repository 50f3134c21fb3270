"""Who may talk to the control plane."""

import json
import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from capture import guard
from capture.errors import ClientError


@pytest.mark.parametrize(
    ("host", "listen", "ours"),
    [
        ("127.0.0.1:8401", "127.0.0.1", True),
        ("localhost:9000", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("[::1]:8401", "127.0.0.1", True),
        ("trainer.example:8401", "trainer.example", True),
        ("evil.example:8401", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("10.0.0.1:8401", "127.0.0.1", False),
        ("10.0.0.1:8401", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("user@127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1/evil", "127.0.0.1", False),
        ("127.0.0.1:port", "127.0.0.1", False),
        ("[::1", "127.0.0.1", False),
        ("", "127.0.0.1", False),
    ],
)
def test_host(host, listen, ours):
    assert guard.is_ours(host, listen) is ours


def test_this_machines_name_where_every_interface_is_listened_on(monkeypatch):
    monkeypatch.setattr(guard.socket, "gethostname", lambda: "Box7")
    assert guard.is_ours("box7:8401", "0.0.0.0")
    assert not guard.is_ours("box7:8401", "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "ours"),
    [("Treering.LAN:443", True), ("treering.lan", True), ("sub.treering.lan", False), ("treering.lan.evil", False)],
)
def test_a_name_that_the_operator_gave(host, ours):
    assert guard.is_ours(host, "127.0.0.1", ("treering.lan",)) is ours


@pytest.mark.parametrize(
    ("origin", "same"),
    [
        ("http://127.0.0.1:8401", True),
        ("https://127.0.0.1:8401", True),
        ("http://127.0.0.1:8400", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
        ("file://127.0.0.1:8401", False),
    ],
)
def test_origin(origin, same):
    assert guard.same_origin(origin, "127.0.0.1:8401") is same


@pytest.fixture
async def ask():
    """Return a function that asks a guarded server and returns status, headers and body."""

    async def fine(request):
        return web.json_response({"fine": True})

    async def refuses(request):
        raise ClientError("no_calls", "No calls.", hint="Force it.", status=409)

    async def breaks(request):
        raise RuntimeError("secret detail")

    app = web.Application(middlewares=[guard.errors(), guard.hosts("127.0.0.1"), guard.admin_key(lambda: "the-key")])
    app.add_routes(
        [web.get("/ready", fine), web.get("/fine", fine), web.put("/no", refuses), web.get("/broken", breaks)]
    )
    async with TestClient(TestServer(app)) as client:

        async def ask(method, path, key="the-key", **headers):
            if key is not None:
                headers["Authorization"] = f"Bearer {key}"
            async with client.request(method, path, headers=headers) as answer:
                text = await answer.read()
                return answer.status, answer.headers, json.loads(text) if text else None

        yield ask


async def test_the_key_opens(ask):
    status, headers, body = await ask("GET", "/fine")
    assert (status, body) == (200, {"fine": True})
    assert headers["Treering-Version"] == "1"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "key"), [("/fine", "the-key"), ("/fine", "wrong"), ("/nowhere", "the-key"), ("/broken", "the-key")]
)
async def test_every_answer_says_how_a_browser_may_treat_it(ask, path, key):
    _, headers, _ = await ask("GET", path, key=key)
    for name, value in guard.HEADERS.items():
        assert headers[name] == value
    policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not any("unsafe" in value or "*" in value or "http" in value for value in policy.values())
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("key", [None, "", "wrong", "the-key2", "schlüssel"])
@pytest.mark.parametrize("path", ["/fine", "/nowhere", "/ready/", "/READY"])
async def test_without_it_nothing_opens_and_nothing_is_told(ask, key, path):
    status, headers, body = await ask("GET", path, key=key)
    assert status == 401
    assert body["error"]["code"] == "unauthorized"
    assert headers["Treering-Version"] == "1"


async def test_ready_alone_needs_no_key(ask):
    assert (await ask("GET", "/ready", key=None))[0] == 200


async def test_another_name_or_origin_is_refused_before_the_key_is_looked_at(ask):
    status, _, body = await ask("GET", "/fine", key=None, Host="evil.example")
    assert (status, body["error"]["code"]) == (403, "host_refused")
    status, _, body = await ask("GET", "/ready", Origin="http://evil.example")
    assert (status, body["error"]["code"]) == (403, "origin_refused")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("PUT", "/no", 409, "no_calls"),
        ("GET", "/nowhere", 404, "not_found"),
        ("DELETE", "/no", 405, "method_not_allowed"),
    ],
)
async def test_each_refusal_has_the_one_shape(ask, method, path, status, code):
    got, headers, body = await ask(method, path)
    assert got == status
    assert set(body["error"]) == {"code", "message", "hint"}
    assert body["error"]["code"] == code
    assert headers["Treering-Version"] == "1"


async def test_what_was_not_expected_is_told_to_the_log_alone(ask, caplog):
    with caplog.at_level(logging.ERROR, logger="treering"):
        status, _, body = await ask("GET", "/broken")
    assert (status, body["error"]["code"]) == (500, "internal")
    assert "secret detail" not in json.dumps(body)
    assert "secret detail" in caplog.text


async def test_an_answer_that_is_streamed_has_them_too():
    async def streams(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a")
        await response.write_eof()
        return response

    app = web.Application(middlewares=[guard.errors()])
    app.on_response_prepare.append(guard.protect)
    app.add_routes([web.get("/", streams)])
    async with TestClient(TestServer(app)) as client, client.get("/") as answer:
        for name, value in guard.HEADERS.items():
            assert answer.headers[name] == value
        # Nor does it say what we are made of.
        assert "Server" not in answer.headers
