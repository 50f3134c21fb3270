"""Two addresses: free, a running Treering's, or somebody else's."""

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

import msgspec
import pytest

from capture import addresses
from capture.settings import Settings
from tests.house import house


def of(appliance):
    """The settings of an appliance, with the ports that it took."""
    data, control = urlsplit(appliance.data_url), urlsplit(appliance.control_url)
    return msgspec.structs.replace(appliance.settings, listen=data.netloc, admin_listen=control.netloc)


async def looked(settings):
    return {check.name: check for check in await addresses.look(settings)}


async def test_free_addresses():
    checks = await looked(Settings(listen="127.0.0.1:0", admin_listen="127.0.0.1:0"))
    assert {name: check.message for name, check in checks.items()} == {
        "agents' address": "127.0.0.1:0 is free",
        "control address": "127.0.0.1:0 is free",
    }


async def test_a_treering_that_runs_says_how_it_does(tmp_path):
    async with house("scripted", tmp_path) as home:
        checks = await looked(of(home.appliance))
        assert {check.level for check in checks.values()} == {"ok"}
        assert "taken by the Treering that runs here" in checks["agents' address"].message
        assert checks["running"].message.endswith("is ready: engine, store and tunnels can be used")


async def test_a_treering_that_is_not_ready_says_why(tmp_path, monkeypatch):
    async with house("scripted", tmp_path) as home:
        (engine,) = home.appliance.fleet.engines

        async def check():
            engine.healthy, engine.reason = False, "it went away"

        monkeypatch.setattr(engine, "check", check)
        running = (await looked(of(home.appliance)))["running"]
        assert running.level == "fail"
        assert "is not ready: engine: " in running.message
        assert "it went away" in running.message


async def test_two_treerings_are_not_one(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with house("scripted", tmp_path / "one") as one, house("scripted", tmp_path / "two") as two:
        listen = urlsplit(two.appliance.data_url).netloc
        checks = await looked(msgspec.structs.replace(of(one.appliance), listen=listen))
        assert "running" not in checks
        assert {check.level for check in checks.values()} == {"warn"}


@contextlib.contextmanager
def answering(body):
    """A server that is no Treering."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"nonce": "n"}', b'{"nonce": "n", "engine": {}}'])
async def test_whatever_else_answers_there_is_no_treering(body):
    with answering(body) as listen:
        checks = await looked(Settings(listen=listen, admin_listen=listen))
    assert {check.level for check in checks.values()} == {"warn"}
    assert checks["control address"].todo.endswith("choose another --admin-listen")
    assert "running" not in checks


async def test_what_takes_connections_and_says_nothing(monkeypatch):
    monkeypatch.setattr(addresses, "ASK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        checks = await looked(Settings(listen=listen, admin_listen=listen))
    assert {check.level for check in checks.values()} == {"warn"}
