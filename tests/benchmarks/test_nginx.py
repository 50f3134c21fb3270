import asyncio
from pathlib import Path

import pytest

from benchmarks import load, nginx, wire
from benchmarks.corpus import Corpus
from benchmarks.upstream import Flow, serve

CORPUS = Corpus(2_000)
WIRE = wire.Wire(CORPUS)


def test_without_nginx_a_person_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert nginx.missing() == "nginx is not on the PATH (apt-get install nginx-light): its rows are left out"


@pytest.mark.real
@pytest.mark.skipif(nginx.missing() is not None, reason=nginx.MISSING)
async def test_files_are_served_to_what_names_them_and_all_else_goes_to_the_engine(tmp_path: Path) -> None:
    flow = Flow()
    server, engine = await serve(WIRE, flow)
    static = await asyncio.to_thread(nginx.Static, engine, tmp_path)
    try:
        asks = [wire.Ask(start=1, n_prompt=600, streamed=streamed) for streamed in (True, False)]
        static.record(WIRE, asks)
        proxy = await asyncio.to_thread(nginx.start_proxy, static.url, tmp_path)
        try:
            for url in (static.url, proxy.url):
                client = await load.Client.connect(url, flow)
                for ask in (*asks, None):
                    head = load.head_of(b'{"max_tokens":4}', key="none", bench="" if ask is None else ask.header())
                    _, reply = await client.ask(load.Request(call=0, head=head, body=b'{"max_tokens":4}'), keep=True)
                    got = "".join(load.contents_of(b"".join(reply.kept or []), streamed=reply.streamed))
                    if ask is None:
                        # The engine's tiny reply to a probe, whose prompt has eight tokens.
                        assert got == CORPUS.text(8, 12)
                    else:
                        assert (reply.streamed, got) == (ask.streamed, CORPUS.text(601, 801))
                client.close()
        finally:
            proxy.stop()
        files = static._files
        assert len(list(files.iterdir())) == 2
    finally:
        static.stop()
        server.close()
    assert not files.exists()
