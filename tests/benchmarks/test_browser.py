"""What is watched in a browser: every complaint is a fault, but for those that a test allows."""

import pytest

from benchmarks import browser


class Message:
    def __init__(self, type_, text):
        self.type, self.text = type_, text


class Request:
    method = "GET"

    def __init__(self, url, failure=None):
        self.url, self.failure = url, failure


class Response:
    def __init__(self, status, url):
        self.status, self.url, self.request = status, url, Request(url)


class Route:
    def __init__(self, url):
        self.request = Request(url)
        self.done = None

    async def continue_(self):
        self.done = "let through"

    async def abort(self):
        self.done = "stopped"


@pytest.fixture
def watch():
    return browser.Watch("http://127.0.0.1:8401")


@pytest.mark.parametrize(
    ("url", "done"),
    [
        ("http://127.0.0.1:8401/rollouts?limit=200", "let through"),
        ("http://127.0.0.1:8402/rollouts", "stopped"),
        ("https://127.0.0.1:8401/", "stopped"),
        ("http://fonts.example/x.woff", "stopped"),
        ("http://127.0.0.1:8401.example/x", "stopped"),
    ],
)
async def test_a_request_to_another_origin_is_stopped_and_kept(watch, url, done):
    route = Route(url)
    await watch._route(route)
    assert route.done == done
    assert watch.asked == [f"GET {url}"]
    assert watch.faults == ([] if done == "let through" else [f"asked another: {url}"])


@pytest.mark.parametrize(("type_", "faults"), [("log", 0), ("info", 0), ("warning", 1), ("error", 1), ("assert", 1)])
def test_errors_and_warnings_on_the_console_are_faults(watch, type_, faults):
    watch._said(Message(type_, "so it is"))
    assert len(watch.faults) == faults


def test_a_request_that_a_view_dropped_is_no_fault(watch):
    watch._failed(Request("http://127.0.0.1:8401/events", "net::ERR_ABORTED"))
    assert watch.faults == []
    watch._failed(Request("http://127.0.0.1:8401/events", "net::ERR_CONNECTION_REFUSED"))
    assert len(watch.faults) == 1


def test_what_a_test_makes_happen_is_no_fault(watch):
    watch._answered(Response(304, "http://127.0.0.1:8401/"))
    watch._answered(Response(401, "http://127.0.0.1:8401/rollouts"))
    watch._answered(Response(500, "http://127.0.0.1:8401/rollouts"))
    assert len(watch.faults) == 2
    watch.allow("refused: 401")
    assert watch.faults == ["refused: 500 GET http://127.0.0.1:8401/rollouts"]


def test_the_absence_of_a_part_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "FOLDER", tmp_path / "browser")
    monkeypatch.setattr(browser, "AXE", tmp_path / "browser" / "axe.min.js")
    monkeypatch.setattr(browser, "find_chromium", lambda: "/usr/bin/chromium")
    assert browser.missing() == "browser: it is not installed: run bin/setup.py real-browser"
    (tmp_path / "browser.why").write_text("npm is not on the PATH\n")
    assert browser.missing() == "browser: npm is not on the PATH"
