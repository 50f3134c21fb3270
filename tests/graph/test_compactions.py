"""Conversations that go on from a summary, in the ways that agents do it, and what merely looks like one."""

from __future__ import annotations

import json

from graph.forest import grow
from graph.records import Link
from tests.graph.generator import Chat
from tests.graph.tape import Tape, assistant, result, system, user

SYSTEM = system("Be brief.")
TASK = user("Make the tests pass.")
TOOLS = ("bash", "task")
LOOK = assistant("", ("bash", {"command": "ls -a"}))
LONG = "a name and some numbers\n" * 120
SUMMARY = "The parser fails on empty input; the fix goes into parse.py."


def links(tape: Tape) -> list[tuple[str, int | None, tuple[int, ...]]]:
    found: list[Link] = list(grow(tape.rollout, tape.calls).links.values())
    return [(link.kind, link.parent, link.carries) for link in found]


def begin(tape: Tape) -> list[Chat]:
    """A turn with a tool; what the agent has then."""
    tape.say([SYSTEM, TASK], LOOK, tools=TOOLS)
    return [SYSTEM, TASK, LOOK, result("parse.py", LOOK)]


def transcript(messages: list[Chat]) -> Chat:
    lines = []
    for message in messages[1:]:
        calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or ()]
        lines.append(f"[{message['role']}]: {message['content']}" + "".join(f"\n[Tool call]: {call}" for call in calls))
    return user("Here is the conversation:\n\n" + "\n\n".join(lines) + "\n\nSummarise it.")


def spaced(message: Chat) -> Chat:
    """An assistant message as an agent echoes it that serialises the arguments again."""
    call = message["tool_calls"][0]
    arguments = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
    return message | {"tool_calls": [call | {"function": call["function"] | {"arguments": arguments}}]}


def test_a_summary_as_an_assistant_message():
    tape = Tape()
    history = begin(tape)
    tape.say([system("You summarise."), transcript(history)], assistant(SUMMARY))
    after = [SYSTEM, user("What did we do so far?"), assistant(SUMMARY), user("Continue.")]
    tape.say(after, LOOK, tools=TOOLS)
    tape.say([*after, LOOK, result("x", LOOK)], assistant("Done."), tools=TOOLS)
    assert links(tape)[1:] == [("root", None, ()), ("compaction", 0, (1,)), ("exact", 2, ())]


def test_a_summary_inside_a_user_message_with_turns_kept_behind_it():
    tape = Tape()
    history = begin(tape)
    then = assistant("", ("bash", {"command": "cat parse.py"}), ids="then")
    tape.say(history, then, tools=TOOLS)
    history += [then, result("def parse(): ...", then)]
    tape.say([system("You summarise."), transcript(history)], assistant(SUMMARY))
    carried = user(f"The conversation before was compacted:\n\n<summary>\n{SUMMARY}\n</summary>")
    tape.say([SYSTEM, carried, TASK, *history[-2:]], assistant("Done."), tools=TOOLS)
    assert links(tape)[1:] == [("exact", 0, ()), ("root", None, ()), ("compaction", 1, (2,))]


def test_a_summariser_that_is_shown_what_came_before_the_kept_turn_and_no_more():
    """pi does it: a long result cut short, arguments as `name="text"`, and of the kept turn nothing."""
    shown = {
        "cut short": "[Tool result]: " + LONG[:2_000] + "\n\n[... 900 more characters truncated]",
        "its own spelling": '[Assistant tool calls]: bash(command="ls -a")',
        "neither": "[User]: Make the tests pass.",
    }
    found = {}
    for name, text in shown.items():
        tape = Tape()
        tape.say([SYSTEM, TASK], LOOK, tools=TOOLS)
        history = [SYSTEM, TASK, LOOK, result(LONG, LOOK)]
        then = assistant("", ("bash", {"command": "cat parse.py"}), ids="then")
        tape.say(history, then, tools=TOOLS)
        kept = [then, result("def parse(): ...", then)]
        tape.say([system("You summarise."), user(text)], assistant(SUMMARY))
        carried = user(f"What came before:\n\n<summary>\n{SUMMARY}\n</summary>")
        tape.say([SYSTEM, carried, *kept], assistant("Done."), tools=TOOLS)
        found[name] = links(tape)[-1]
    compaction = ("compaction", 1, (2,))
    assert found == {"cut short": compaction, "its own spelling": compaction, "neither": ("root", None, ())}


def test_a_summariser_that_is_shown_the_task_and_no_more_when_every_turn_is_kept():
    """qwen-code does it, where the first turn is a long one."""
    for shown, expected in ((TASK, ("compaction", 0, (1,))), (user("Write a poem."), ("root", None, ()))):
        tape = Tape()
        kept = begin(tape)[2:]
        tape.say([system("You summarise."), shown, user("Now summarise.")], assistant(SUMMARY))
        tape.say([SYSTEM, user(SUMMARY), assistant("Got it!"), *kept], assistant("Done."), tools=TOOLS)
        assert links(tape)[-1] == expected


def test_a_second_compaction_that_keeps_turns_from_before_the_first():
    """qwen-code: every turn was kept the first time, and the first of them is left out the second time."""
    tape = Tape()
    turns = [assistant("", ("bash", {"command": f"cat {n}.py"}), ids=f"turn{n}") for n in range(3)]
    tape.say([SYSTEM, TASK], turns[0], tools=TOOLS)
    tape.say([system("You summarise."), TASK, user("Now summarise.")], assistant(SUMMARY))
    kept = [turns[0], result("zero", turns[0])]
    tape.say([SYSTEM, user(SUMMARY), *kept], turns[1], tools=TOOLS)
    more = [turns[1], result("one", turns[1])]
    tape.say([SYSTEM, user(SUMMARY), *kept, *more], turns[2], tools=TOOLS)
    tape.say(
        [system("You summarise."), user(SUMMARY), *kept, user("Now summarise.")], assistant(f"{SUMMARY} Also zero.")
    )
    after = [SYSTEM, user(f"{SUMMARY} Also zero."), *more, turns[2], result("two", turns[2])]
    tape.say(after, assistant("Done."), tools=TOOLS)
    found = links(tape)
    assert found[2] == ("compaction", 0, (1,))
    assert found[5] == ("compaction", 3, (4,))


def test_a_kept_turn_with_a_long_text_is_carried_by_nothing():
    tape = Tape()
    history = begin(tape)
    tape.say([system("You summarise."), transcript(history)], assistant(SUMMARY))
    after = [SYSTEM, user("What did we do so far?"), assistant(SUMMARY), user("Continue.")]
    then = assistant("I will run all of the tests now.", ("bash", {"command": "pytest -q"}), ids="then")
    tape.say(after, then, tools=TOOLS)
    ran = [then, result("1 failed", then)]
    later = "All but one test pass now, the one on empty input."
    tape.say([system("You summarise."), transcript([*after, *ran])], assistant(later))
    tape.say([SYSTEM, user(f"<summary>{later}</summary>"), TASK, *ran], assistant("Done."), tools=TOOLS)
    assert links(tape)[2:] == [("compaction", 0, (1,)), ("root", None, ()), ("compaction", 2, (3,))]


def test_a_summary_asked_for_inside_the_conversation():
    tape = Tape()
    history = begin(tape)
    tape.say([*history, user("Summarise what we did.")], assistant(SUMMARY), tools=())
    tape.say([SYSTEM, TASK, user(f"Another model began this: {SUMMARY}")], assistant("Done."), tools=TOOLS)
    assert [kind for kind, _, _ in links(tape)] == ["root", "drift", "compaction"]
    assert links(tape)[2] == ("compaction", 1, (1,))


def test_a_prompt_spliced_from_two_replies():
    tape = Tape()
    first = [TASK]
    said = assistant("ls -a")
    tape.say(first, said)
    turn = assistant("cat parse.py")
    tape.say([*first, said, user("parse.py")], turn)
    handed = "The parser fails on empty input, and nothing else does."
    asked = [*first, said, user("parse.py"), user("You are about to hand off. Say what you know.")]
    tape.say(asked, assistant(handed))
    picking = user(f"You pick up work from another agent. It says: {handed} What do you want to know?")
    questions = assistant("Which file is it, and has anything been changed?")
    tape.say([picking], questions)
    answers = assistant("It is parse.py, and nothing was changed.")
    tape.say([*asked, assistant(handed), user(questions["content"])], answers)
    tape.say([*first, picking, questions, user(f"Here are the answers: {answers['content']}")], assistant("sed -i"))
    kinds = links(tape)
    assert kinds[3] == ("root", None, ())
    assert kinds[4] == ("exact", 2, ())
    assert kinds[5] == ("compaction", 4, (2, 3, 4))


def test_a_second_compaction_of_what_went_on():
    tape = Tape()
    history = begin(tape)
    tape.say([system("You summarise."), transcript(history)], assistant(SUMMARY))
    after = [SYSTEM, user("What did we do so far?"), assistant(SUMMARY), user("Continue.")]
    look = assistant("", ("bash", {"command": "pytest -q"}), ids="again")
    tape.say(after, look, tools=TOOLS)
    later = "All but one test pass now, the one on empty input."
    tape.say([system("You summarise."), transcript([*after, look, result("1 failed", look)])], assistant(later))
    tape.say([SYSTEM, after[1], assistant(later), user("Continue.")], assistant("Done."), tools=TOOLS)
    assert links(tape)[1:] == [("root", None, ()), ("compaction", 0, (1,)), ("root", None, ()), ("compaction", 2, (3,))]


def test_an_equal_request_after_an_equal_summary_is_the_next_compaction():
    tape = Tape()
    history = begin(tape)
    after = [SYSTEM, user("What did we do so far?"), assistant(SUMMARY), user("Continue.")]
    look = assistant("", ("bash", {"command": "pytest -q"}), ids="again")
    for told in (history, [*after, look]):
        tape.say([system("You summarise."), transcript(told)], assistant(SUMMARY))
        tape.say(after, look, tools=TOOLS)
    assert links(tape)[2] == ("compaction", 0, (1,))
    assert links(tape)[4] == ("compaction", 2, (3,))
    assert grow(tape.rollout, tape.calls).forks == ()


def test_what_goes_on_behind_a_compaction_by_drift_is_no_second_one():
    tape = Tape()
    history = begin(tape)
    tape.say([system("You summarise."), transcript(history)], assistant(SUMMARY))
    after = [SYSTEM, user(f"So far: {SUMMARY}"), TASK]
    tape.say(after, LOOK, tools=TOOLS)
    tape.say([*after, spaced(LOOK), result("x", LOOK)], assistant("Done."), tools=TOOLS)
    assert links(tape)[2:] == [("compaction", 0, (1,)), ("drift", 2, ())]


def test_what_goes_on_by_drift_behind_a_summary_asked_for_inside():
    tape = Tape()
    history = begin(tape)
    tape.say([*history, user("Summarise what we did.")], assistant(SUMMARY), tools=TOOLS)
    after = [SYSTEM, TASK, user(f"Another model began this: {SUMMARY}")]
    tape.say(after, LOOK, tools=TOOLS)
    tape.say([*after, spaced(LOOK), result("x", LOOK)], assistant("Done."), tools=TOOLS)
    assert links(tape)[2:] == [("compaction", 1, (1,)), ("drift", 2, ())]


def test_a_reply_quoted_while_its_conversation_goes_on_is_no_summary():
    tape = Tape()
    history = begin(tape)
    early = assistant("I see one file here, parse.py.", ("bash", {"command": "cat parse.py"}), ids="early")
    tape.say(history, early, tools=TOOLS)
    history += [early, result("def parse(): ...", early)]
    tape.say(history, assistant("Done."), tools=TOOLS)
    tape.say([SYSTEM, user("Is this right? I see one file here, parse.py.")], assistant("It is."), tools=TOOLS)
    assert links(tape)[3] == ("root", None, ())


def test_who_reads_a_conversation_reads_its_subagents_reports_too():
    tape = Tape()
    history = begin(tape)
    start = assistant("", ("task", {"prompt": "Find the fault."}), ids="one")
    tape.say(history, start, tools=TOOLS)
    report = "There is a fault in parse.py, at its very end."
    tape.say([SYSTEM, user("Find the fault.")], assistant(report), tools=TOOLS)
    history += [start, result(report, start)]
    tape.say([system("You summarise."), transcript(history)], assistant(SUMMARY))
    after = [SYSTEM, user("What did we do so far?"), assistant(SUMMARY), user("Continue.")]
    tape.say(after, assistant("Done."), tools=TOOLS)
    assert links(tape)[4] == ("compaction", 1, (3,))


def test_a_subagents_report_is_no_summary_though_its_task_quotes_what_was_read():
    tape = Tape()
    history = begin(tape)
    start = assistant("", ("task", {"prompt": "Find the fault in this:\nparse.py"}), ids="one")
    tape.say(history, start, tools=TOOLS)
    report = "There is a fault in parse.py, at its very end."
    tape.say([SYSTEM, user("Find the fault in this:\nparse.py")], assistant(report), tools=("bash",))
    tape.say([SYSTEM, user(f"Told before: {report}"), TASK], assistant("Done."), tools=TOOLS)
    assert links(tape)[3] == ("root", None, ())


def test_a_short_text_carries_nothing():
    tape = Tape()
    history = begin(tape)
    tape.say([system("You summarise."), transcript(history)], assistant("Nothing yet."))
    tape.say([SYSTEM, user("Before: Nothing yet."), TASK], assistant("Done."), tools=TOOLS)
    assert links(tape)[2] == ("root", None, ())


def test_another_agents_tools_are_another_conversation():
    tape = Tape()
    history = begin(tape)
    tape.say([system("You summarise."), transcript(history)], assistant(SUMMARY))
    tape.say([SYSTEM, user(f"Before: {SUMMARY}"), TASK], assistant("Done."), tools=("other",))
    assert links(tape)[2] == ("root", None, ())


def test_a_reply_that_had_not_read_the_conversation_carries_nothing():
    tape = Tape()
    begin(tape)
    tape.say([system("You name things."), user("Something else altogether.")], assistant(SUMMARY))
    tape.say([SYSTEM, user(f"Before: {SUMMARY}"), TASK], assistant("Done."), tools=TOOLS)
    assert links(tape)[2] == ("root", None, ())


def test_a_subagent_that_reads_anothers_report_is_no_compaction():
    tape = Tape()
    inner = ("bash",)
    start = assistant("", ("task", {"prompt": "Find the fault."}), ids="one")
    tape.say([SYSTEM, TASK], start, tools=TOOLS)
    tape.say([SYSTEM, user("Find the fault.")], LOOK, tools=inner)
    tape.say([SYSTEM, user("Find the fault."), LOOK, result("parse.py", LOOK)], assistant(SUMMARY), tools=inner)
    prompt = f"Repair this: {SUMMARY}"
    again = assistant("", ("task", {"prompt": prompt}), ids="two")
    tape.say([SYSTEM, TASK, start, result(SUMMARY, start)], again, tools=TOOLS)
    tape.say([SYSTEM, user(prompt)], assistant("Repaired."), tools=inner)
    assert links(tape)[4] == ("root", None, ())


def test_a_report_among_the_messages_of_a_conversation_is_no_compaction():
    tape = Tape()
    start = assistant("", ("task", {"prompt": "Find the fault."}), ids="one")
    tape.say([SYSTEM, TASK], start, tools=TOOLS)
    tape.say([SYSTEM, user("Find the fault.")], LOOK, tools=TOOLS)
    tape.say([SYSTEM, user("Find the fault."), LOOK, result("parse.py", LOOK)], assistant(SUMMARY), tools=TOOLS)
    notice = user(f"<notification>{SUMMARY}</notification>")
    tape.say([SYSTEM, TASK, spaced(start), result("started", start), notice], assistant("Done."), tools=TOOLS)
    assert links(tape)[3] == ("drift", 0, ())
