from pathlib import Path

import benchmarks


def test_the_bare_pass_through_stays_bare() -> None:
    source = Path(benchmarks.__file__).with_name("bare.py").read_text()
    assert len(source.splitlines()) <= 40
