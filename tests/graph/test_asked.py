"""What a rollout was asked to do, in its first words."""

import msgspec
import pytest

from graph.asked import MOST_CHARS, task_words
from tests.graph.tape import Tape, assistant, result, system, user

ASKS = assistant("", ("bash", {"command": "ls"}))


def asked(*messages, **rollout) -> str | None:
    tape = Tape(**rollout)
    tape.say([system("You work."), *messages], assistant("Done."))
    return task_words(tape.graph())


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([user("Make the tests pass.")], "Make the tests pass."),
        ([user("  Make\n\n\tthe tests   pass. ")], "Make the tests pass."),
        # What agents put in front and around is none of it.
        ([user("Today is Monday."), user("Make the tests pass.")], "Make the tests pass."),
        ([user("<system-reminder>\nBe careful.\n</system-reminder>\nMake the tests pass.")], "Make the tests pass."),
        ([user("Make the tests pass."), user("  ")], "Make the tests pass."),
        # Of a history that was begun from the middle, what was asked first.
        ([user("Make the tests pass."), assistant("Which?"), user("All.")], "Make the tests pass."),
        ([assistant("Hello.")], None),
        ([], None),
    ],
)
def test_the_first_words_of_what_an_agent_sent(messages, words):
    assert asked(*messages) == words


def test_what_registration_gave_comes_first():
    assert asked(user("You are told: make the tests pass."), task="Make the\ntests pass.") == "Make the tests pass."
    assert asked(user("Make the tests pass."), task="  ") == "Make the tests pass."


def test_a_long_one_is_cut_and_says_so():
    words = asked(user("word " * 10_000))
    assert words is not None
    assert len(words) <= MOST_CHARS
    assert ("word " * 10_000).startswith(words.removesuffix("…"))
    assert words.endswith("…")
    assert asked(user("w" * MOST_CHARS)) == "w" * MOST_CHARS


def test_a_title_asks_for_nothing_whatever_was_ruled():
    tape = Tape()
    task = user("Make the tests pass.")
    tape.say([user("Name this: Make the tests pass.")], assistant("Passing tests"))
    tape.say([task], ASKS, tools=("bash",))
    tape.say([task, ASKS, result("a.py", ASKS)], assistant("Done."), tools=("bash",))
    assert task_words(tape.graph()) == "Make the tests pass."
    tape.rollout = msgspec.structs.replace(tape.rollout, roles={0: "main", 1: "auxiliary"})
    assert task_words(tape.graph()) == "Make the tests pass."


def test_a_rollout_without_calls_has_what_registration_gave():
    assert task_words(Tape(task="Make the tests pass.").graph()) == "Make the tests pass."
    assert task_words(Tape().graph()) is None
