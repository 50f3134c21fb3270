from benchmarks import matrix
from benchmarks.matrix import is_wanted


def test_the_engine_part_covers_the_table() -> None:
    for quick in (True, False):
        made = matrix.engine(quick=quick)
        assert len({(one.prompt_tokens, one.streamed, one.case, one.connections) for one in made}) == 24 == len(made)
    assert [one.connections for one in made if is_wanted(one, "2000 streamed growing")] == [1, 8]
    assert len([one for one in made if is_wanted(one, None)]) == 24


def test_many_connections_and_the_longest_prompts_are_in_front_of_files() -> None:
    made = matrix.static()
    assert {one.prompt_tokens for one in made} == {2_000, 16_000, 100_000, 600_000}
    assert {one.connections for one in made} == {1, 8, 64, 512}
    # What two cores cannot hold is measured where someone names it.
    both = [one for one in matrix.static(named=True) if is_wanted(one, "600000 512")]
    assert len(both) == 2
    assert not [one for one in made if is_wanted(one, "600000 512")]


def test_peers_are_asked_at_every_size() -> None:
    assert {(one.prompt_tokens, one.streamed) for one in matrix.peers()} == {
        (size, streamed) for size in (2_000, 16_000, 100_000, 600_000) for streamed in (True, False)
    }
    assert all(one.calls >= 2 for one in matrix.peers())
