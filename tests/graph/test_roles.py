"""What conversations were for, told by what they read and where their replies went."""

import pytest
from hypothesis import HealthCheck, given, note, settings
from msgspec.structs import replace

from graph.graph import Graph, read
from graph.roles import RULES
from tests.graph.tape import Tape, assistant, codes, data, result, system, user
from tests.graph.told import Story, stories

TASK = "Make the tests pass."
PROMPT = "Find every caller of parse()."


def roles(graph: Graph) -> list[tuple[str, str | None]]:
    return [(found.role, found.kind) for found in graph.conversations]


def rules(graph: Graph, n: int) -> list[str]:
    return [shown.rule for shown in graph.conversations[n].evidence]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(stories())
def test_all_five_kinds_are_told_apart(story: Story):
    """Main, title, subagents, the retry, the compaction: without headers, without the task's text, with prompts that
    quote it, whatever the order."""
    graph = read(story.rollout, story.calls)
    note(repr(story))
    note(repr(graph))

    told = {frozenset(found.calls): (found.role, found.kind) for found in graph.conversations}
    true = {
        frozenset(calls): (story.truth[calls[0]].role, story.truth[calls[0]].kind)
        for calls in story.conversations().values()
    }
    assert told == true
    for found in graph.conversations:
        assert found.parent_call == story.truth[found.root].started_by
        assert found.trainable == (found.role == "main")
        assert found.evidence

    links = {n: (link.kind, link.parent) for n, link in graph.forest.links.items()}
    assert links == {n: (true.link, true.parent) for n, true in story.truth.items()}
    for n, link in graph.forest.links.items():
        # Turns kept behind a summary may be named besides it.
        assert set(story.truth[n].carries) <= set(link.carries)
        assert bool(link.carries) == (link.kind == "compaction")

    retries = {fork.children for fork in graph.forest.forks if fork.kind == "retry"}
    assert retries == {(n, true.tried_again_by) for n, true in story.truth.items() if true.tried_again_by is not None}
    assert not {"ambiguous_main", "multiple_roots", "role_hint_disagrees"} & codes(graph).keys()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(stories())
def test_every_rule_that_evidence_names_is_in_the_table(story: Story):
    graph = read(story.rollout, story.calls)
    for found in graph.conversations:
        for shown in found.evidence:
            assert shown.rule in RULES
            assert shown.calls
            assert shown.detail


def main_loop(
    tape: Tape, *, task: str = TASK, prompt: str | None = PROMPT, final: str = "There are two callers."
) -> None:
    """A main conversation whose tool call starts a subagent; the subagent answers at once."""
    opening = [system("You work."), user(task)]
    asks = assistant("", ("task", {"prompt": prompt}) if prompt else ("bash", {"command": "ls"}))
    tape.say(opening, asks, tools=("bash", "task"))
    if prompt:
        tape.say([system("You help."), user(prompt)], assistant(final), tools=("bash",))
    tape.say([*opening, asks, result(final, asks)], assistant("Done."), tools=("bash", "task"))


def test_a_subagent_is_known_by_its_prompt_and_by_its_answer():
    tape = Tape()
    main_loop(tape)
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("subagent", None)]
    assert graph.conversations[1].parent_call == 0
    assert rules(graph, 1) == ["prompt_in_arguments", "reply_in_result"]


def test_a_subagent_whose_answer_is_lost_is_known_by_its_prompt():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"prompt": PROMPT}))
    tape.say(opening, asks, tools=("task",))
    tape.say([user(PROMPT)], assistant("Two."))
    tape.say([*opening, asks, result("ERROR: nothing came back", asks)], assistant("Done."), tools=("task",))
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("subagent", None)]
    assert rules(graph, 1) == ["prompt_in_arguments"]


def test_a_subagent_whose_prompt_was_rewritten_is_known_by_its_answer():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"topic": "callers"}))
    tape.say(opening, asks, tools=("task",))
    tape.say([user(PROMPT)], assistant("There are two callers: a.py and b.py."))
    told = "<result>There are two callers: a.py and b.py.</result>"
    tape.say([*opening, asks, result(told, asks)], assistant("Done."), tools=("task",))
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("subagent", None)]
    assert rules(graph, 1) == ["reply_in_result"]
    assert graph.conversations[1].parent_call == 0


def test_a_short_answer_alone_shows_nothing():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("bash", {"command": "cat status"}))
    tape.say(opening, asks, tools=("bash",))
    tape.say([user("ping")], assistant("ok"))
    tape.say([*opening, asks, result("ok", asks)], assistant("Done."), tools=("bash",))
    assert roles(tape.graph()) == [("main", None), ("auxiliary", "other")]


def test_subagents_of_subagents_name_the_call_that_started_them():
    tape = Tape()
    opening, inner = [system("You work."), user(TASK)], [system("You help."), user(PROMPT)]
    outer_asks = assistant("", ("task", {"prompt": PROMPT}), ids="outer")
    inner_asks = assistant("", ("task", {"prompt": "Read the third file of them."}), ids="inner")
    tape.say(opening, outer_asks, tools=("task",))
    tape.say(inner, inner_asks, tools=("task",))
    tape.say([system("You help."), user("Read the third file of them.")], assistant("It calls parse twice."))
    tape.say(
        [*inner, inner_asks, result("It calls parse twice.", inner_asks)], assistant("Two calls."), tools=("task",)
    )
    tape.say([*opening, outer_asks, result("Two calls.", outer_asks)], assistant("Done."), tools=("task",))
    graph = tape.graph()
    assert [(found.role, found.parent_call) for found in graph.conversations] == [
        ("main", None),
        ("subagent", 0),
        ("subagent", 1),
    ]


def test_a_title_is_no_subagent_although_a_tool_call_quotes_its_prompt():
    """The task stands in the arguments too, but it stood in the opening before."""
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"prompt": TASK}))
    tape.say(opening, asks, tools=("task",))
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    tape.say([*opening, asks, result("It is done now.", asks)], assistant("Done."), tools=("task",))
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("auxiliary", "title")]
    assert rules(graph, 1) == ["not_gone_on_from", "read_opening"]


def test_the_task_handed_on_word_for_word_makes_a_subagent_if_its_answer_comes_back():
    tape = Tape()
    main_loop(tape, prompt=TASK, final="All of the tests pass now.")
    assert roles(tape.graph()) == [("main", None), ("subagent", None)]


def test_a_conversation_alone_is_main():
    tape = Tape()
    tape.say([system("You name."), user("Generate a title for: hello")], assistant("Hello"))
    graph = tape.graph()
    assert roles(graph) == [("main", None)]
    assert rules(graph, 0) == ["only_candidate"]


def test_two_runs_of_one_task_are_both_main():
    tape = Tape()
    for step in ("ls", "ls -a"):
        opening = [system("You work."), user(TASK)]
        asks = assistant("", ("bash", {"command": step}), ids=step)
        tape.say(opening, asks, tools=("bash",))
        tape.say([*opening, asks, result(step, asks)], assistant(f"Done with {step}."), tools=("bash",))
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("main", None)]
    assert rules(graph, 0) == ["same_opening"]
    assert codes(graph)["multiple_roots"] == (0, 2)


def two_tasks(**rollout) -> Tape:
    """Two conversations that both use tools, with nothing that leads from one to the other; the second is larger."""
    tape = Tape(**rollout)
    for task, steps in (("Count the files.", 1), ("Paint the shed.", 2)):
        messages = [system("You work."), user(task)]
        for step in range(steps):
            asks = assistant("", ("bash", {"command": f"{task} {step}"}), ids=f"{task}{step}")
            tape.say(messages, asks, tools=("bash",))
            messages = [*messages, asks, result("fine", asks)]
        tape.say(messages, assistant(f"{task} Done."), tools=("bash",))
    return tape


def test_a_tie_is_broken_by_the_task():
    graph = two_tasks(task="Count the files.").graph()
    assert roles(graph) == [("main", None), ("auxiliary", "other")]
    assert (rules(graph, 0), rules(graph, 1)) == (["tie_task"], ["lost_tie"])
    assert codes(graph)["ambiguous_main"] == (0, 2)


def test_a_tie_is_broken_by_headers_when_the_task_is_not_known():
    tape = two_tasks()
    tape.calls[2] = replace(tape.calls[2], hints={"x-parent-session-id": "ses_1"})
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("auxiliary", "other")]
    assert rules(graph, 0) == ["tie_headers"]


def test_a_tie_is_broken_by_size_when_nothing_else_tells():
    graph = two_tasks().graph()
    assert roles(graph) == [("auxiliary", "other"), ("main", None)]
    assert rules(graph, 1) == ["tie_size"]


@pytest.mark.parametrize(
    ("word", "judged"),
    [("subagent", ("subagent", None)), ("title", ("auxiliary", "title")), ("auxiliary", ("auxiliary", "other"))],
)
def test_a_person_overrules(word, judged):
    tape = Tape(roles={0: word})
    main_loop(tape, prompt=None)
    graph = tape.graph()
    assert roles(graph) == [judged]
    assert rules(graph, 0) == ["only_candidate", "overruled"]
    assert graph.conversations[0].trainable is False


def test_an_overruled_conversation_can_be_trained():
    tape = Tape(roles={1: "main"})
    main_loop(tape)
    graph = tape.graph()
    assert [found.trainable for found in graph.conversations] == [True, True]
    assert graph.conversations[1].parent_call is None


def test_a_role_that_is_none_is_refused_by_name():
    tape = Tape(roles={0: "boss"})
    main_loop(tape)
    with pytest.raises(ValueError, match=r"a role is one of main, subagent, auxiliary, .*; not 'boss'"):
        tape.graph()


def test_headers_never_decide():
    tape = Tape()
    main_loop(tape)
    tape.calls = [replace(call, hints={"x-treering-role": "main"}) for call in tape.calls]
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("subagent", None)]
    assert codes(graph)["role_hint_disagrees"] == (1,)


def test_equal_subagents_are_each_their_own():
    """Two tool calls with one prompt: two conversations with equal openings, started by one call."""
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"prompt": PROMPT}), ("task", {"prompt": PROMPT}))
    tape.say(opening, asks, tools=("task",))
    tape.say([user(PROMPT)], assistant("There are two callers of it."))
    tape.say([user(PROMPT)], assistant("I have found three callers."))
    told = [result("There are two callers of it.", asks, 0), result("I have found three callers.", asks, 1)]
    tape.say([*opening, asks, *told], assistant("Done."), tools=("task",))
    graph = tape.graph()
    assert [(found.role, found.parent_call, found.calls) for found in graph.conversations] == [
        ("main", None, (0, 3)),
        ("subagent", 0, (1,)),
        ("subagent", 0, (2,)),
    ]


REMINDER = "<system-reminder>\nBe careful with files.\n</system-reminder>\n\n"


def test_a_prompt_is_known_behind_what_its_agent_puts_in_front():
    """claude-code joins its reminders and the prompt in one user message; its title call leaves them out."""
    tape = Tape()
    opening = [system("You work."), user(REMINDER + TASK)]
    asks = assistant("", ("task", {"prompt": PROMPT}))
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    tape.say(opening, asks, tools=("task",))
    tape.say([user(REMINDER + PROMPT)], assistant("Two."))
    tape.say([*opening, asks, result("ERROR: nothing came back", asks)], assistant("Done."), tools=("task",))
    graph = tape.graph()
    assert roles(graph) == [("auxiliary", "title"), ("main", None), ("subagent", None)]
    assert rules(graph, 2) == ["prompt_in_arguments"]


def test_the_task_behind_a_reminder_stood_in_the_opening_before():
    tape = Tape()
    opening = [system("You work."), user(REMINDER + TASK)]
    asks = assistant("", ("task", {"prompt": TASK}))
    tape.say(opening, asks, tools=("task",))
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    tape.say([*opening, asks, result("It is done now.", asks)], assistant("Done."), tools=("task",))
    assert roles(tape.graph()) == [("main", None), ("auxiliary", "title")]


def streaming(tape: Tape, n: int) -> None:
    """Make a call a stream that ends behind the arrival of all that the tape holds by now."""
    tape.calls[n] = replace(tape.calls[n], streamed=True, ended=tape.clock + 1)
    tape.clock += 1


@pytest.mark.parametrize("prompts", [(PROMPT, "Find what parse() calls."), (PROMPT, PROMPT)])
def test_subagents_that_run_while_the_reply_is_still_streamed(prompts):
    """codex runs a tool call when its item is done, not when the reply is."""
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", *(("task", {"prompt": prompt}) for prompt in prompts))
    tape.say(opening, asks, tools=("task",))
    for place, prompt in enumerate(prompts):
        tape.say([user(prompt)], assistant(f"Of callers I found {place}."))
    streaming(tape, 0)
    tape.say(
        [*opening, asks, *(result("It runs.", asks, place) for place in (0, 1))], assistant("Done."), tools=("task",)
    )
    graph = tape.graph()
    assert [(found.role, found.parent_call) for found in graph.conversations] == [
        ("main", None),
        ("subagent", 0),
        ("subagent", 0),
    ]


def test_a_reply_that_came_whole_started_nothing_before_its_end():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"prompt": PROMPT}))
    tape.say(opening, asks, tools=("task",))
    tape.say([user(PROMPT)], assistant("Two."))
    streaming(tape, 0)
    tape.calls[0] = replace(tape.calls[0], streamed=False)
    assert roles(tape.graph()) == [("main", None), ("auxiliary", "other")]


def test_a_title_beside_a_stream_that_quotes_its_prompt_is_no_subagent():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"prompt": TASK}))
    tape.say(opening, asks, tools=("task",))
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    streaming(tape, 0)
    tape.say([*opening, asks, result("It is done now.", asks)], assistant("Done."), tools=("task",))
    assert roles(tape.graph()) == [("main", None), ("auxiliary", "title")]


def test_a_prompt_that_is_sent_twice_names_the_tool_call_before_it():
    tape = Tape()
    messages = [system("You work."), user(TASK)]
    for time in ("first", "second"):
        asks = assistant("", ("task", {"prompt": PROMPT}), ids=time)
        tape.say(messages, asks, tools=("task",))
        tape.say([user(PROMPT)], assistant(f"The {time} answer."))
        messages += [asks, result("lost", asks)]
    assert [found.parent_call for found in tape.graph().conversations] == [None, 0, 2]


def test_who_was_started_with_the_same_words_and_quotes_them_started_nobody():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"prompt": PROMPT}), ("task", {"prompt": PROMPT}))
    tape.say(opening, asks, tools=("bash", "task"))
    inner = [system("You help."), user(PROMPT)]
    tape.say(inner, assistant("", ("bash", {"command": PROMPT})), tools=("bash",))
    tape.say(inner, assistant("There is one."), tools=("bash",))
    both = [result("ERROR", asks), result("ERROR", asks, 1)]
    tape.say([*opening, asks, *both], assistant("Done."), tools=("bash", "task"))
    graph = tape.graph()
    assert [found.parent_call for found in graph.conversations if found.role == "subagent"] == [0, 0]


def test_an_argument_that_is_the_prompt_outweighs_one_that_quotes_it():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"prompt": PROMPT}), ("task", {"prompt": "Read the parser."}))
    tape.say(opening, asks, tools=("bash", "task"))
    tape.say([user("Read the parser.")], assistant("", ("bash", {"command": f"echo '{PROMPT}'"})), tools=("bash",))
    tape.say([user(PROMPT)], assistant("There is one."), tools=("bash",))
    both = [result("ERROR", asks), result("ERROR", asks, 1)]
    tape.say([*opening, asks, *both], assistant("Done."), tools=("bash", "task"))
    graph = tape.graph()
    assert [found.parent_call for found in graph.conversations if found.role == "subagent"] == [0, 0]


def test_a_prompt_that_stands_in_a_longer_argument_is_found_there():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("task", {"spec": {"steps": [f"First: {PROMPT} Then stop."]}}))
    tape.say(opening, asks, tools=("task",))
    tape.say([user(PROMPT)], assistant("Two."))
    assert roles(tape.graph()) == [("main", None), ("subagent", None)]


def test_a_draw_that_was_discarded_belongs_to_the_one_that_went_on():
    """Two replies to the first request, of which one was continued: one conversation."""
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(opening, assistant("I cannot do this."), tools=("bash",))
    tape.say(opening, asks, tools=("bash",))
    tape.say([*opening, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    graph = tape.graph()
    assert [(found.role, found.root, found.calls) for found in graph.conversations] == [("main", 1, (0, 1, 2))]
    assert rules(graph, 0) == ["only_candidate", "given_up_tries"]


def test_a_header_beside_the_data_flow_is_shown():
    tape = Tape()
    main_loop(tape)
    tape.calls[1] = replace(tape.calls[1], hints={"x-parent-session-id": "ses_1"})
    graph = tape.graph()
    assert rules(graph, 1) == ["prompt_in_arguments", "reply_in_result", "session_hint"]
    assert "role_hint_disagrees" not in codes(graph)


def test_turns_of_an_agent_without_a_history_are_all_main():
    """Each prompt tells what happened in the agent's own words. The last turn has no tool call."""
    tape = Tape()
    for turn in range(3):
        asks = assistant("", ("bash", {"command": f"step {turn}"}), ids=f"turn{turn}")
        seen = f"{TASK} So far {turn} steps were taken."
        tape.say([system("You work."), user(seen)], asks if turn < 2 else assistant("Done."), tools=("bash",))
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    graph = tape.graph()
    assert roles(graph) == [("main", None)] * 3 + [("auxiliary", "title")]
    assert codes(graph)["per_turn_roots"] == (0, 1, 2)
    assert "ambiguous_main" not in codes(graph)


def test_many_questions_beside_a_main_conversation_are_not_its_turns():
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(opening, asks, tools=("bash",))
    for step in range(4):
        tape.say([system("You judge."), user(f"Is step {step} safe?")], assistant("Yes."))
    tape.say([*opening, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    assert roles(tape.graph()) == [("main", None)] + [("auxiliary", "other")] * 4


def test_a_header_that_claims_main_breaks_a_tie():
    tape = two_tasks()
    tape.calls[0] = replace(tape.calls[0], hints={"x-treering-role": "main"})
    assert roles(tape.graph()) == [("main", None), ("auxiliary", "other")]


def test_an_agent_s_own_words_that_are_sampled_later_end_no_opening():
    """A greeting put in by the agent stands before the task; that the model says the same later changes nothing."""
    tape = Tape()
    greeting = [user("This is the setting."), assistant("Got it.")]
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say([*greeting, user(TASK)], asks, tools=("bash",))
    tape.say([system("You name."), user(TASK)], assistant("Got it."))
    tape.say([*greeting, user(TASK), asks, result("a", asks)], assistant("Done."), tools=("bash",))
    assert roles(tape.graph()) == [("main", None), ("auxiliary", "title")]


def test_a_title_beside_a_chat_without_tools():
    tape = Tape()
    tape.say([system("You talk."), user(TASK)], assistant("How?"))
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    tape.say([system("You talk."), user(TASK), assistant("How?"), user("Any way.")], assistant("Done."))
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("auxiliary", "title")]
    assert "ambiguous_main" not in codes(graph)


def test_a_title_beside_a_task_of_one_call_is_told_by_size():
    """Nobody goes on from anything: two questions with one opening, and the larger is the task."""
    tape = Tape()
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    tape.say([system("You work, and here is how, at length."), user(TASK)], assistant("Done."))
    graph = tape.graph()
    assert roles(graph) == [("auxiliary", "title"), ("main", None)]
    assert data(graph, "ambiguous_main") == {"by": "size", "roots": [0, 1], "kept": [1]}


def test_a_hand_over_without_tools_is_a_summary():
    """Nobody makes tool calls. A fresh conversation asks what the next agent should know, and its text is carried."""
    tape = Tape()
    opening = [system("You work."), user(TASK)]
    tape.say(opening, assistant("I ran the tests; two of them fail."))
    told = "Two tests fail, both of them in the parser."
    tape.say([user("Take over: I ran the tests; two of them fail.")], assistant(told))
    tape.say([*opening, user(f"Summary of the work so far:\n{told}")], assistant("Done."))
    graph = tape.graph()
    assert roles(graph) == [("main", None), ("auxiliary", "summary")]
    assert rules(graph, 1) == ["carried"]


def test_a_first_turn_that_was_broken_off_and_spoken_to_is_main():
    """Its reply stands in the next request behind its own opening, as far as it came: it is no title."""
    tape = Tape()
    asked, half = [system("You act."), user(TASK)], assistant("I will begin by")
    tape.say([system("You name."), user(TASK)], assistant("Passing tests"))
    tape.say(asked, half, sampled=[7, 8], tools=("bash",), status="aborted", delivered=False)
    acts = assistant("", ("bash", {"command": "ls"}))
    tape.say([*asked, half, user("Just do it.")], acts, tools=("bash",))
    tape.say([*asked, half, user("Just do it."), acts, result("x", acts)], assistant("Done."), tools=("bash",))
    graph = tape.graph()
    assert roles(graph) == [("auxiliary", "title"), ("main", None), ("main", None)]
    assert rules(graph, 1) == ["same_opening"]
    assert codes(graph)["aborted_calls"] == (1,)
    assert "ambiguous_main" not in codes(graph)
