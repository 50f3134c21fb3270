"""What every recipe is."""

import pytest

from capture.agents import TASK, Recipe, text
from capture.agents.recipe import root
from capture.commands import agents as commands
from capture.commands.table import AGENTS


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_root_of_a_base_url_has_no_version(given):
    assert root(given) == "http://h:1"


def test_a_prefix_of_the_base_url_stays():
    assert root("https://h/tunnel/v1") == "https://h/tunnel"


def test_as_text_files_come_first_then_variables_then_the_command():
    recipe = Recipe(files={"~/a": "x = 1\n"}, env={"A": "b c"}, command=["do", "it's", TASK])
    assert text(recipe).splitlines() == [
        "# ~/a",
        "x = 1",
        "",
        "",
        "export A='b c'",
        "",
        "do 'it'\"'\"'s' 'the task' </dev/null",
    ]


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_has_its_function(name):
    assert callable(getattr(commands, name.replace("-", "_")))
