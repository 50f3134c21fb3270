import pytest

from capture.scripted.rules import CallReply, Match, Reply, Seen, fill, matches

SEEN = Seen(
    role="user",
    text="Read src/a.py,\nplease",
    system="You are brief.",
    tools=("read", "write"),
    tool_choice="auto",
    turn=2,
    model="scripted",
    thinking=True,
)


@pytest.mark.parametrize(
    ("match", "holds"),
    [
        ({}, True),
        ({"role": "user"}, True),
        ({"role": "tool"}, False),
        ({"text": "^Read .*please$"}, True),
        ({"text": "^please"}, False),
        ({"system": "brief"}, True),
        ({"system": "long"}, False),
        ({"tools": ("read",)}, True),
        ({"tools": ("read", "task")}, False),
        ({"without_tools": ("task",)}, True),
        ({"without_tools": ("write",)}, False),
        ({"any_tools": True}, True),
        ({"any_tools": False}, False),
        ({"tool_choice": "auto"}, True),
        ({"tool_choice": "none"}, False),
        ({"turn": 2}, True),
        ({"turn": (0, 2)}, True),
        ({"turn": 0}, False),
        ({"model": "^scr"}, True),
        ({"model": "other"}, False),
        ({"thinking": True}, True),
        ({"thinking": False}, False),
        ({"role": "user", "turn": 0}, False),
    ],
)
def test_each_condition(match, holds):
    assert (matches(Match(**match), SEEN) is not None) == holds


def test_placeholders_stand_for_groups_the_turn_and_the_last_text():
    values = matches(Match(text=r"(\w+) (?P<path>\S+\.py)( never)?", system="are (?P<how>\\w+)"), SEEN)
    assert values == {
        "turn": "2",
        "last": SEEN.text,
        "how": "brief",
        "path": "src/a.py",
        "0": "Read src/a.py",
        "1": "Read",
        "2": "src/a.py",
        "3": "",
    }


def test_a_reply_is_filled_in_every_text():
    reply = Reply(
        thinking="turn {turn}",
        text="{{turn}} {1} {other}",
        call=(CallReply(tool="{1}", arguments={"a": ["{turn}", 1], "b": {"c": "{1}"}}),),
    )
    filled = fill(reply, {"turn": "3", "1": "x"})
    assert (filled.thinking, filled.text) == ("turn 3", "{turn} x {other}")
    assert filled.call == (CallReply(tool="x", arguments={"a": ["3", 1], "b": {"c": "x"}}),)
    assert fill(Reply(raw='{"a": {turn}}'), {"turn": "1"}).raw == '{"a": 1}'


def test_a_value_with_a_placeholder_in_it_is_not_filled_again():
    assert fill(Reply(text="{last}"), {"last": "{turn}", "turn": "9"}).text == "{turn}"
