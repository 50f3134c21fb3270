"""Counted here and by Prometheus' own library: both tell the same."""

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from capture.tallies import Counter, Histogram

BOUNDS = (0.5, 1.0, 2.5, 60.0)
LABELS = st.sampled_from("ab")


def told(*collectors) -> list[str]:
    registry = prometheus_client.CollectorRegistry()
    for each in collectors:
        registry.register(each)
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def theirs(kind, *args, **kwargs):
    return kind(*args, **kwargs, registry=None)


@given(st.lists(st.tuples(LABELS, LABELS, st.integers(0, 10**9))))
def test_a_counter_tells_what_theirs_does(added):
    ours, other = Counter("x_total", "says", ("p", "q")), theirs(prometheus_client.Counter, "x_total", "says", "pq")
    for p, q, by in added:
        ours.add(p, q, by=by)
        other.labels(p, q).inc(by)
    assert told(ours) == told(other)


@given(st.lists(st.tuples(LABELS, st.sampled_from([*BOUNDS, 0.0, 61.0]) | st.floats(0, 1e6))))
def test_a_histogram_tells_what_theirs_does(seen):
    ours = Histogram("x_seconds", "says", ("p",), buckets=BOUNDS)
    other = theirs(prometheus_client.Histogram, "x_seconds", "says", "p", buckets=BOUNDS)
    for p, value in seen:
        ours.observe(value, p)
        other.labels(p).observe(value)
    assert told(ours) == told(other)


def test_without_labels_they_are_there_from_the_start():
    ours = Counter("x_total", "says"), Histogram("y_seconds", "says", buckets=BOUNDS)
    others = (
        theirs(prometheus_client.Counter, "x_total", "says"),
        theirs(prometheus_client.Histogram, "y_seconds", "says", buckets=BOUNDS),
    )
    assert told(*ours) == told(*others)
    ours[0].add()
    others[0].inc()
    assert told(*ours) == told(*others)


def test_with_nothing_added_it_is_there_from_then_on():
    ours, other = Counter("x_total", "says", ("p",)), theirs(prometheus_client.Counter, "x_total", "says", "p")
    ours.add("a", by=0)
    other.labels("a")
    assert told(ours) == told(other)
    assert told(ours)[-1] == 'x_total{p="a"} 0.0'
