"""The page's own files: `/` and what it asks for under `/page/`.

They hold no data, so they are given to whoever asks, without a key (`guard.is_open`); all that the page shows it asks
the control plane for, with the key. The files are read once, into a table, and a request names a row of it: no path is
ever put together from what somebody sent.

So are the documents that the page's sentences name (`docs/pinned.md`): those of docs/ in a clone. A package has no such
folder; there the findings, which the page names most, are printed from their tables, and of the others the page says
where they are.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from aiohttp import web

from capture import answers
from capture.errors import ClientError

FOLDER = Path(__file__).parent / "page"
"""Flat: a file in a folder of its own would be an address of its own."""

DOCS = Path(__file__).parent.parent / "docs"
"""Of a clone: what lies in folders within it is read by people who have the clone."""

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What is served, by how its name ends; anything else in the folder is nobody's business."""

CACHE = "no-cache"
"""A browser may keep a file, and asks each time whether it is still that: an update shows with the next look."""

DOCUMENT = ".md"
_TEXT = "text/markdown; charset=utf-8"

_INDEX = "index.html"
_FINDINGS = "findings.md"


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it is sent."""

    kind: str
    body: bytes
    # The same, by gzip.
    packed: bytes
    etag: str

    def __repr__(self) -> str:
        return f"<Asset {self.kind} {len(self.body)} bytes>"


def assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """Read the files of a folder that may be served, by name; none where there is no folder."""
    files = sorted(folder.glob("*")) if folder.is_dir() else ()
    found = (file for file in files if file.suffix in KINDS and file.is_file())
    return {file.name: _asset(KINDS[file.suffix], file.read_bytes()) for file in found}


def documents(folder: Path = DOCS) -> dict[str, Asset]:
    """Read the documents of a folder, by name; none where there is no folder."""
    files = sorted(folder.glob(f"*{DOCUMENT}")) if folder.is_dir() else ()
    return {file.name: _asset(_TEXT, file.read_bytes()) for file in files if file.is_file()}


def routes(folder: Path = FOLDER, docs: Path = DOCS) -> list[web.RouteDef]:
    """Return the routes, with the files as they are now."""
    table = documents(docs) | assets(folder)

    async def index(request: web.Request) -> web.StreamResponse:
        return _give(request, table, _INDEX)

    async def file(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name == _FINDINGS and name not in table:
            # Tens of milliseconds, which a start doesn't pay for what few ask.
            table[name] = await asyncio.to_thread(_findings)
        return _give(request, table, name)

    return [web.get("/", index), web.get("/page/{name}", file)]


def _findings() -> Asset:
    # Its examples are graphs, made for whoever reads it.
    from graph import tables

    return _asset(_TEXT, tables.document().encode())


def _asset(kind: str, body: bytes) -> Asset:
    # Weak: the same file goes out packed or not.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(kind=kind, body=body, packed=gzip.compress(body, mtime=0), etag=etag)


def _give(request: web.Request, table: Mapping[str, Asset], name: str) -> web.Response:
    asset = table.get(name)
    if asset is None:
        raise ClientError("not_found", "The page has no such file.", hint="The page is at /.", status=404)
    headers = {"ETag": asset.etag, "Cache-Control": CACHE}
    asked = request.headers.get("If-None-Match", "")
    if asked.strip() == "*" or asset.etag.removeprefix("W/") in asked:
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = asset.kind
    if len(asset.body) < answers.COMPRESS_FROM or "gzip" not in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=asset.body, headers=headers)
    return web.Response(body=asset.packed, headers={**headers, "Content-Encoding": "gzip"})
