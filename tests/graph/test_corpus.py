"""Rollouts of real agents, read again: the forest says of each conversation what it was."""

import random

import msgspec
import pytest

from graph.graph import Graph, read
from graph.records import Call
from graph.sequences import cut
from graph.view import graph_json
from tests.graph import corpus

FILES = sorted(corpus.FOLDER.glob("*.json"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def record(request: pytest.FixtureRequest) -> corpus.Record:
    """Each file in turn."""
    return corpus.load(request.param)


def said(graph: Graph) -> corpus.Labels:
    """The forest's word in the form of the labels."""
    links = graph.forest.links
    return corpus.Labels(
        conversations=tuple(
            corpus.ConversationLabel(calls=found.calls, role=found.role, kind=found.kind, parent_call=found.parent_call)
            for found in graph.conversations
        ),
        parents={n: link.parent for n, link in links.items() if link.parent is not None},
        compactions={n: link.carries for n, link in links.items() if link.kind == "compaction"},
        discarded=tuple(sorted(graph.forest.discarded)),
    )


def truth(record: corpus.Record) -> corpus.Labels:
    """The labels, conversations in the forest's order."""
    return msgspec.structs.replace(
        record.labels,
        conversations=tuple(sorted(record.labels.conversations, key=lambda label: label.calls)),
    )


def test_there_are_files():
    assert FILES


def test_the_forest_says_what_was_so(record):
    assert said(corpus.graph_of(record)) == truth(record)


def test_it_says_so_without_headers(record):
    """Hints are evidence and nothing more."""
    calls = [msgspec.structs.replace(call, hints={}) for call in corpus.calls_of(record)]
    assert said(read(corpus.rollout_of(record), calls)) == truth(record)


def test_it_says_so_without_ids(record):
    """As from an engine that gives text alone."""
    calls = [without_ids(call) for call in corpus.calls_of(record)]
    assert said(read(corpus.rollout_of(record), calls)) == truth(record)


def without_ids(call: Call) -> Call:
    return msgspec.structs.replace(call, prompt_ids=None, sampled_ids=None, logprobs=None)


def test_the_order_of_the_records_is_nothing(record):
    calls = corpus.calls_of(record)
    expected = graph_json(corpus.graph_of(record))
    for seed in range(5):
        random.Random(seed).shuffle(calls)
        assert graph_json(read(corpus.rollout_of(record), calls)) == expected


def test_what_is_trained_is_main(record):
    """Every sampled token of main once, but for what was discarded, and no other."""
    graph = corpus.graph_of(record)
    main = {n for label in record.labels.conversations if label.role == "main" for n in label.calls}
    main -= {*record.labels.discarded}
    rows = cut(graph).sequences
    assert sorted(n for row in rows for n in row.trained) == sorted(main)
    sampled = sum(graph.forest.n_sampled(n) or 0 for n in main)
    assert sum(row.n_trained_tokens for row in rows) == sum(int(row.loss_mask.sum()) for row in rows) == sampled


def test_a_file_stays_small(record, request):
    path = corpus.FOLDER / f"{request.node.callspec.id}.json"
    assert path.stat().st_size <= corpus.MOST_BYTES


def test_a_file_is_written_as_it_was_read(record, tmp_path):
    corpus.write(record, tmp_path / "again.json")
    assert corpus.load(tmp_path / "again.json") == record
