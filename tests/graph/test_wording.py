"""Forks and breaks in words."""

import json

import pytest

from graph.wording import Passed, compared, lines, words_json
from tests.graph.tape import Tape, assistant, result, system, user


def chat(*messages, **fields) -> dict:
    return {"model": "m", "messages": list(messages), **fields}


def answered(request, message) -> Passed:
    return Passed(request=request, reply={"choices": [{"index": 0, "message": message}]})


def words(tape: Tape, passed=None):
    return words_json(tape.graph().forest, passed or {})


def test_a_rollout_without_either():
    tape = Tape()
    tape.say([user("Go")], assistant("Done."))
    assert words(tape) == {"forks": [], "breaks": []}
    assert compared(tape.graph().forest, 10) == []


def test_a_changed_system_prompt():
    tape = Tape()
    first, second = (
        [system("It is one."), user("Go")],
        [system("It is two."), user("Go"), assistant("Yes."), user("On")],
    )
    tape.say(first, assistant("Yes."))
    tape.say(second, assistant("Well."))
    forest = tape.graph().forest
    assert compared(forest, 10) == [0, 1]
    drift = forest.links[1].drift
    (told,) = words(tape, {0: answered(chat(*first), assistant("Yes.")), 1: Passed(request=chat(*second))})["breaks"]
    assert told["changes"] == [{"field": "messages[0].content", "was": "It is one.", "is": "It is two."}]
    assert {name: told[name] for name in ("call", "parent", "kind", "cause", "at", "tokens")} == {
        "call": 1, "parent": 0, "kind": "drift", "cause": "system_changed", "at": drift.at, "tokens": drift.tokens,
    }  # fmt: skip
    assert told["words"] == (
        f"Call 1 does not begin with the tokens of call 0: from position {drift.at}, in its prompt, {drift.tokens} "
        "tokens of call 0 are gone. The system text changed, came or went. "
        "The agent sent `messages[0].content` otherwise than it was."
    )


def test_without_the_requests_the_graph_alone_speaks():
    tape = Tape()
    tape.say([system("One."), user("Go")], assistant("Yes."))
    tape.say([system("Two."), user("Go"), assistant("Yes."), user("On")], assistant("Well."))
    (told,) = words(tape)["breaks"]
    assert told["changes"] == []
    assert told["words"].endswith("The system text changed, came or went.")


def test_where_the_template_did_it():
    tape = Tape()
    first, second = [system("One."), user("Go")], [system("Two."), user("Go"), assistant("Yes."), user("On")]
    tape.say(first, assistant("Yes."))
    tape.say(second, assistant("Well."))
    same = chat(*second[1:])
    (told,) = words(tape, {0: answered(chat(*first[1:]), assistant("Yes.")), 1: Passed(request=same)})["breaks"]
    assert told["changes"] == []
    assert told["words"].endswith("the engine's template or tokeniser made the difference.")


def test_a_retry_of_equal_requests():
    tape = Tape()
    tape.say([user("Go")], assistant("I wi"), status="aborted", delivered=False, finish_reason=None)
    tape.say([user("Go")], assistant("I will."))
    (told,) = words(tape, dict.fromkeys((0, 1), Passed(request=chat(user("Go")))))["forks"]
    assert (told["kind"], told["calls"], told["at"], told["kept"], told["changes"]) == ("retry", [0, 1], None, 1, [])
    assert told["words"] == (
        "Calls 0 and 1 are tries of one prompt: call 0 broke off, and call 1 went on. "
        "The requests of calls 0 and 1 are equal."
    )


def test_several_retries_of_equal_requests_are_all_named():
    tape = Tape()
    for _ in range(2):
        tape.say([user("Go")], assistant("I wi"), status="aborted", delivered=False, finish_reason=None)
    tape.say([user("Go")], assistant("I will."))
    equal = Passed(request=chat(user("Go")))
    (told,) = words(tape, dict.fromkeys(range(3), equal))["forks"]
    assert told["words"].endswith("The requests of calls 0, 1 and 2 are equal.")
    (told,) = words(tape, {0: equal, 1: Passed(request=chat(user("Stay"))), 2: equal})["forks"]
    assert told["words"].endswith("The requests of calls 0 and 2 are equal.")


def test_a_retry_that_asks_for_more():
    tape = Tape()
    tape.say([user("Go")], assistant("I wi"), status="aborted", delivered=False, finish_reason=None)
    tape.say([user("Go")], assistant("I will."))
    requests = {0: Passed(request=chat(user("Go"), max_tokens=10)), 1: Passed(request=chat(user("Go"), max_tokens=20))}
    (told,) = words(tape, requests)["forks"]
    assert told["changes"] == [{"field": "max_tokens", "was": 10, "is": 20}]
    assert told["words"].endswith("The requests of calls 0 and 1 differ in `max_tokens`.")


def test_two_draws_of_one_request():
    tape = Tape()
    tape.say([user("Go")], assistant("One."))
    tape.say([user("Go")], assistant("Two."))
    (told,) = words(tape)["forks"]
    assert told["kind"] == "resample"
    assert told["words"].startswith("Calls 0 and 1 have one prompt and were each answered")


def test_a_branch():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    start = [user("Go"), asks]
    tape.say([user("Go")], asks, tools=("bash",))
    tape.say([*start, result("a", asks)], assistant("Short."), tools=("bash",))
    tape.say([*start, result("b", asks)], assistant("Long."), tools=("bash",))
    tape.say([*start, result("b", asks), assistant("Long."), user("More")], assistant("End."), tools=("bash",))
    requests = {n: Passed(request=chat(*start, result(text, asks))) for n, text in ((1, "a"), (2, "b"))}
    (told,) = words(tape, requests)["forks"]
    assert (told["kind"], told["at"], told["calls"], told["kept"]) == ("branch", 0, [1, 2], 2)
    assert told["words"] == (
        "Calls 1 and 2 go on from call 0 in different ways; call 2 is the one that went on. "
        "The requests of calls 1 and 2 differ in `messages[2].content`."
    )
    assert told["changes"] == [{"field": "messages[2].content", "was": "a", "is": "b"}]


def test_a_compaction():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    summary = "What was done so far: the files were listed, and nothing else."
    history = [user("Go"), asks, result("a", asks)]
    tape.say([user("Go")], asks, tools=("bash",))
    tape.say(history, assistant("Listed."), tools=("bash",))
    tape.say([*history, assistant("Listed."), user("Summarise.")], assistant(summary), tools=("bash",))
    tape.say([user("Go on from this: " + summary)], assistant("Well."), tools=("bash",))
    forest = tape.graph().forest
    assert forest.links[3].kind == "compaction", repr(forest)
    (told,) = words(tape)["breaks"]
    assert (told["call"], told["kind"], told["cause"], told["at"]) == (3, "compaction", "compaction", None)
    assert "with a summary in the place of its history: 1 message, where there were 5." in told["words"]
    assert told["words"].endswith("It brings what call 2 said.")
    # Its requests are not asked for: everything in them differs.
    assert compared(forest, 10) == []


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes.", "reasoning": "hm"}}]},
        {"output": [{"type": "message", "role": "assistant", "content": "Yes.", "reasoning": "hm"}]},
        {"candidates": [{"content": {"role": "assistant", "content": "Yes.", "reasoning": "hm"}}]},
    ],
)
def test_the_reply_is_held_against_its_echo_in_each_dialect(reply):
    tape = Tape()
    first, second = [system("One."), user("Go")], [system("Two."), user("Go"), assistant("Yes."), user("On")]
    tape.say(first, assistant("Yes."))
    tape.say(second, assistant("Well."))
    requests = {0: Passed(request=chat(user("Go")), reply=reply), 1: Passed(request=chat(*second[1:]))}
    (told,) = words(tape, requests)["breaks"]
    assert told["changes"] == [{"field": "messages[1].reasoning", "was": "hm", "is": None}]


def test_an_anthropic_reply():
    tape = Tape()
    first, second = [system("One."), user("Go")], [system("Two."), user("Go"), assistant("Yes."), user("On")]
    tape.say(first, assistant("Yes."))
    tape.say(second, assistant("Well."))
    reply = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes."}]}
    echo = {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    requests = {0: Passed(request=chat(user("Go")), reply=reply), 1: Passed(request=chat(user("Go"), echo))}
    (told,) = words(tape, requests)["breaks"]
    (change,) = told["changes"]
    assert change["field"] == "messages[1].content"
    assert json.loads(change["was"])[0]["thinking"] == "hm"


def test_requests_that_are_no_objects_are_not_at_hand():
    tape = Tape()
    tape.say([user("Go")], assistant("One."))
    tape.say([user("Go")], assistant("Two."))
    (told,) = words(tape, {0: Passed(request=[1]), 1: Passed(request="x", reply=[2])})["forks"]
    assert told["changes"] == []


def test_as_lines():
    change = {"field": "messages[0].content", "was": "é\n", "is": None}
    told = {"breaks": [{"words": "One.", "changes": [change]}], "forks": [{"words": "Two.", "changes": []}]}
    assert list(lines(told)) == ["One.", '  messages[0].content: "é\\n" -> null', "Two."]


def test_only_so_many_are_compared():
    tape = Tape()
    said = [system("0"), user("Go")]
    for at in range(1, 12):
        tape.say(said, assistant(f"Yes {at}."))
        said = [system(str(at)), *said[1:], assistant(f"Yes {at}."), user("On")]
    forest = tape.graph().forest
    assert len(words(tape)["breaks"]) == 10
    assert compared(forest, 3) == [0, 1, 2, 3]
