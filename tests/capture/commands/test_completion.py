"""Completion: what a shell is taught, asked of bash itself."""

import shutil
import subprocess

import pytest

from capture import cli
from capture.commands.completion import bash, fish, flags, zsh
from capture.commands.table import VERBS


def completed(*words):
    """What bash offers for the last word."""
    script = (
        f"{bash()}\nCOMP_WORDS=({' '.join(repr(word) for word in ('treering', *words))})\n"
        f"COMP_CWORD={len(words)}\n_treering\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    )
    program = shutil.which("bash")
    if program is None:
        pytest.skip("bash is not installed")
    done = subprocess.run(
        [program, "--norc", "--noprofile"], input=script, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ro"], ["rollout"]),
        (["rollout", "cl"], ["close"]),
        (["agents", "co"], ["codex"]),
        (["rollout", "list", "--sta"], ["--state"]),
        (["rollout", "list", "--state", ""], ["open", "closed"]),
        (["export", "--format", "ve"], ["verifiers", "verl"]),
        (["serve", "--durab"], ["--durability"]),
        (["serve", "--durability", "p"], ["process", "power"]),
        (["completion", "z"], ["zsh"]),
        (["rollout", "show", "--wait", "i"], ["idle"]),
        (["rollout", "list", "--group", ""], []),
        (["nothing", "--"], []),
    ],
)
def test_what_bash_offers(words, offered):
    assert completed(*words) == offered


def test_every_verb_is_offered():
    firsts = completed("")
    for verb in VERBS:
        family, _, word = verb.name.partition(" ")
        assert family in firsts
        if word:
            assert word in completed(family, "")


def test_every_flag_of_a_verb_is_offered():
    (verb,) = [verb for verb in VERBS if verb.name == "rollout new"]
    assert completed("rollout", "new", "--") == [flag.name for flag in flags(verb)]


def test_a_path_is_completed_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.toml").touch()
    assert completed("scripted", "--rules", "ru") == ["rules.toml"]


def test_the_other_shells_are_told_of_every_verb_and_flag():
    for verb in VERBS:
        assert f'"{verb.name}")' in zsh()
        for flag in flags(verb):
            assert f'__treering_verb "{verb.name}"\' -l {flag.name[2:]}' in fish()
    assert zsh().startswith("#compdef treering\n")


@pytest.mark.parametrize(("shell", "made"), [("bash", bash), ("zsh", zsh), ("fish", fish)])
def test_the_verb_prints_it(shell, made, capsys):
    assert cli.main(["completion", shell]) == 0
    assert capsys.readouterr().out == made()


@pytest.mark.parametrize(("shell", "option"), [("zsh", "-n"), ("fish", "--no-execute")])
def test_other_shells_take_it(shell, option, tmp_path):
    program = shutil.which(shell)
    if program is None:
        # Their texts are held against the table above.
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "completion"
    file.write_text({"zsh": zsh, "fish": fish}[shell]())
    subprocess.run([program, option, str(file)], check=True, timeout=30)
