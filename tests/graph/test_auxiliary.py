"""Title, summary, probe, other: told by what was read and where the reply went."""

import pytest

from tests.graph.tape import Tape, assistant, result, system, user

TASK = "Make the tests pass."


def with_aside(messages, reply="Understood.", **fields) -> tuple[str, str | None, list[str]]:
    """A main conversation of three calls, and a call beside it before the last; returns what that one was."""
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("I look at the folder first.", ("bash", {"command": "ls -a"}))
    listing = result("README.md src tests", asks)
    tape.say(opening, asks, tools=("bash",))
    again = assistant("", ("bash", {"command": "cat README.md"}), ids="again")
    tape.say([*opening, asks, listing], again, tools=("bash",))
    n = tape.say(messages, assistant(reply), **fields)
    tape.say([*opening, asks, listing, again, result("empty", again)], assistant("Done."), tools=("bash",))
    graph = tape.graph()
    found = graph.conversations[graph.conversation_of[n]]
    return found.role, found.kind, [shown.rule for shown in found.evidence]


@pytest.mark.parametrize(
    ("read", "kind", "rule"),
    [
        ([user("Name this session:"), user(TASK)], "title", "read_opening"),
        ([user(f'Name this session: "{TASK}"')], "title", "read_opening"),
        ([user("Summarise.\n[assistant] I look at the folder first.\n[tool] …")], "summary", "read_conversation"),
        ([user("Summarise.\n[tool] README.md src tests\n")], "summary", "read_conversation"),
        ([user("Is this command safe? ls -a")], "probe", "read_arguments"),
    ],
)
def test_a_kind_is_told_by_what_was_read(read, kind, rule):
    assert with_aside([system("You help."), *read]) == ("auxiliary", kind, ["not_gone_on_from", rule])


@pytest.mark.parametrize(
    ("read", "told"),
    [
        # As opencode, the engine, and pi spell them.
        ('bash({"command":"ls"})\nok\nbash({"command":"make"})\nok', ("summary", "read_conversation")),
        ('bash({"command": "ls"})\nok\nbash({"command": "make"})\nok', ("summary", "read_conversation")),
        ('bash(command="ls")\nok\nbash(command="make")\nok', ("summary", "read_conversation")),
        # One is too short; of one that has no result yet, it is asked whether it may run.
        ('bash(command="ls")', ("probe", "read_arguments")),
        ('May this run? {"command": "rm -r build dist"}', ("probe", "read_arguments")),
    ],
)
def test_a_transcript_of_tool_calls_and_short_results_is_read_for_a_summary(read, told):
    tape = Tape()
    messages = [system("You work."), user(TASK)]
    for command in ("ls", "make"):
        asks = assistant("", ("bash", {"command": command}), ids=command)
        tape.say(messages, asks, tools=("bash",))
        messages += [asks, result("ok", asks)]
    last = assistant("", ("bash", {"command": "rm -r build dist"}), ids="last")
    tape.say(messages, last, tools=("bash",))
    n = tape.say([system("You help."), user(f"Read this:\n{read}")], assistant("Understood."))
    tape.say([*messages, last, result("ok", last)], assistant("Done."), tools=("bash",))
    graph = tape.graph()
    found = graph.conversations[graph.conversation_of[n]]
    assert (found.kind, found.evidence[-1].rule) == told


def test_a_request_for_a_few_tokens_is_a_probe():
    told = with_aside([user("quota")], sampling_asked={"max_tokens": 1})
    assert told == ("auxiliary", "probe", ["not_gone_on_from", "short_limit"])


def test_what_read_nothing_is_other():
    assert with_aside([user("Say something nice.")]) == ("auxiliary", "other", ["not_gone_on_from"])


def test_a_tool_result_that_echoes_the_task_makes_no_summary_of_a_title():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("bash", {"command": "cat TASK"}))
    tape.say(opening, asks, tools=("bash",))
    tape.say([*opening, asks, result(TASK, asks)], assistant("Done."), tools=("bash",))
    tape.say([user("Name this session:"), user(TASK)], assistant("Passing tests"))
    assert [(found.role, found.kind) for found in tape.graph().conversations] == [
        ("main", None),
        ("auxiliary", "title"),
    ]
