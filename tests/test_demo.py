"""bin/demo, run as a person runs it: what it prints, what it makes of five kinds of calls, what it leaves behind."""

import ast
import contextlib
import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bin import demo_agent as agent
from bin import demo_rollout as demo

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "bin" / "demo_rollout.py"
LIMIT_S = 100

PROGRESS = [
    "bin/demo: Treering is starting on the scripted engine …",
    "bin/demo: an agent is at work through it …",
]


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start the demo with `folder` as the place for all that is temporary, as the environment of a stranger has it."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    # Another appliance's settings, and a proxy that nobody listens on: neither is the demo's.
    env |= {"TREERING_STORE": "sqlite:///other.db", "HTTP_PROXY": "http://127.0.0.1:9", "OPENAI_BASE_URL": "http://no"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the demo to its end."""
    with start(folder, *words) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except BaseException:
            process.terminate()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def processes_in(folder: Path) -> list[str]:
    """Return the processes that name a folder in their command line, as the appliance does with its store."""
    if Path("/proc/self/cmdline").exists():
        running = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended since
                running.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    else:
        listed = subprocess.run(["ps", "-axww", "-o", "args="], capture_output=True, text=True, check=True)
        running = listed.stdout.splitlines()
    return [line for line in running if f"{folder}/" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(folder: Path) -> "subprocess.CompletedProcess[str]":
    return run(folder, "--json")


@pytest.fixture(scope="module")
def graph(done) -> Any:
    return json.loads(done.stdout)["graph"]


@pytest.fixture(scope="module")
def sequences(done) -> Any:
    return json.loads(done.stdout)["sequences"]


def conversation(graph: Any, role: str, kind: str | None = None) -> Any:
    (found,) = [each for each in graph["conversations"] if (each["role"], each["kind"]) == (role, kind)]
    return found


def calls_of(graph: Any, each: Any) -> list[Any]:
    return [graph["calls"][n] for n in each["calls"]]


def test_json_is_one_object_and_nothing_else(done):
    assert (done.returncode, done.stderr.splitlines()[:2]) == (0, PROGRESS)
    assert list(json.loads(done.stdout)) == ["graph", "sequences"]


def test_main_is_the_loop_with_tools(graph):
    # Five turns, one of them tried twice, and the last after the summary.
    main = conversation(graph, "main")
    assert [call["finish_reason"] for call in calls_of(graph, main)] == [
        "tool_calls",
        "tool_calls",
        "tool_calls",
        None,
        "tool_calls",
        "tool_calls",
        "stop",
    ]
    assert main["trainable"]
    assert main["parent_call"] is None


def test_title_is_auxiliary(graph):
    title = conversation(graph, "auxiliary", "title")
    (call,) = calls_of(graph, title)
    assert (call["link"], call["status"], title["trainable"]) == ("root", "complete", False)


def test_title_ran_beside_main(graph):
    (title,), main = conversation(graph, "auxiliary", "title")["calls"], conversation(graph, "main")
    assert (title, main["root"]) == (0, 1)


def test_subagent_names_the_call_that_started_it(graph):
    subagent, main = conversation(graph, "subagent"), conversation(graph, "main")
    assert [call["finish_reason"] for call in calls_of(graph, subagent)] == ["tool_calls", "stop"]
    assert subagent["parent_call"] == main["calls"][2]
    assert {"prompt_in_arguments", "reply_in_result"} <= {each["rule"] for each in subagent["evidence"]}


def test_retry_is_a_fork_of_both_tries(graph):
    (fork,) = [each for each in graph["forks"] if each["kind"] == "retry"]
    broken, retried = (graph["calls"][n] for n in fork["children"])
    assert (broken["status"], broken["delivered"], broken["discarded"]) == ("aborted", False, True)
    assert (retried["status"], retried["delivered"], retried["discarded"]) == ("complete", True, False)
    assert broken["parent"] == retried["parent"] == fork["at"]
    assert (broken["fork"], retried["fork"], fork["kept"]) == ("retry", "retry", retried["n"])
    assert broken["n_sampled"] > 0
    assert broken["id"] != retried["id"]


def test_compaction_continues_main_through_the_summary(graph):
    (compacted,) = [call for call in graph["calls"] if call["link"] == "compaction"]
    summary, main = conversation(graph, "auxiliary", "summary"), conversation(graph, "main")
    assert compacted["carries"] == summary["calls"]
    assert compacted["conversation"] == main["n"]
    (fork,) = [each for each in graph["forks"] if each["kind"] == "retry"]
    assert compacted["parent"] == fork["kept"]


def test_nothing_else_was_called(graph):
    roles = Counter((each["role"], each["kind"]) for each in graph["conversations"])
    assert set(roles.values()) == {1}
    assert len(graph["calls"]) == sum(len(each["calls"]) for each in graph["conversations"]) == 11


def test_no_hint_was_given(graph):
    # The client's own counter of tries stays at 0: it was the agent that tried again.
    assert [call["hints"] for call in graph["calls"]] == [{"x-stainless-retry-count": "0"}] * 11


def test_every_sampled_token_of_main_is_trained_once(graph, sequences):
    left_out = {each["call"]: each["reason"] for each in sequences["left_out"]}
    main = calls_of(graph, conversation(graph, "main"))
    wanted = {call["n"]: call["n_sampled"] for call in main if call["n"] not in left_out}
    trained: Counter[int] = Counter()
    for row in sequences["sequences"]:
        assert len(row["input_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        assert [each is not None for each in row["logprobs"]] == [bool(each) for each in row["loss_mask"]]
        for span in row["spans"]:
            masked = sum(row["loss_mask"][span["start"] : span["end"]])
            if masked:
                assert span["kind"] == "sampled"
                trained[span["call"]] += masked
        assert row["n_trained_tokens"] == sum(row["loss_mask"])
    assert trained == wanted
    assert sequences["n_trained_tokens"] == sum(wanted.values())
    # Of main, the broken try alone is left out.
    assert {n for n in left_out if n in {call["n"] for call in main}} == {
        call["n"] for call in main if call["status"] == "aborted"
    }


def test_reward_is_of_the_tests_that_pass(graph, sequences):
    assert (graph["rollout"]["state"], graph["rollout"]["reward"]) == ("closed", 1.0)
    assert (sequences["final"], sequences["reward"]) == (True, 1.0)


def test_nothing_is_left_behind(folder, done):
    assert list(folder.iterdir()) == []
    assert processes_in(folder) == []


def test_people_get_the_forest_the_findings_and_the_sequences(folder):
    told = run(folder)
    assert (told.returncode, told.stderr.splitlines()) == (0, PROGRESS)
    assert re.search(r"^\W+ 0 +(main|auxiliary title) +root ", told.stdout, re.MULTILINE)
    assert re.search(r"^level +code +calls +message$", told.stdout, re.MULTILINE)
    assert re.search(r"^\d+ rows, [\d,]+ trained tokens$", told.stdout, re.MULTILINE)
    assert "What was seen:" in told.stdout


def test_serve_stays_until_it_is_interrupted(folder):
    with start(folder, "--json", "--serve") as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            graph = json.loads(process.stdout.readline())["graph"]
            told: list[str] = []
            while "bin/treering" not in "".join(told):
                told.append(process.stderr.readline())
                assert told[-1], "it ended before it was interrupted"
            # The lines work as they are printed.
            lines = [
                line.replace("curl -s", "curl -sf") for line in told if line.startswith("  ") and "bin/" not in line
            ]
            looked = subprocess.run(
                ["sh", "-ec", "echo\n".join(lines)], capture_output=True, text=True, timeout=LIMIT_S, check=True
            )
            answers = [json.loads(line) for line in looked.stdout.split("\n") if line]
            assert answers[1] == graph
            assert [next(iter(each)) for each in answers] == ["rollouts", "version", "findings", "version", "n"]
            page = re.search(r"^The page is at (http://127\.0\.0\.1:\d+/)#key=\S+$", "".join(told), re.MULTILINE)
            assert page, told
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(page[1], timeout=LIMIT_S) as answer:
                assert answer.headers["Content-Type"].startswith("text/html")
            assert len(processes_in(folder)) == 1
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert list(folder.iterdir()) == []
    assert processes_in(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_early_end_leaves_nothing_behind(folder, number):
    with start(folder, "--json") as process:
        assert process.stderr is not None
        assert "starting" in process.stderr.readline()
        # It is said before the appliance's process is there to be seen.
        end = time.monotonic() + LIMIT_S
        while len(processes_in(folder)) != 1:
            assert time.monotonic() < end
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert list(folder.iterdir()) == []
    assert processes_in(folder) == []


def test_the_demo_imports_nothing_of_treering():
    for script in (agent, demo):
        assert script.__file__ is not None
        tree = ast.parse(Path(script.__file__).read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert "openai" in imported
        assert imported.isdisjoint({"capture", "graph", "tunnel"})
        assert not any(name.startswith(("capture.", "graph.", "tunnel.")) for name in imported)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def test_engine_and_graph_know_nothing_of_the_demo():
    code = "\n".join(path.read_text() for room in ("capture", "graph") for path in (ROOT / room).rglob("*.py"))
    names = {each["function"]["name"] for each in agent.MAIN_TOOLS} | {*agent.FILES, "shares(", "demo_rollout"}
    said = {agent.TASK, agent.MAIN_SYSTEM, agent.HELPER_SYSTEM, agent.TITLE_SYSTEM, agent.SUMMARY_SYSTEM}
    rules = tomllib.loads((ROOT / "bin" / "demo_rules.toml").read_text())
    said |= {line for text in texts(rules) for line in text.splitlines() if len(line.split()) >= 4}
    assert len(said) > 12
    assert [each for each in sorted(names | said) if each in code] == []


def seen_in(graph: Any) -> dict[str, list[str]]:
    """Return what the agent saw, read back from a graph in which all is named rightly."""
    main = calls_of(graph, conversation(graph, "main"))
    (fork,) = [each for each in graph["forks"] if each["kind"] == "retry"]
    kinds = {call["n"]: "compacted" for call in main if call["link"] == "compaction"}
    kinds |= dict(zip(fork["children"], ("broken", "retried"), strict=True))
    found: dict[str, list[str]] = {"asked": [main[2]["id"]]}
    for call in main:
        found.setdefault(kinds.get(call["n"], "main"), []).append(call["id"])
    for name, kind in (("title", "title"), ("summary", "summary")):
        found[name] = [call["id"] for call in calls_of(graph, conversation(graph, "auxiliary", kind))]
    found["subagent"] = [call["id"] for call in calls_of(graph, conversation(graph, "subagent"))]
    return found


def test_all_that_is_named_rightly_passes(graph):
    assert demo.misnamed(graph, demo.look_up(graph, seen_in(graph))) == []


def misname_main(graph):
    conversation(graph, "main")["role"] = "subagent"


def misname_title(graph):
    conversation(graph, "auxiliary", "title")["kind"] = "other"


def misname_subagent(graph):
    conversation(graph, "subagent")["role"] = "auxiliary"


def orphan_subagent(graph):
    conversation(graph, "subagent")["parent_call"] = None


def misname_fork(graph):
    (fork,) = [each for each in graph["forks"] if each["kind"] == "retry"]
    fork["kind"] = "branch"


def lose_fork(graph):
    graph["forks"].clear()


def complete_broken(graph):
    (broken,) = [call for call in graph["calls"] if call["status"] == "aborted"]
    broken["status"] = "complete"


def misname_compaction(graph):
    (compacted,) = [call for call in graph["calls"] if call["link"] == "compaction"]
    compacted["link"] = "drift"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (misname_main, "main"),
        (misname_title, "title"),
        (misname_subagent, "subagent"),
        (orphan_subagent, "subagent"),
        (misname_fork, "retry"),
        (lose_fork, "retry"),
        (complete_broken, "retry"),
        (misname_compaction, "compaction"),
    ],
)
def test_a_misnamed_kind_is_said(graph, change, kind):
    changed, seen = copy.deepcopy(graph), seen_in(graph)
    change(changed)
    problems = demo.misnamed(changed, demo.look_up(changed, seen))
    assert {problem.partition(":")[0] for problem in problems} == {kind}


def test_a_lost_call_is_said(graph):
    changed, seen = copy.deepcopy(graph), seen_in(graph)
    changed["calls"].pop()
    with pytest.raises(demo.DemoError, match="lacks replies"):
        demo.look_up(changed, seen)


def test_a_misnamed_kind_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(demo, "misnamed", lambda graph, told: ["title: call 0 is main"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = demo.main(["--json"])
    finally:
        signal.signal(signal.SIGTERM, before)
    told = capsys.readouterr()
    assert code == 1
    assert told.err.splitlines() == [*PROGRESS, "bin/demo: not named rightly: title: call 0 is main"]
    assert json.loads(told.out)["graph"]["calls"]
