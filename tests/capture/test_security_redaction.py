"""No secret in anything that Treering itself writes: one long run of every sort of call and error, and then a search.

Searched: the log at its most talkative, as text and as JSON; every error of either plane; all that the control plane
shows, and tells as it happens; the store's files byte by byte; what objects print of themselves; `treering config`,
`treering doctor` and the first lines of the start. Each secret is looked for as it is, quoted, in hexadecimal and in
Base64.
"""

import asyncio
import base64
import gzip
import io
import json
import logging
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web

from capture import doctor, logs
from capture.app import Appliance
from capture.cli import Given
from capture.commands.config import MASKED, config
from capture.commands.serve import first_lines
from capture.errors import StoreError, UsageError
from capture.events import block
from capture.settings import Settings, load, shown
from capture.store import open_store
from tests.house import ASK, House, house
from tests.wire import WireEngine, head, wire, wired

ADMIN = "Admin-key-that-nobody-may-read"
ENGINE = "Engine-key-that-nobody-may-read"
IDEMPOTENT = "Idempotency-key-of-the-trainer"
AGENTS_IDEMPOTENT = "Idempotency-key-of-the-agent"
USER, WORD = "User-in-an-address", "Password-in-an-address"
WRONG = "sk-of-another-service-that-came-here"
DATABASE = "Password-of-the-database"

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "completions": ("/v1/completions", {"prompt": "Hello"}),
    "responses": ("/v1/responses", {"input": "Hello"}),
    "messages": ("/v1/messages", {**CHAT, "max_tokens": 9}),
    "gemini": ("/v1beta/models/m:generateContent", {"contents": [{"parts": [{"text": "Hello"}]}]}),
}


class Run:
    """What was written, and the hands that make it write."""

    def __init__(self, home: House, engine: WireEngine) -> None:
        self.home = home
        self.engine = engine
        self.written: list[bytes] = []
        self.statuses: Counter[int] = Counter()

    async def ask(self, path: str, *, method: str = "POST", plane: str = "data", **options: Any) -> int:
        """Ask; keep the answer's head, and its body where Treering wrote it."""
        one = self.home.appliance
        url = aiohttp.client.URL((one.data_url if plane == "data" else one.control_url) + path, encoded=True)
        try:
            async with self.home.session.request(method, url, allow_redirects=False, **options) as answer:
                self.written.append(repr(list(answer.headers.items())).encode())
                body = await answer.read()
                if answer.status >= 400 or plane == "control":
                    self.written.append(body)
                status = answer.status
        except aiohttp.ClientError:
            status = 0
        self.statuses[status] += 1
        return status

    async def raw(self, url: str, data: bytes) -> None:
        async with wire(url) as client:
            await client.write(data)
            async with asyncio.timeout(10):
                self.written.append(await client._reader.read())


def places(secret: str) -> list[tuple[str, str, dict[str, str]]]:
    """Where a key may stand: what goes before the path, what behind it, and headers."""
    return [
        ("", "", {"Authorization": f"Bearer {secret}"}),
        ("", "", {"authorization": f"bearer   {secret}"}),
        ("", "", {"x-api-key": secret}),
        ("", "", {"x-goog-api-key": secret}),
        ("", "", {"api-key": secret}),
        ("", f"?key={secret}", {}),
        (f"/r/{secret}", "", {}),
        (f"/r/{quote(secret, safe='').replace('-', '%2D')}", "", {}),
    ]


async def agents_calls(run: Run, rollout: dict[str, Any]) -> None:
    """Every dialect, streamed and not, with the key in every place and in a few more."""
    for name, (path, form) in CALLS.items():
        for before, behind, headers in places(rollout["secret"]):
            for streamed in (False, True):
                where, body = path, dict(form)
                if name == "gemini":
                    where = path.replace("generate", "streamGenerate") if streamed else path
                elif streamed:
                    body["stream"] = True
                extra = {
                    "Idempotency-Key": AGENTS_IDEMPOTENT, "x-treering-label": rollout["secret"],
                    "X-Trace": f"key {rollout['secret']}", "anthropic-version": "2023-06-01", "Cookie": f"a={WORD}",
                    "Referer": f"http://{USER}:{WORD}@x/r/{rollout['tools_secret']}",
                }  # fmt: skip
                await run.ask(before + where + behind, json=body, headers={**headers, **extra})


async def agents_errors(run: Run, rollout: dict[str, Any]) -> None:
    """Everything that an agent, or whoever pretends to be one, can do wrong."""
    secret, tools = rollout["secret"], rollout["tools_secret"]
    key = {"Authorization": f"Bearer {secret}"}
    for path, _ in CALLS.values():
        await run.ask(path, data=b"{", headers=key)
        await run.ask(path, data=b'{"model": 5, "messages": 7}', headers=key)
        await run.ask(path, data=gzip.compress(b"{}")[:-9], headers={**key, "Content-Encoding": "gzip"})
        await run.ask(path, data=b"{}", headers={**key, "Content-Encoding": secret})
        await run.ask(path, data=io.BytesIO(b" " * (2**20 + 1)), headers=key)
        for wrong in (WRONG, secret + "x", secret[:-1], ADMIN, ENGINE, tools, f"{WRONG}\u00e9"):
            for before, behind, headers in places(wrong):
                await run.ask(before + path + behind, json={}, headers=headers)
        await run.ask(path, json={})
        await run.ask(path, method="GET", headers={**key, "Upgrade": "websocket", "Connection": "Upgrade"})
    for path in (
        f"/nowhere/{secret}", f"/r/{secret}/nowhere", f"/r/{tools}/v1/models", f"/v1/models/{secret}",
        f"/v1/responses/{secret}", f"/v1beta/models/{secret}:generateContent", f"/tokenize?x={secret}&key={secret}",
        f"/{secret}/../{secret}",
    ):  # fmt: skip
        for method in ("GET", "POST", "PUT", "DELETE"):
            await run.ask(path, method=method, headers=key, json={})
    start = f"POST /r/{secret}/v1/chat/completions?key={secret} HTTP/1.1\r\nHost: {USER}:{WORD}@x\r\n"
    for line in (
        f"Authorization: Bearer {secret}\0\r\n\r\n", f"Authorization: Bearer {secret}\r\n {tools}\r\n\r\n",
        f"Authorization : {secret}\r\n\r\n", f"X: {secret}\nY: {tools}\r\n\r\n", f"{secret}\r\n\r\n",
        f"Authorization: Bearer {secret}{'x' * 70_000}\r\n\r\n", f"Content-Length: {secret}\r\n\r\n",
        f"Transfer-Encoding: {secret}\r\n\r\n", f"Transfer-Encoding: chunked\r\n\r\n{secret}\r\n",
    ):  # fmt: skip
        for url in (run.home.appliance.data_url, run.home.appliance.control_url):
            await run.raw(url, (start + line).encode())
            await run.raw(url, line.replace("Authorization", f"GET /{ADMIN}").encode())


async def engines_errors(run: Run, rollout: dict[str, Any]) -> None:
    """Everything that an engine can do wrong, and a fault of our own."""
    key = {"Authorization": f"Bearer {rollout['secret']}"}
    fine = run.engine.reply
    answers: list[Any] = [
        web.Response(status=500, text="boom"), web.Response(status=401, text="no"), web.Response(status=403, text="no"),
        web.Response(status=429, text="{}", headers={"Retry-After": "1"}), web.Response(text="no JSON"),
        web.Response(text="{}", content_type="application/json"), web.Response(status=302, headers={"Location": "/"}),
        web.Response(body=b"data: {", content_type="text/event-stream"),
        web.Response(body=b'data: {"error": {"message": "bad"}}\n\n', content_type="text/event-stream"), None,
    ]  # fmt: skip
    for answer in answers:

        async def reply(request: web.Request, answer: Any = answer) -> web.StreamResponse:
            if answer is None:
                assert request.transport is not None
                # An engine that answers no HTTP, and repeats what it was asked with.
                request.transport.write(b"HTTP/1.1 200 OK\r\nX-Asked: " + request.headers["Authorization"].encode())
                request.transport.write(b"\0\r\n\r\n")
                request.transport.close()
                return web.Response()
            return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

        run.engine.reply = reply
        for path, form in CALLS.values():
            await run.ask(path, json={**form, "stream": True} if "v1beta" not in path else form, headers=key)
    run.engine.reply = fine


async def trainers_calls(run: Run, rollout: dict[str, Any]) -> None:
    """The control plane: what it shows, and what it refuses."""
    key = {"Authorization": f"Bearer {ADMIN}"}
    name, secret = rollout["id"], rollout["secret"]
    idempotent = {**key, "Idempotency-Key": IDEMPOTENT}
    for body in ({"group": "g"}, {"group": "g"}, {"group": "other"}):
        url = run.home.appliance.control_url + "/rollouts"
        async with run.home.session.post(url, json=body, headers=idempotent) as answer:
            text = await answer.read()
            # A registration's own answer shows its secrets; the error of the third doesn't.
            assert (answer.status, b"sk-treering" in text) in ((201, True), (422, False))
            if answer.status != 201:
                run.written.append(text)
    for body in (
        {"id": name}, {"engine": f"http://{USER}:{WORD}@x:1/v1"}, {"id": f"{secret} x"}, {"nope": secret[:4]},
        {"engine": f"http://{USER}:{WORD}@[::1"}, {"n": 0}, [1],
    ):  # fmt: skip
        await run.ask("/rollouts", plane="control", json=body, headers=key)
    await run.ask("/rollouts", plane="control", data=b"{", headers=key)
    for path in (
        "/rollouts", f"/rollouts/{name}", f"/rollouts/{name}/graph", f"/rollouts/{name}/findings",
        f"/rollouts/{name}/calls?ids=1", f"/rollouts/{name}/sequences?open=1", f"/rollouts/{name}/replay", "/engines",
        "/ready", "/health", "/metrics", "/openapi.json", "/tunnels", "/", f"/rollouts/{secret}", f"/{secret}",
        f"/rollouts?after={secret[:5]}", f"/rollouts/{name}/calls/999", "/sequences?group=g",
    ):  # fmt: skip
        await run.ask(path, method="GET", plane="control", headers=key)
    for n in range(len((await run.home.graph(rollout))["calls"])):
        await run.ask(f"/rollouts/{name}/calls/{n}", method="GET", plane="control", headers=key)
    for wrong in (WRONG, secret, ENGINE, ADMIN + "x", ADMIN[:-1]):
        await run.ask(f"/{wrong}", method="GET", plane="control", headers={"Authorization": f"Bearer {wrong}"})
        await run.ask(f"/rollouts?key={wrong}", method="GET", plane="control")
    for headers in ({"Host": f"{USER}:{WORD}@evil"}, {"Origin": f"http://{USER}:{WORD}@evil"}):
        await run.ask("/rollouts", method="GET", plane="control", headers={**key, **headers})


def spelled(secret: str) -> dict[str, bytes]:
    """A secret in the spellings in which it might get out."""
    raw = secret.encode()
    inner = [base64.b64encode(raw[i:])[4:-4] for i in range(3)]
    return {
        "plain": raw, "quoted": quote(secret, safe="").encode(), "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(), **{f"base64 {i}": each for i, each in enumerate(inner)},
        "its random part": raw.rpartition(b"-treering-")[2][6:30] if b"-treering-" in raw else raw,
    }  # fmt: skip


@pytest.fixture
async def engine() -> AsyncIterator[WireEngine]:
    async with wired() as one:
        yield one


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.timeout(240)
async def test_no_secret_is_in_anything_that_treering_writes(
    engine: WireEngine, tmp_path: Path, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"admin": ADMIN, "engine": ENGINE}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644)
    stream = io.StringIO()
    stop = logs.setup(form, "debug", stream=stream)
    logging.getLogger("aiohttp").setLevel(logging.DEBUG)
    try:
        async with house(
            engine,
            tmp_path,
            admin_key_file=str(tmp_path / "admin"),
            engine_key_file=(f"vllm={tmp_path}/engine",),
            max_body_mib=1,
        ) as home:
            run = Run(home, engine)
            rollout, other = await home.rollout(limits={"max_calls": 500}), await home.rollout(limits={"max_calls": 1})
            await agents_calls(run, rollout)
            # The key did go to the engine, or nothing is shown by its absence elsewhere.
            assert ("authorization", f"Bearer {ENGINE}") in engine.seen[0].headers
            assert not any("sk-treering" in str(seen) for seen in engine.seen)
            assert not any(AGENTS_IDEMPOTENT in str(seen.body) for seen in engine.seen)
            await agents_errors(run, rollout)
            for _ in range(5):
                await run.ask("/v1/chat/completions", json=ASK, headers={"x-api-key": other["secret"]})
            await engines_errors(run, rollout)
            async with home.chat(rollout, stream=True) as answer:
                answer.close()
            with monkeypatch.context() as patch:

                async def fails(*_: Any, **__: Any) -> None:
                    raise RuntimeError(f"with {rollout['secret']} in its text")

                patch.setattr(home.appliance._gate, "admit", fails)
                assert await run.ask(f"/r/{rollout['secret']}/v1/models", method="GET") == 500
                patch.setattr(home.appliance.rollouts, "page", fails)
                await run.ask("/rollouts", method="GET", plane="control", headers={"Authorization": f"Bearer {ADMIN}"})
            await home.idle(rollout)
            await trainers_calls(run, rollout)
            await home.control("POST", f"/rollouts/{other['id']}/close", json={"wait_s": 1})
            await run.ask("/v1/chat/completions", json=ASK, headers={"x-api-key": other["secret"]})
            one = home.appliance
            await one.lookout.examined()
            run.written += [block(event) for event in await one.store.events("0", limit=10_000)]
            entry = await one.rollouts.entry(rollout["id"])
            objects = [
                one, one.settings, one.store, one.rollouts, one.fleet, one.engine, one._gate, entry,
                *one.rollouts._live.values(), one._calls, one.dialects, one.engine.identity,
            ]  # fmt: skip
            run.written += [repr(thing).encode() + str(thing).encode() for thing in objects]
            run.written.append(first_lines(one).encode())
            checks = await doctor.examine(one.settings)
            run.written += [repr(check).encode() for check in checks]
            await one.store.flush()
            run.written += stored(tmp_path)
        run.written += stored(tmp_path)
    finally:
        logging.getLogger("aiohttp").setLevel(logging.NOTSET)
        stop()
    # All of it happened.
    assert run.statuses[200] > 90
    assert run.statuses.keys() >= {400, 401, 403, 404, 409, 413, 415, 422, 426, 429, 500, 502}, run.statuses
    log = stream.getvalue()
    assert log.count("\n") > 50
    assert "sk-treering-…" in log
    secrets = {
        "a rollout's secret": rollout["secret"], "a tool server's secret": rollout["tools_secret"],
        "another rollout's secret": other["secret"], "the admin key": ADMIN, "the engine's key": ENGINE,
        "a trainer's Idempotency-Key": IDEMPOTENT, "an agent's Idempotency-Key": AGENTS_IDEMPOTENT,
        "a URL's password": WORD, "a stranger's key": WRONG,
    }  # fmt: skip
    found = [
        (what, spelling, text[max(0, text.find(each) - 120) : text.find(each) + 120])
        for what, secret in secrets.items()
        for spelling, each in spelled(secret).items()
        for text in [log.encode(), *run.written]
        if each in text
    ]
    assert found == []


def stored(folder: Path) -> list[bytes]:
    """The store's files, byte by byte."""
    return [path.read_bytes() for path in folder.iterdir() if path.name.startswith("treering.db")]


def test_the_search_finds_what_is_there() -> None:
    """So that an empty search means something."""
    secret = "sk-treering-" + "Ab3_x" * 8 + "xyz"
    for text in (
        f"x{secret}y", quote(f"/r/{secret}/"), secret.encode().hex(), base64.b64encode(f"a:{secret}".encode()).decode(),
        json.dumps({"a": secret}), secret[20:],
    ):  # fmt: skip
        assert any(each in text.encode() for each in spelled(secret).values()), text


async def test_settings_with_passwords_in_their_urls_show_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(
        engine=(f"vllm=http://{USER}:{WORD}@gpu:1",),
        store=f"postgresql://{USER}:{DATABASE}@127.0.0.1:1/x?password={DATABASE}",
        admin_key=ADMIN,
        allow_engine=(f"http://{USER}:{WORD}@gpu",),
        admin_key_file=str(tmp_path / "none"),
    )
    given = {"changed": False, "json": True}
    assert config(Given(arguments=given, settings=settings)) == 0
    assert config(Given(arguments={**given, "json": False}, settings=settings)) == 0
    written = [repr(settings), str(shown(settings)), capsys.readouterr().out]
    assert written[-1].count(MASKED) > 2
    for text in written:
        for secret in (WORD, DATABASE, ADMIN):
            assert secret not in text


async def test_a_key_that_is_shown_in_no_http_is_not_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with wired() as engine, house(engine, tmp_path) as home:
        secret = (await home.rollout())["secret"]
        with caplog.at_level(logging.DEBUG):
            async with wire(home.appliance.data_url) as client:
                await client.write(head("GET", "/v1/models", ("Host", "x"), ("Authorization", f"Bearer {secret}\0")))
                async with asyncio.timeout(10):
                    answer = await client._reader.read()
        assert secret not in answer.decode()
        assert secret not in caplog.text


async def test_a_database_that_is_not_there_is_named_without_its_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("asyncpg")
    url = f"postgresql://{USER}:{quote(DATABASE + '@/:', safe='')}@127.0.0.1:1/x"
    settings = Settings(
        engine=("scripted",), store=url, listen="127.0.0.1:0", admin_listen="127.0.0.1:0", admin_key=ADMIN
    )
    written = []
    with caplog.at_level(logging.DEBUG):
        appliance = Appliance(settings)
        written += [repr(appliance), repr(appliance.store), appliance.store.where]
        with pytest.raises(StoreError) as caught:
            await appliance.start()
        written += ["".join(traceback.format_exception(caught.value)), repr(caught.value), caught.value.message]
        checks = await doctor.examine(settings)
        written += [repr(check) for check in checks]
    for text in (*written, caplog.text):
        assert DATABASE not in text
    assert any("127.0.0.1" in text for text in written)


@pytest.mark.parametrize(
    "store",
    [f"postgres:/{USER}:{DATABASE}@x", f"mysql://{USER}:{DATABASE}@x/y", f"postgresql://{USER}:{DATABASE}@[::1/y"],
)
def test_a_store_that_is_none_is_named_without_its_password(store: str) -> None:
    written = []
    # One that begins as it should is looked at when it is opened.
    reads = [lambda: load({"store": store}, {})] if not store.startswith("postgresql://") else []
    for read in (*reads, lambda: open_store(store)):
        with pytest.raises(UsageError) as caught:
            read()
        written.append(f"{caught.value.message} {caught.value.hint}")
    assert DATABASE not in str(written)
