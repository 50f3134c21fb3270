import platform
import re

from benchmarks import interpreter


def test_it_is_told_in_a_few_words() -> None:
    said = interpreter.describe()
    version = re.escape(platform.python_version())
    found = re.fullmatch(rf"Python {version} \((\d+) ns for some steps\), with(out)? what can be compiled", said)
    assert found is not None
    assert int(found[1]) > 0
