"""The page's own files: what is served, to whom, and how a browser may keep it."""

import gzip

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from capture import guard, site
from tests.house import house

LONG = b"export const words = [" + b"'tree', " * 400 + b"];"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "index.html").write_bytes(b"<!doctype html><title>Treering</title>")
    (tmp_path / "main.js").write_bytes(LONG)
    (tmp_path / "app.css").write_bytes(b"body { margin: 0 }")
    (tmp_path / "tree.svg").write_bytes(b"<svg/>")
    (tmp_path / "notes.txt").write_bytes(b"not for browsers")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x.js").write_bytes(b"1")
    return tmp_path


@pytest.fixture
async def ask(folder):
    """Return a function that asks a guarded server for a path, without a key."""
    app = web.Application(middlewares=[guard.errors(), guard.hosts("127.0.0.1"), guard.admin_key(lambda: "the-key")])
    (folder / "docs").mkdir()
    (folder / "docs" / "pinned.md").write_text("# Pinned prefixes\n")
    (folder / "docs" / "page.json").write_text("{}")
    app.add_routes(site.routes(folder, folder / "docs"))
    app.on_response_prepare.append(guard.protect)
    async with TestClient(TestServer(app), auto_decompress=False) as client:

        async def ask(path, method="GET", **headers):
            headers = {"Accept-Encoding": "identity", **headers}
            async with client.request(method, URL(path, encoded=True), headers=headers) as answer:
                return answer.status, answer.headers, await answer.read()

        yield ask


@pytest.mark.parametrize(
    ("path", "kind", "begins"),
    [
        ("/", "text/html; charset=utf-8", b"<!doctype"),
        ("/page/index.html", "text/html; charset=utf-8", b"<!doctype"),
        ("/page/main.js", "text/javascript; charset=utf-8", b"export"),
        ("/page/app.css", "text/css; charset=utf-8", b"body"),
        ("/page/tree.svg", "image/svg+xml", b"<svg"),
        ("/page/pinned.md", "text/markdown; charset=utf-8", b"# Pinned prefixes"),
        # Not in that folder, and printed from the tables, as in a package.
        ("/page/findings.md", "text/markdown; charset=utf-8", b"# Findings"),
    ],
)
async def test_a_file_without_a_key(ask, path, kind, begins):
    status, headers, body = await ask(path)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert body.startswith(begins)
    assert headers["Cache-Control"] == "no-cache"
    assert {name: headers[name] for name in guard.HEADERS if name != "Cache-Control"} == {
        name: value for name, value in guard.HEADERS.items() if name != "Cache-Control"
    }


@pytest.mark.parametrize(
    "path",
    [
        "/page/notes.txt",
        "/page/none.js",
        "/page/inner",
        "/page/%2e%2e",
        "/page/main.js%00",
        "/page/page.json",
        "/page/drift.md",
    ],
)
async def test_what_is_not_in_the_table_is_not_there(ask, path):
    status, headers, body = await ask(path)
    assert status == 404
    assert b"not for browsers" not in body
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/page/", "/page", "/page/inner/x.js", "/page/..%2Findex.html", "/page/%2e%2e/rollouts", "/pages/x.js"]
)
async def test_what_lies_beside_the_page_wants_the_key(ask, path):
    status, _, _ = await ask(path)
    assert status == 401


async def test_a_browser_that_has_it_is_told_so(ask):
    _, headers, _ = await ask("/page/main.js")
    status, again, body = await ask("/page/main.js", **{"If-None-Match": f'"other", {headers["ETag"]}'})
    assert (status, body, again["ETag"]) == (304, b"", headers["ETag"])
    assert (await ask("/page/main.js", **{"If-None-Match": '"other"'}))[0] == 200


async def test_a_long_file_goes_out_packed_on_request(ask):
    _, headers, body = await ask("/page/main.js", **{"Accept-Encoding": "gzip, br"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == LONG
    assert len(body) < len(LONG) / 4
    _, headers, _ = await ask("/page/app.css", **{"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in headers


async def test_only_the_head(ask):
    status, headers, body = await ask("/page/main.js", "HEAD")
    assert (status, int(headers["Content-Length"]), body) == (200, len(LONG), b"")


async def test_a_request_writes_nothing_and_reads_no_file_anew(ask, folder):
    (folder / "main.js").write_bytes(b"changed")
    (folder / "late.js").write_bytes(b"late")
    assert (await ask("/page/main.js"))[2] == LONG
    assert (await ask("/page/late.js"))[0] == 404
    assert (await ask("/", "POST"))[0] == 405


def test_without_a_folder_there_is_nothing(tmp_path):
    assert site.assets(tmp_path / "none") == {}
    assert site.documents(tmp_path / "none") == {}


def test_the_documents_of_a_clone_are_there():
    assert {"findings.md", "pinned.md", "tunnels.md"} <= set(site.documents())
    # No document takes the place of a file of the page.
    assert not set(site.documents()) & set(site.assets())


def test_the_files_of_the_page_are_flat_and_of_known_kinds():
    for file in site.FOLDER.glob("*") if site.FOLDER.is_dir() else ():
        assert file.is_file(), file
        assert file.suffix in site.KINDS, file


async def test_the_control_plane_serves_it(tmp_path):
    async with house("scripted", tmp_path) as home, aiohttp.ClientSession() as session:
        for path in ("/", "/page/none.js"):
            async with session.get(home.appliance.control_url + path) as answer:
                # Whether the page is there or not: nobody is asked for a key.
                assert answer.status == (200 if path == "/" and site.assets() else 404)
                assert answer.headers["X-Frame-Options"] == "DENY"
