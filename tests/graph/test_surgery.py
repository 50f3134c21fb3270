"""Points to resume a rollout from, and seeds in which nothing is malformed."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph import surgery
from graph.graph import Graph, read
from graph.messages import from_chat
from graph.surgery import Point, cut, main_path, mended, points, to_chat, whole
from tests.graph.generator import Chat
from tests.graph.tape import Tape, assistant, result, system, user
from tests.graph.told import stories

SUMMARY = "The tests failed in parse(); it is fixed now."
TOOLS = ("bash",)


def told(graph: Graph) -> list[tuple[tuple[str, ...], int, int, bool, str]]:
    return [(p.kinds, p.call, p.n_messages, p.reply, p.awaits) for p in points(graph)]


def seeds(graph: Graph) -> list[list[Chat]]:
    """The seed at each point, from the canonical messages."""
    return [list(seed(graph, point).messages) for point in points(graph)]


def seed(graph: Graph, point: Point, **rest):
    call = graph.forest.calls[point.call]
    reply = None if call.reply is None else to_chat(call.reply)
    return cut("r", point, messages=[to_chat(message) for message in call.messages], reply=reply, **rest)


def texts(messages) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def worked() -> tuple[Tape, list[Chat], Chat, Chat]:
    """Two tool calls, one after the other, and an answer."""
    tape = Tape()
    opening = [system("You work."), user("Fix it.")]
    one, two = assistant("", ("bash", {"command": "ls"})), assistant("", ("bash", {"command": "make"}), ids="second")
    first, second = [*opening, one, result("a.py", one)], [two, result("ok", two)]
    tape.say(opening, one, tools=TOOLS)
    tape.say(first, two, tools=TOOLS)
    tape.say([*first, *second], assistant("Done."), tools=TOOLS)
    return tape, [*first, *second], one, two


def test_a_point_behind_each_tool_result():
    tape, _, _, _ = worked()
    graph = tape.graph()
    assert told(graph) == [(("tool_result",), 1, 4, False, "reply"), (("tool_result",), 2, 6, False, "reply")]
    assert [texts(seed)[-1] for seed in seeds(graph)] == [("tool", "a.py"), ("tool", "ok")]


def test_a_result_that_a_user_spoke_behind():
    tape = Tape()
    opening, asks = [user("Fix it.")], assistant("", ("bash", {"command": "ls"}))
    tape.say(opening, asks)
    tape.say([*opening, asks, result("a.py", asks), user("Stop there.")], assistant("Yes."))
    assert told(tape.graph()) == [(("tool_result",), 1, 3, False, "reply")]


def test_results_of_parallel_calls_are_one_point():
    tape = Tape()
    opening = [user("Fix it.")]
    asks = assistant("", ("bash", {"command": "ls"}), ("bash", {"command": "pwd"}))
    tape.say(opening, asks)
    tape.say([*opening, asks, result("a.py", asks), result("/", asks, 1)], assistant("Done."))
    assert told(tape.graph()) == [(("tool_result",), 1, 4, False, "reply")]


def test_subagents_and_titles_are_cut_away():
    tape = Tape()
    opening, asks = [system("You work."), user("Fix it.")], assistant("", ("task", {"prompt": "Find the parser."}))
    tape.say([system("Give a title."), user("Fix it.")], assistant("Fixing it"))
    tape.say(opening, asks, tools=("task",))
    tape.say([system("You help."), user("Find the parser.")], assistant("It is in a.py, line 3."))
    tape.say([*opening, asks, result("It is in a.py, line 3.", asks)], assistant("Done."), tools=("task",))
    graph = tape.graph()
    assert main_path(graph) == (1, 3)
    assert [point.call for point in points(graph)] == [3]


def test_before_and_after_a_compaction_with_a_summary_of_its_own():
    tape, history, _, _ = worked()
    last = tape.graph().forest.calls[2]
    transcript = "\n".join(message.text for message in last.messages) + "\nDone."
    tape.say([system("You summarise."), user(f"{transcript}\nSummarise.")], assistant(SUMMARY))
    again = [system("You work."), user(f"<summary>\n{SUMMARY}\n</summary>"), user("Go on.")]
    tape.say(again, assistant("All done."), tools=TOOLS)
    graph = tape.graph()
    assert graph.forest.links[4].kind == "compaction"
    before, after = told(graph)[-2:]
    assert before == (("before_compaction",), 2, 6, True, "user")
    assert after == (("after_compaction",), 4, 3, False, "reply")
    assert texts(seeds(graph)[-2])[-1] == ("assistant", "Done.")
    assert seeds(graph)[-1][1]["content"] == f"<summary>\n{SUMMARY}\n</summary>"
    assert texts(seeds(graph)[-2])[:-1] == [(m["role"], m["content"]) for m in history]


def test_before_a_compaction_that_was_asked_for_inside():
    """The words that asked for the summary are no part of what was there before."""
    tape, history, _, _ = worked()
    tape.say([*history, assistant("Done."), user("Summarise what you did.")], assistant(SUMMARY), tools=TOOLS)
    tape.say([system("You work."), user("Fix it."), user(f"You did this:\n{SUMMARY}")], assistant("Yes."), tools=TOOLS)
    graph = tape.graph()
    assert graph.forest.links[4].kind == "compaction"
    before, after = told(graph)[-2:]
    assert before == (("before_compaction",), 3, 7, False, "user")
    assert after == (("after_compaction",), 4, 3, False, "reply")
    assert texts(seeds(graph)[-2])[-1] == ("assistant", "Done.")


def test_at_a_fork():
    """What all branches have in common; a retry is no fork in the road."""
    tape = Tape()
    opening = [user("Fix it.")]
    tape.say(opening, assistant("Which one?"))
    tape.say([*opening, assistant("Which one?"), user("The first.")], assistant("Done."))
    tape.say([*opening, assistant("Which one?"), user("The second.")], assistant("Done too."))
    assert told(tape.graph()) == [(("fork",), 1, 2, False, "user")]

    tape = Tape()
    tape.say(opening, assistant("One."), delivered=False)
    tape.say(opening, assistant("Two."))
    assert told(tape.graph()) == []


def test_at_draws_from_one_prompt():
    tape = Tape()
    tape.say([user("Fix it.")], assistant("One."))
    tape.say([user("Fix it.")], assistant("Two."))
    assert told(tape.graph()) == [(("fork",), 0, 1, False, "reply")]


def test_points_with_equal_messages_are_one():
    tape = Tape()
    opening, asks = [user("Fix it.")], assistant("", ("bash", {"command": "ls"}))
    tape.say(opening, asks)
    behind = [*opening, asks, result("a.py", asks)]
    tape.say(behind, assistant("One."))
    tape.say(behind, assistant("Two."))
    assert told(tape.graph()) == [(("tool_result", "fork"), 1, 3, False, "reply")]


def test_a_discarded_branch_is_no_place_to_resume_from():
    tape = Tape()
    opening, asks = [user("Fix it.")], assistant("", ("bash", {"command": "ls"}))
    tape.say(opening, asks)
    behind = [*opening, asks, result("a.py", asks)]
    lost = assistant("", ("bash", {"command": "rm"}), ids="lost")
    tape.say(behind, lost, status="aborted", delivered=False, finish_reason=None)
    tape.say(behind, assistant("Done."))
    graph = tape.graph()
    assert main_path(graph) == (0, 2)
    assert told(graph) == [(("tool_result",), 2, 3, False, "reply")]


def test_a_recheck_is_the_whole_with_a_new_instruction():
    tape, history, _, _ = worked()
    graph = tape.graph()
    end = whole(graph)
    made = seed(graph, end, instruction="Are you sure?", tools=[{"type": "function"}])
    assert (made.k, made.kinds, made.awaits) == (None, ("whole",), "reply")
    assert made.tools == [{"type": "function"}]
    assert texts(made.messages) == [*texts(history), ("assistant", "Done."), ("user", "Are you sure?")]
    assert seed(graph, end).awaits == "user"


def test_a_rollout_without_calls_has_neither_points_nor_an_end():
    assert points(Tape().graph()) == ()
    assert whole(Tape().graph()) is None


def test_a_point_that_the_messages_do_not_reach():
    point = Point(kinds=("fork",), call=0, n_messages=3, awaits="reply")
    with pytest.raises(ValueError, match="too few messages"):
        cut("r", point, messages=[user("Hello")])
    with pytest.raises(ValueError, match="too few messages"):
        cut("r", Point(kinds=("whole",), call=0, n_messages=1, reply=True, awaits="user"), messages=[user("Hello")])


# -- mending ----------------------------------------------------------------------------------------------------------

ONE, TWO = ("bash", {"command": "ls"}), ("bash", {"command": "pwd"})
BOTH = assistant("Look.", ONE, TWO)


def answered(message: Chat, *places: int) -> Chat:
    """The message with only these of its tool calls."""
    return message | {"tool_calls": [message["tool_calls"][place] for place in places]}


def without(message: Chat) -> Chat:
    return {name: value for name, value in message.items() if name != "tool_calls"}


@pytest.mark.parametrize(
    ("given_", "left"),
    [
        # At the end, in the middle, at the start.
        ([user("a"), BOTH], [user("a"), without(BOTH)]),
        ([BOTH, user("a")], [without(BOTH), user("a")]),
        ([user("a"), BOTH, result("1", BOTH), user("b")], [user("a"), answered(BOTH, 0), result("1", BOTH), user("b")]),
        ([BOTH, result("2", BOTH, 1)], [answered(BOTH, 1), result("2", BOTH, 1)]),
        # Nothing is left of it.
        ([user("a"), assistant("", ONE), user("b")], [user("a"), user("b")]),
        ([user("a"), assistant(""), user("b")], [user("a"), user("b")]),
        # A result behind the next reply answers nothing.
        ([assistant("x", ONE), assistant("y"), result("1", assistant("x", ONE))], [assistant("x"), assistant("y")]),
        ([result("1", BOTH), user("a")], [user("a")]),
        # Twice, and out of order.
        (
            [BOTH, result("1", BOTH), result("again", BOTH), result("2", BOTH, 1)],
            [BOTH, result("1", BOTH), result("2", BOTH, 1)],
        ),
        (
            [BOTH, result("1", BOTH), user("wait"), result("2", BOTH, 1)],
            [BOTH, result("1", BOTH), result("2", BOTH, 1), user("wait")],
        ),
        # No messages at all.
        ([user("a"), None, "text", {}, {"content": "x"}, {"role": 3}], [user("a")]),
        # Without ids, by place.
        (
            [
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "1"},
            ],
            [
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "1"},
            ],
        ),
        (
            [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}],
            [{"role": "assistant", "content": "x"}],
        ),
    ],
)
def test_nothing_malformed_is_left(given_, left):
    assert mended(given_) == left


def test_media_and_unknown_keys_stay():
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}], "name": "me"}
    assert mended([picture]) == [picture]
    assert mended([picture])[0] is picture


ids = st.sampled_from(["a", "b", None])
call = st.builds(lambda id_: {"id": id_, "function": {"name": "f", "arguments": "{}"}}, ids)
chat = st.one_of(
    st.builds(lambda text: user(text), st.sampled_from(["", "x"])),
    st.builds(lambda text: system(text), st.just("s")),
    st.builds(lambda text, calls: assistant(text) | {"tool_calls": calls}, st.sampled_from(["", "x"]), st.lists(call)),
    st.builds(lambda id_: {"role": "tool", "tool_call_id": id_, "content": "1"}, ids),
)


@given(st.lists(chat, max_size=12))
@settings(max_examples=400, deadline=None)
def test_every_call_has_its_result_right_behind_it(messages):
    left = mended(messages)
    open_: list[str | None] = []
    for message in left:
        if message["role"] == "tool":
            # Removing one that isn't there fails.
            open_.remove(message["tool_call_id"])
            continue
        assert open_ == []
        if message["role"] == "assistant":
            open_ = [call["id"] for call in message.get("tool_calls", [])]
            assert message["content"] or open_
    assert open_ == []
    assert mended(left) == left


@given(stories())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_points_of_drawn_rollouts(story):
    """Every result of main that came back is a point, every compaction two; and each seed is whole."""
    graph = read(story.rollout, story.calls)
    found = points(graph)
    assert [point.k for point in found] == list(range(len(found)))
    main = {n for n, true in story.truth.items() if true.role == "main"}
    assert {point.call for point in found} <= main
    brought = {n for n in main if story.calls[n].messages[-1].role == "tool" and n not in graph.forest.discarded}
    gone_on = {n for n in brought if story.calls[n].status == "complete"}
    assert gone_on <= {point.call for point in found if {"tool_result", "fork"} & set(point.kinds)}
    compactions = [n for n in main if story.truth[n].link == "compaction" and story.calls[n].status == "complete"]
    kinds = [kind for point in found for kind in point.kinds]
    assert kinds.count("after_compaction") >= len(compactions)
    for point in found:
        made = seed(graph, point)
        canonical = [from_chat(message) for message in made.messages]
        assert made.awaits == point.awaits
        assert mended(made.messages) == list(made.messages)
        if "tool_result" in point.kinds:
            assert canonical[-1].role == "tool"


def test_kinds_are_the_documented_ones():
    assert surgery.KINDS == ("tool_result", "before_compaction", "after_compaction", "fork", "whole")
