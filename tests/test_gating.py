"""A real program that is missing is never passed over in silence (tests/conftest.py)."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py")

TESTS = """
    import pytest

    @pytest.fixture(scope="session")
    def vllm():
        pytest.skip("vLLM: no wheel for this machine")

    def test_one(vllm): ...
    def test_two(vllm): ...
    def test_plain(): ...

    @pytest.mark.skip(reason="another day")
    def test_of_nothing_real(): ...

    @pytest.mark.real
    @pytest.mark.xfail(reason="known", strict=True)
    def test_known(): raise ValueError
"""


@pytest.fixture
def run(pytester, monkeypatch):
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers = real: needs a real program\n")
    pytester.makepyfile(TESTS)

    def run(*arguments: str, required: str | None) -> pytest.RunResult:
        monkeypatch.delenv("TREERING_REQUIRE_REAL", raising=False)
        if required is not None:
            monkeypatch.setenv("TREERING_REQUIRE_REAL", required)
        plain = ["-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:aiohttp"]
        result: pytest.RunResult = pytester.runpytest_inprocess(*plain, *arguments)
        return result

    return run


@pytest.mark.parametrize("required", [None, "", "0"])
def test_a_missing_program_skips_loudly(run, required):
    result = run(required=required)
    result.assert_outcomes(passed=1, skipped=3, xfailed=1)
    result.stdout.fnmatch_lines(
        ["!!!* A REAL PROGRAM IS MISSING *!!!", "2 tests did not run. vLLM: no wheel for this machine"]
    )


def test_where_it_is_required_it_fails_with_its_reason(run):
    result = run(required="1")
    result.assert_outcomes(passed=1, skipped=1, errors=2, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "TREERING_REQUIRE_REAL is set, and this test was skipped: vLLM: no wheel for this machine",
            "2 tests FAILED. vLLM: no wheel for this machine",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_its_tests_bear_the_mark_without_saying_so(run):
    result = run("-m", "not real", required="1")
    result.assert_outcomes(passed=1, skipped=1, deselected=3)
    assert "A REAL PROGRAM" not in result.stdout.str()
