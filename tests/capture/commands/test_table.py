"""The table of verbs: what holds of every one."""

import importlib

import pytest

from capture.commands.table import VERBS

WITHOUT_DATA = {
    "serve": "it serves",
    "scripted": "it serves",
    "rollout delete": "nothing is left to print",
    "export": "what it prints are lines of JSON",
    "completion": "what it prints is a shell's file",
}
"""Verbs that have no --json, and why."""


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_that_prints_data_prints_json_too(verb):
    has = any(one.name == "--json" for one in verb.arguments)
    assert has != (verb.name in WITHOUT_DATA)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_leads_to_a_function(verb):
    module, _, name = verb.run.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_help_is_a_sentence(verb):
    for text in (verb.help, *(one.help for one in verb.arguments)):
        assert text.endswith((".", ")", "}."))
