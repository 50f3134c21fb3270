"""What of a list of messages is asked for, and what is then known to be new."""

from hypothesis import given
from hypothesis import strategies as st

from capture.store.postgres.contents import _between, _probes


@given(st.integers(0, 5000), st.data())
def test_the_border_of_the_known_is_found_with_a_second_question_at_most(length, data):
    known = data.draw(st.integers(0, length))
    links = [at.to_bytes(4, "big") for at in range(length)]

    def ask(places):
        return {(1, links[at]) for at in places if at < known}, {(1, links[at]) for at in places}

    there, asked = ask(_probes(length))
    first, until = _between(1, links, there, asked)
    assert first <= known <= until
    more, also = ask(range(first, until))
    assert _between(1, links, there | more, asked | also)[0] == known


@given(st.integers(1, 100_000))
def test_few_are_asked_for_and_the_usual_ones_at_once(length):
    places = _probes(length)
    assert len(places) < 25
    assert places[0] == 0
    # A reply and what follows it were added, or nothing was: no second question.
    for added in (0, 1, 2, 3):
        if added <= length:
            links = [at.to_bytes(4, "big") for at in range(length)]
            there = {(1, links[at]) for at in places if at < length - added}
            first, until = _between(1, links, there, {(1, links[at]) for at in places})
            assert first == until == length - added
