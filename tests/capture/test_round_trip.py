"""Two turns: what is lost between them, and what is said of it."""

import numpy as np
import pytest

from capture.dialects.chat import Chat
from capture.engines.vllm import Vllm
from capture.round_trip import round_trip, told
from capture.scripted import ScriptedEngine
from capture.upstream import Engine


def ids(*tokens):
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("then", "level", "said"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], "ok", "exact: a second turn begins with all 6 tokens of the first"),
        ([1, 2, 3, 4, 5, 9], "ok", "1 of 6 tokens are others in the second turn, from 5 on (sampled)"),
        ([1, 9, 3, 4, 5, 6], "warn", "5 of 6 tokens are others in the second turn, from 1 on (prompt)"),
    ],
)
def test_what_is_said(then, level, said):
    check = told(ids(1, 2, 3), ids(4, 5, 6), ids(*then))
    assert check.level == level
    assert check.message.startswith(said)


def test_much_of_the_reply_is_no_matter_of_how_a_turn_ends():
    check = told(ids(1), ids(*range(2, 40)), ids(1, 2, 99))
    assert (check.level, check.message.split()[0]) == ("warn", "37")
    assert "treering drift" in check.todo


async def test_with_an_engine():
    scripted = ScriptedEngine()
    engine = Engine(Vllm(), await scripted.start(), kind="vllm")
    await engine.open()
    try:
        await engine.identify()
        check = await round_trip(engine, Chat())
        # Its template leaves reasoning out of earlier turns, as thinking models' do.
        assert (check.level, check.name) == ("warn", "template")
        assert "the reply had reasoning" in check.message
    finally:
        await engine.close()
        await scripted.close()
