from capture.scripted import vocabulary


def test_every_merge_is_made_of_two_that_come_before_it_or_of_bytes():
    known = {bytes([n]) for n in range(256)}
    for merge in vocabulary.merges():
        assert any(merge[:n] in known and merge[n:] in known for n in range(1, len(merge))), merge
        known.add(merge)


def test_merges_are_different_and_blanks_are_spelled_out():
    merges = vocabulary.merges()
    assert len(set(merges)) == len(merges) == 731
    assert b" the" in merges
    assert b'"}}\n' in merges
    assert "—".encode() in merges
