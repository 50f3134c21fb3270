"""Everything that the documentation names is there: links, anchors, codes, routes, commands, options; code is code.

What blocks do when they are run is in tests/test_docs_run.py.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest

from capture import formats
from capture.commands.table import VERBS
from capture.openapi_routes import TABLE as ROUTES
from capture.settings import TABLE as SETTINGS
from graph.causes import CAUSES
from graph.eligibility import REASONS
from graph.findings import TABLE
from tests import pages
from tests.pages import PAGES, ROOT, Block, anchors, blocks, links, name, prose

BLOCKS = [block for page in PAGES for block in blocks(page)]
FENCED = [block for block in BLOCKS if block.info]


def ids(block: Block) -> str:
    return block.where


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_and_anchor_leads_somewhere(page):
    broken = []
    for link in links(page):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index():
    """Of docs/: whoever begins at the index gets to each."""
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    docs = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index}
    assert docs - linked == set()


def test_every_agent_and_trainer_has_its_page():
    agents = {verb.name.removeprefix("agents ") for verb in VERBS if verb.name.startswith("agents ")}
    assert {page.stem for page in (ROOT / "docs" / "agents").glob("*.md")} == agents
    for page in (ROOT / "docs" / "agents").glob("*.md"):
        assert f"treering agents {page.stem}" in page.read_text(), page.name


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 95


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_findings_that_are_named_exist(page):
    """Where a page says "finding `x`", or links a code to docs/findings.md."""
    text = prose(page)
    named = re.findall(r"[Ff]indings? `([a-z_]+)`", text)
    named += re.findall(r"`([a-z_]+)`\]\([^)]*findings\.md#\1\)", text)
    assert [code for code in named if code not in TABLE] == []
    linked = re.findall(r"\[`([a-z_]+)`\]\([^)]*findings\.md#([a-z_-]+)\)", text)
    assert [(code, anchor) for code, anchor in linked if code != anchor] == []


def test_the_faq_names_findings_reasons_and_causes_that_exist():
    text = (ROOT / "docs" / "faq.md").read_text()
    table = text[text.index("| what you see |") : text.index("\n## Reward is flat zero")]
    codes = [code for row in table.splitlines()[2:] for code in re.findall(r"`([a-z_]+)`", row.rpartition("](")[2])]
    known = {*TABLE, *CAUSES, "n_rows"}
    assert len(codes) > 20
    assert [code for code in codes if code not in known] == []
    reasons = text[text.index("| reason | do |") : text.index("\n## A reward of null")]
    named = [code for row in reasons.splitlines()[2:] for code in re.findall(r"`([a-z_]+)`", row.split("|")[1])]
    assert named
    assert [code for code in named if code not in REASONS] == []


def test_every_finding_that_may_cost_a_run_is_in_the_faq():
    text = (ROOT / "docs" / "faq.md").read_text()
    costly = {row.code for row in TABLE.values() if row.level == "error"} | {
        "role_overruled", "drift_over_threshold", "volatile_prefix", "weights_changed", "limit_stop", "time_limit",
        "sampling_truncates", "sampling_changed", "logprobs_not_of_sampler", "logprob_mode_unknown",
        "constrained_sampling", "ambiguous_main", "per_turn_roots", "truncated_reply", "unknown_secret_calls",
    }  # fmt: skip
    # Said under the reason of the same name, or so rare that the table of findings is the place.
    elsewhere = {"no_token_ids", "no_logprobs", "count_mismatch", "invalid_logprobs", "token_out_of_vocabulary"}
    assert {code for code in costly - elsewhere if f"`{code}`" not in text} == set()


# Routes of engines, and of nobody: what a page says that is refused, or that another program has.
ELSEWHERE = {
    "/tokenize", "/detokenize", "/version", "/v1/embeddings", "/v1/chat/completions/batch", "/health",
    "/apply-template", "/v1/chat/completions/render", "/generate", "/update_weights", "/abort_request",
}  # fmt: skip


def shape(path: str) -> str:
    return re.sub(r"\{[^}]*\}|…", "{}", path.partition("?")[0].rstrip("/.,")) or "/"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_routes_that_are_named_exist(page):
    known = {(route.method, shape(route.path)) for route in ROUTES}
    # The page is no part of the interface.
    known |= {("HEAD", "/"), ("GET", "/"), ("GET", "/page/{}")}
    text = page.read_text()
    unknown = []
    for method, path in re.findall(r"\b(GET|POST|PUT|DELETE|HEAD) (/[^\s`|,)\"]*)", text):
        if "…" in path or path.partition("?")[0] in ELSEWHERE:
            continue
        if (method, shape(path)) not in known:
            unknown.append(f"{method} {path}")
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_variables_that_are_named_exist(page):
    known = {f"TREERING_{row.name.upper()}" for row in SETTINGS}
    known |= set(re.findall(r"TREERING_[A-Z_]+", (ROOT / "docs" / "cli.md").read_text()))
    # Of the client, of tests, and of tools that the scripts start.
    known |= {"TREERING_URL", "TREERING_FRPC", "TREERING_POSTGRES", "TREERING_TUNNEL_FRPC"}
    for script in (*ROOT.glob("bin/*"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("deploy/**/*")):
        if script.is_file() and script.name != Path(__file__).name:
            known |= set(re.findall(r"TREERING_[A-Z_]+", script.read_text(errors="replace")))
    assert sorted(set(re.findall(r"TREERING_[A-Z_]+", page.read_text())) - known) == []


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return the command lines of Treering in a text: the line, and its words behind `treering`."""
    found = []
    for line in re.split(r"\n|(?<![\\|])\|(?!\|)|&&|;|\$\(", text.replace("\\\n", " ")):
        match = re.match(r"^[\s$>\"`]*(?:[A-Z_]+=\S+ )*(?:bin/|\.venv/bin/)?treering( .*)?$", line)
        if match is None:
            continue
        try:
            words = shlex.split((match[1] or "").partition(" # ")[0], comments=True)
        except ValueError:
            words = (match[1] or "").split()
        found.append((line.strip(), words))
    return found


def wrong(words: list[str]) -> str | None:
    """Say what is wrong with the words of a command line; None where nothing is."""
    names = {verb.name: verb for verb in VERBS}
    head = list(takewhile(re.compile(r"[a-z][a-z-]*").fullmatch, words))[:2]
    verb = names.get(" ".join(head)) or (names.get(head[0]) if head else names["serve"])
    if verb is None:
        families = {each.split()[0] for each in names}
        # A family by itself, or with a word that stands for any (agents NAME).
        if head and head[0] in families and (len(words) < 2 or not re.fullmatch(r"[a-z-]+", words[1])):
            return None
        return f"no verb {' '.join(head)}"
    flags = {argument.name for argument in verb.arguments} | {
        row.flag for row in SETTINGS if row.flag and row.name in verb.settings
    }
    flags |= {"--help", "--config"}
    for word in words:
        flag = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*", flag) and flag not in flags:
            return f"{verb.name} has no {flag}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_options_that_are_named_exist(page):
    text = prose(page)
    told = [*re.findall(r"`((?:bin/)?treering(?: [^`]*)?)`", text)]
    told += [block.text for block in blocks(page)]
    mistakes = [
        f"{line}: {problem}" for each in told for line, words in commands(each) if (problem := wrong(words)) is not None
    ]
    assert mistakes == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_that_are_named_alone_exist(page):
    """`--like-this` in a page's text is an option of some verb of ours, or of a program that the page speaks of."""
    ours = {row.flag for row in SETTINGS if row.flag} | {one.name for verb in VERBS for one in verb.arguments}
    ours |= set(re.findall(r'"(--[a-z-]+)"', "".join(path.read_text() for path in ROOT.glob("examples/**/*.py"))))
    scripts = [path for path in ROOT.glob("bin/*") if path.is_file()]
    scripts += [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/**/*.py")]
    ours |= set(re.findall(r"(--[a-z][a-z-]+)", "".join(path.read_text(errors="replace") for path in scripts)))
    named = re.findall(r"`(--[a-z][a-z-]+)", prose(page))
    theirs = {
        # vLLM, SGLang, docker, kubectl, systemd, pip, Harbor, mini-swe-agent.
        "--logprobs-mode", "--max-logprobs", "--enable-scale-out", "--tool-call-parser", "--reasoning-parser",
        "--network", "--env-file", "--cost-limit", "--no-deps", "--build-arg", "--read-only",
    }  # fmt: skip
    assert sorted(set(named) - ours - theirs) == []


def test_formats_that_are_named_exist():
    for page in PAGES:
        named = re.findall(r"(?:--format |format=)([a-z][a-z-]+)", page.read_text())
        unknown = {each for each in named if each not in formats.FORMATS} - {"text", "json", "any", "custom"}
        assert unknown == set(), name(page)


# -- code -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [each for each in FENCED if each.language in ("sh", "bash")], ids=ids)
def test_shell_is_shell(block):
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False, timeout=20)
    assert done.returncode == 0, done.stderr


SHELL = re.compile(r"^(?:bin/|treering |curl |pip |vllm |python3? |[A-Z]+=\$\()", re.MULTILINE)
INDENTED = [each for each in BLOCKS if not each.info and SHELL.match(each.text.lstrip())]


@pytest.mark.parametrize("block", INDENTED, ids=ids)
def test_indented_shell_is_shell(block):
    text = re.sub(r"(?<=\s)…(?=\s|$)", "", block.text)
    if re.match(r"(?s).*^(?:with|from|import) ", text, re.MULTILINE):
        # A command and the Python that follows it.
        text = re.split(r"^(?:with|from|import) ", text, maxsplit=1, flags=re.MULTILINE)[0]
    # `[--option]` and `a|b` are how a page writes what may be left out, or chosen.
    text = re.sub(r"\[[^\]\n]*\]", "x", text)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False, timeout=20)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [each for each in FENCED if each.language == "python"], ids=ids)
def test_python_is_python(block):
    compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_json_is_json_and_toml_is_toml():
    read = {"json": json.loads, "toml": tomllib.loads}
    for block in FENCED:
        if block.language in read:
            read[block.language](block.text)


def test_blocks_are_of_languages_that_are_checked():
    known = {"sh", "bash", "python", "json", "toml", "haproxy", "text", "yaml", "nginx", "ini"}
    assert {block.where: block.info for block in FENCED if block.language not in known} == {}
    # And there are some of each that is checked here.
    assert {"sh", "python", "toml"} <= {block.language for block in FENCED}


# -- this file's own reading ------------------------------------------------------------------------------------------


def test_a_page_is_read_as_it_is_meant(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c: d's\n\nSee [one](a.md#x), ![two](b.svg) and `[no](c.md)`.\n\n    indented [no](d.md)\n\n"
        "```sh run\n# no heading\necho [no](e.md)\n```\n\n## Twice\n\n## Twice\n"
    )
    assert links(page) == ["a.md#x", "b.svg"]
    assert anchors(page) == {"a-b-c-ds", "twice", "twice-1"}
    assert [(block.info, block.line, block.text) for block in blocks(page)] == [
        ("", 5, "indented [no](d.md)\n"),
        ("sh run", 8, "# no heading\necho [no](e.md)\n"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("treering rollout graph r1 --evidence", None),
        ("bin/treering serve --engine scripted", None),
        ("treering --engine scripted", None),
        ("treering agents NAME --rollout ID", None),
        ("treering rollout graf r1", "no verb rollout graf"),
        ("treering export --plane", "export has no --plane"),
        ("KEY=x treering rollout list --group g1 | grep x", None),
    ],
)
def test_a_command_is_judged(line, problem):
    ((_, words), *_) = commands(line)
    assert wrong(words) == problem
