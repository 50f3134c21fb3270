import pytest

from capture.scripted.rules import CallReply, Failure
from capture.scripted.rulesfile import RulesError, load_rules, parse_rules

WHOLE = r"""
noncanonical = 0.5

[[rule]]
name = "read"
times = 2
match = { role = "user", text = 'read (?P<path>\S+)', tools = ["read"], turn = [0, 1] }

[rule.reply]
thinking = "I read {path}."
text = "So:"
pace_s = 0.01
tokens_per_chunk = 3

[[rule.reply.call]]
tool = "read"
arguments = { path = "{path}", lines = 3 }

[[rule.reply.call]]
tool = "read"
arguments = '{"path":"{1}"}'

[[rule]]
reply = { failure = { status = 503, message = "busy", retry_after = 2 } }
"""


def test_a_whole_file(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(WHOLE)
    rules = load_rules(path)
    assert rules.noncanonical == 0.5
    first, second = rules.rules
    assert (first.name, first.times, first.match.turn, first.reply.tokens_per_chunk) == ("read", 2, (0, 1), 3)
    assert first.reply.call[0] == CallReply(tool="read", arguments={"path": "{path}", "lines": 3})
    assert first.reply.call[1].arguments == '{"path":"{1}"}'
    assert second.reply.failure == Failure(status=503, message="busy", retry_after=2)


def test_an_empty_file_is_a_script_without_rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("")
    assert load_rules(path).rules == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule = [", "not a TOML file"),
        ("[[rules]]\n", "unknown key `rules`; did you mean `rule`?"),
        ("noncanonical = 2", "noncanonical: must be a number from 0 to 1, not 2"),
        ("noncanonical = true", "noncanonical: must be a number"),
        ("rule = 1", r"rule: write each rule as \[\[rule\]\]"),
        ("rule = [1]", "rule 1: must be a table"),
        ("[[rule]]\n", "rule 1: Object missing required field `reply`"),
        ("[[rule]]\nreply = {}\n[[rule]]\nreplay = {}", "rule 2: unknown key `replay`; did you mean `reply`?"),
        (
            "[[rule]]\nname = 'a'\nreply = { txt = '' }",
            r"rule 1 \(a\): unknown key `reply.txt`; did you mean `reply.text`?",
        ),
        ("[[rule]]\nreply = {}\nmatch = { zzz = 1 }", "unknown key `match.zzz`; known here: role, text, system"),
        (
            "[[rule]]\nreply = { call = [{ tol = 'a' }] }",
            "unknown key `reply.call.tol`; did you mean `reply.call.tool`?",
        ),
        ("[[rule]]\nreply = { failure = { statos = 1 } }", "did you mean `reply.failure.status`?"),
        ("[[rule]]\nreply = { text = 1 }", "rule 1: reply.text: Expected `str`, got `int`"),
        ("[[rule]]\nreply = {}\nmatch = { tools = 'a' }", "rule 1: match.tools: Expected `array`, got `str`"),
        ("[[rule]]\nreply = { finish = 'done' }", "rule 1: reply.finish: Invalid enum value 'done'"),
        ("[[rule]]\nreply = {}\ntimes = 0", "times: must be at least 1"),
        ("[[rule]]\nreply = {}\nmatch = { text = '(' }", "rule 1: match.text: not a regular expression"),
        (
            "[[rule]]\nreply = { text = '{path}' }",
            "reply.text: unknown placeholder `{path}`; known here: {last}, {turn}",
        ),
        ("[[rule]]\nreply = { text = '{2}' }\nmatch = { text = '(a)' }", "known here: {0}, {1}, {last}, {turn}"),
        (
            "[[rule]]\nreply = { call = [{ tool = 'a', arguments = { b = ['{c}'] } }] }",
            "reply.call.arguments: unknown placeholder `{c}`",
        ),
        ("[[rule]]\nreply = { raw = 'a', text = 'b' }", "reply.raw: is the whole text"),
        ("[[rule]]\nreply = { tokens_per_chunk = 0 }", "reply.tokens_per_chunk: must be at least 1"),
        ("[[rule]]\nreply = { pace_s = -1 }", "reply.pace_s: must not be negative"),
        ("[[rule]]\nreply = { failure = {} }", "reply.failure: needs exactly one kind, and has none"),
        ("[[rule]]\nreply = { failure = { status = 500, hang = true } }", "has status, hang"),
        ("[[rule]]\nreply = { failure = { status = 200 } }", "must be from 400 to 599"),
        ("[[rule]]\nreply = { failure = { hang = true, retry_after = 1 } }", "goes with status only"),
        ("[[rule]]\nreply = { failure = { cut_after_tokens = -1 } }", "cut_after_tokens: must not be negative"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, message):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RulesError, match=message.replace("{", r"\{").replace("}", r"\}")) as caught:
        load_rules(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_rules(tmp_path / "none.toml")


def test_braces_around_anything_else_are_left_alone():
    rules = parse_rules({"rule": [{"reply": {"raw": '{"a": {}} {{name}} { turn }'}}]})
    assert rules.rules[0].reply.raw == '{"a": {}} {{name}} { turn }'
