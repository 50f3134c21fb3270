"""Does a text stand in another by more than chance?"""

import pytest

from graph.flow import bare, quotes, stands


@pytest.mark.parametrize(
    ("text", "within", "does"),
    [
        ("ok", "ok", True),
        (" ok\n", "ok", True),
        ("ok", "a token", False),
        ("ok", "not ok", False),
        ("ok", "status:\nok\n", True),
        ("ok", "<task_result>ok</task_result>", True),
        ("a text of sixteen", "before a text of sixteen after", True),
        ("", "anything", False),
        ("longer than it", "it", False),
    ],
)
def test_a_short_text_stands_as_a_whole_line_and_a_long_one_anywhere(text, within, does):
    assert stands(text, within) is does


@pytest.mark.parametrize(
    ("within", "text", "does"),
    [
        ('Name: "fix it"', "fix it", True),
        ("Name: prefix item", "fix it", False),
        ("(a+b)", "a+b", True),
        ("Name this:", "", False),
    ],
)
def test_a_quotation_is_set_off(within, text, does):
    assert quotes(within, text) is does


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Find it.", "Find it."),
        ("<r>\nBe kind.\n</r>\n\nFind it.", "Find it."),
        ("<r>One.</r><r>Two.</r>\nFind it.\n<s>Three.</s>\n", "Find it."),
        ("Find <b>it</b> here.", "Find <b>it</b> here."),
        ("<r>Find it.</r>", "<r>Find it.</r>"),
        ("<r>open, Find it.", "<r>open, Find it."),
        ("Find it, closed.</r>", "Find it, closed.</r>"),
        ("a < b > c", "a < b > c"),
        ("", ""),
    ],
)
def test_what_an_agent_puts_around_a_prompt_is_taken_off(text, left):
    assert bare(text) == left
