import itertools
from zlib import crc32

import pytest

from benchmarks import load, pace, wire
from benchmarks.corpus import Corpus

CORPUS = Corpus(3_000)
WIRE = wire.Wire(CORPUS)


async def asked(engine: pace.Pace, ask: wire.Ask) -> load.Reply:
    server, url = await pace.serve(WIRE, engine)
    client = await load.Client.connect(url, pace.Flow())
    body = b"{}"
    head = load.head_of(body, key="none", bench=ask.header())
    _, reply = await client.ask(load.Request(call=ask.call or 0, head=head, body=body), keep=True, check=True)
    client.close()
    server.close()
    return reply


@pytest.mark.parametrize("passes_ids", [True, False])
async def test_it_knows_what_its_client_must_have_got(passes_ids: bool) -> None:
    engine = pace.Pace(WIRE, first_s=0.0, token_s=0.0, passes_ids=passes_ids)
    ask = wire.Ask(start=1, n_prompt=600, streamed=True, call=9, n_sampled=12)
    reply = await asked(engine, ask)
    got = b"".join(reply.kept or [])
    assert got == b"".join(WIRE.events(ask, b"%016x" % 0))
    assert reply.n_events == 15
    # Nobody here takes the ids out: who passes them on has what was expected, and who should have is found out.
    assert ((reply.crc, reply.n_bytes) == engine.expected[9]) == passes_ids
    if not passes_ids:
        bare = b"".join(WIRE.events(wire.Ask(start=1, n_prompt=600, streamed=True, ids=False, n_sampled=12), b"0" * 16))
        assert engine.expected[9] == (crc32(bare), len(bare))
    # The role with the first token, ten more, and the last three at once.
    assert len(engine.late_ms) == 12


async def test_a_call_without_a_number_waits_for_nothing() -> None:
    engine = pace.Pace(WIRE, first_s=60.0, token_s=60.0)
    reply = await asked(engine, wire.Ask(start=1, n_prompt=600, streamed=True))
    assert reply.n_events == 203
    assert not engine.expected


def test_who_has_gone_is_written_to_no_more() -> None:
    stream = pace.Paced(WIRE, pace.Pace(WIRE, first_s=0.0, token_s=0.0), itertools.count())
    stream.connection_lost(None)
    assert not stream.step()
