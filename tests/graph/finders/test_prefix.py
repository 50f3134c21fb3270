"""What changes at the prompt's beginning, and who can end it."""

import pytest

from graph.finders.prefix import KNOWN
from graph.graph import read
from tests.graph.cases import load, with_messages
from tests.graph.tape import Tape, assistant, codes, data, result, system, user


def told(*systems: str, tools: tuple[tuple[str, ...], ...] = (("bash",),)) -> Tape:
    """A conversation whose system text (and tool list) is another at each call."""
    tape = Tape()
    messages = [user("Make the tests pass.")]
    for step, text in enumerate(systems):
        asks = assistant("", ("bash", {"command": f"step {step}"}), ids=f"step{step}")
        tape.say([system(text), *messages], asks, tools=tools[step % len(tools)])
        messages += [asks, result("fine", asks)]
    return tape


def common(tape: Tape, child: int) -> int:
    parent, later = (tape.calls[n].prompt_ids.tolist() for n in (child - 1, child))
    return next(place for place, (a, b) in enumerate(zip(parent, later, strict=False)) if a != b)


def test_a_countdown_is_one_finding():
    tape = told(*(f"You work.\nTokens left: {left}" for left in (100, 99, 98)))
    graph = tape.graph()
    assert codes(graph)["volatile_prefix"] == (1, 2)
    lost = [graph.forest.links[n].drift.tokens for n in (1, 2)]
    assert data(graph, "volatile_prefix") == {
        "at": common(tape, 1),
        "tokens": sum(lost),
        "tokens_mean": sum(lost) / 2,
        "part": "system",
        "line": "Tokens left: 98",
        "agent": None,
        "setting": None,
    }


def test_the_digits_of_a_countdown_part_a_token_or_two_apart():
    """Digits are ids of their own: 91 and 90 part at the second one, 90 and 89 at the first."""
    tape = told(*(f"You work. Tokens left: {' '.join(left)}" for left in ("91", "90", "89")))
    assert common(tape, 1) == common(tape, 2) + 1
    assert data(tape.graph(), "volatile_prefix")["at"] == common(tape, 2)


def test_a_header_that_an_agent_is_known_for_is_named_with_its_setting():
    tape = told(
        *(f"x-anthropic-billing-header: cc_version=2.1.197.{part}; x\nYou work." for part in ("a1", "b2", "c3"))
    )
    found = data(tape.graph(), "volatile_prefix")
    assert (found["agent"], found["setting"]) == ("claude-code", "CLAUDE_CODE_ATTRIBUTION_HEADER=0")
    assert found["line"].startswith("x-anthropic-billing-header:")


def test_a_tool_list_that_changes_each_time():
    tape = told("You work.", "You work.", "You work.", tools=(("bash", "edit"), ("bash", "look")))
    found = data(tape.graph(), "volatile_prefix")
    assert (found["part"], found["line"]) == ("tools", None)


@pytest.mark.parametrize(
    "systems",
    [
        ("You work.", "You work."),
        ("You work. 1", "You work. 2"),
        ("You work. 1", "You work. 2", "You work. 2"),
        ("1" + " a" * 20 + " 2", "1" + " a" * 20 + " 3", "2" + " a" * 20 + " 3"),
    ],
)
def test_what_does_not_change_each_time_at_one_place_is_none(systems):
    assert "volatile_prefix" not in codes(told(*systems).graph())


def test_the_case():
    case = load(48)
    graph = read(case.rollout, with_messages(case))
    told = case.expected["diagnostic"]
    assert case.named(codes(graph)["volatile_prefix"]) == told["calls_affected"]
    assert data(graph, "volatile_prefix")["at"] == told["common_first_mismatch_index"]


def test_the_settings_are_those_that_the_recipes_set():
    """A setting that is named is one that a ready configuration has."""
    from capture.agents.claude_code import claude_code

    env = claude_code(base_url="http://127.0.0.1:1", model="m").env
    for known in KNOWN:
        name, _, value = known.setting.partition("=")
        assert (known.agent, env[name]) == ("claude-code", value)
