"""A sample rollout: a small agent repairs a bug against the scripted engine, and the forest of its calls is printed.

    bin/demo [--json] [--serve]

The agent (bin/demo_agent.py) says of no call what it is for, and neither does the registration. Five kinds of calls
must be told apart all the same:

1. *main*: a loop with tools.
2. *title*: a call without tools beside the main loop; its user message quotes the task.
3. *subagent*: a tool call of main starts a second loop, whose last reply is the tool's result.
4. *retry*: the connection breaks in the middle of a streamed reply, and the same request is sent again.
5. *compaction*: a summary is asked for over the transcript, without tools; then main goes on from the summary alone.

Afterwards the ids that the agent saw are looked up in the graph: the exit code is 1 if one of the five has another
name there. Agent and demo speak HTTP and import nothing of Treering, which runs as a process of its own, on free ports
of the loopback. Everything lives in one temporary folder, and goes with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import openai

ROOT = Path(__file__).resolve().parent.parent
# Run as a script, Python looks in bin/ and not in the clone.
sys.path.insert(0, str(ROOT))

from bin.demo_agent import FILES, Agent, AgentError, run_tests  # noqa: E402 -- found by the line above

RULES = ROOT / "bin" / "demo_rules.toml"
TREERING = (sys.executable, "-m", "capture.cli")

# The appliance starts in a second, on a busy machine in ten; it stops in the time that it gives running calls.
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
# One answer of the control plane or of the model, and one verb of the command line.
ANSWER_LIMIT_S = 60.0

# Of the closing paragraph, in columns.
WIDTH = 100


class DemoError(Exception):
    """The demo can't go on; the message says why."""


def say(text: str) -> None:
    """Print a line for a person; data goes to stdout."""
    print(f"bin/demo: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Appliance:
    """A running appliance as its callers see it: the control plane's address, and a file with the key."""

    url: str
    key_file: Path
    log: Path

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the control plane; return the answer's JSON."""
        headers = {"Authorization": f"Bearer {self.key_file.read_text().strip()}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)  # noqa: S310 -- it is our own http address
        # Whatever proxy the environment names, this machine's loopback is reached without it.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=ANSWER_LIMIT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise DemoError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error

    def show(self, *words: str) -> None:
        """Let `treering WORDS` print what it has to say about it."""
        argv = [*TREERING, *words, "--url", self.url, "--admin-key-file", str(self.key_file)]
        folder, env = self.log.parent, clean_environment()
        if subprocess.run(argv, cwd=folder, env=env, timeout=ANSWER_LIMIT_S, check=False).returncode:
            raise DemoError(f"treering {' '.join(words)} failed")


def clean_environment() -> dict[str, str]:
    """Return the environment without the settings of another appliance."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")}


@contextlib.contextmanager
def appliance(folder: Path) -> Iterator[Appliance]:
    """Run the appliance on the scripted engine, on free ports, with its store in a folder."""
    store, log = folder / "treering.db", folder / "treering.log"
    argv = [*TREERING, "serve", "--engine", f"scripted={RULES}", "--store", f"sqlite:///{store}"]
    argv += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--shutdown-timeout", "2"]
    with log.open("wb") as out:
        # A session of its own: Ctrl-C ends the demo, and the demo ends the appliance.
        process = subprocess.Popen(
            argv, cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL, stderr=out, start_new_session=True
        )
    try:
        say("Treering is starting on the scripted engine …")
        url = wait_for_address(process, log)
        yield Appliance(url=url, key_file=store.with_name("treering.db.key"), log=log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the control plane's address from the appliance's first lines."""
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        told = log.read_text(errors="replace")
        found = re.search(r"^control\s+(http://\S+)", told, re.MULTILINE)
        if found:
            return found[1]
        if process.poll() is not None:
            raise DemoError(f"the appliance ended with exit code {process.returncode}:\n{told.strip()}")
        time.sleep(0.05)
    raise DemoError(f"the appliance had not started after {START_LIMIT_S:.0f} s")


# What the graph must say


@dataclass(frozen=True, kw_only=True)
class Told:
    """The graph's word on one reply: its call, and the conversation that it belongs to (empty where it is in none)."""

    call: Mapping[str, Any]
    conversation: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its role, with the kind."""
        kind = self.conversation.get("kind")
        return f"{self.conversation.get('role', 'of no conversation')}{f' {kind}' if kind else ''}"


def look_up(graph: Mapping[str, Any], seen: Mapping[str, Sequence[str]]) -> dict[str, list[Told]]:
    """Find the replies that the agent saw in the graph, by their ids; DemoError if one isn't there."""
    calls = {call["id"]: call for call in graph["calls"]}
    conversations = {each["n"]: each for each in graph["conversations"]}
    missing = [f"{purpose} {ident}" for purpose, idents in seen.items() for ident in idents if ident not in calls]
    if missing:
        raise DemoError(f"the graph lacks replies that the agent saw: {', '.join(missing)}")
    return {
        purpose: [
            Told(call=call, conversation=conversations.get(call["conversation"], {}))
            for call in (calls[ident] for ident in idents)
        ]
        for purpose, idents in seen.items()
    }


def misnamed(graph: Mapping[str, Any], told: Mapping[str, Sequence[Told]]) -> list[str]:
    """Say, for each of the five kinds, what the graph calls otherwise than the agent knows it to be."""
    problems = []

    def check(kind: str, each: Told, *, right: bool, found: object) -> None:
        if not right:
            problems.append(f"{kind}: call {each.call['n']} is {found}")

    for each in (each for purpose in ("main", "broken", "retried", "compacted") for each in told[purpose]):
        check("main", each, right=each.name == "main", found=each.name)
    for each in told["title"]:
        check("title", each, right=each.name == "auxiliary title", found=each.name)
    (asked,) = told["asked"]
    for each in told["subagent"]:
        check("subagent", each, right=each.name == "subagent", found=each.name)
        parent = each.conversation.get("parent_call")
        check("subagent", each, right=parent == asked.call["n"], found=f"started by {parent}, not {asked.call['n']}")
    (broken,), (retried,) = told["broken"], told["retried"]
    check("retry", broken, right=broken.call["status"] == "aborted", found=broken.call["status"])
    children = [broken.call["n"], retried.call["n"]]
    forks = [fork for fork in graph["forks"] if fork["children"] == children and fork["kept"] == children[1]]
    kinds = ", ".join(fork["kind"] for fork in forks) or "nothing"
    check("retry", retried, right=kinds == "retry", found=f"with call {children[0]} a fork of kind {kinds}")
    (compacted,), (summary,) = told["compacted"], told["summary"]
    check(
        "compaction",
        compacted,
        right=compacted.call["link"] == "compaction",
        found=f"linked by {compacted.call['link']}",
    )
    carried = compacted.call["carries"]
    check("compaction", compacted, right=carried == [summary.call["n"]], found=f"carrying {carried}")
    return problems


def closing_words(graph: Mapping[str, Any], sequences: Mapping[str, Any], told: Mapping[str, Sequence[Told]]) -> str:
    """Say in one paragraph what was seen."""

    def numbers(purpose: str) -> str:
        found = [str(each.call["n"]) for each in told[purpose]]
        return f"{'calls' if len(found) > 1 else 'call'} {' and '.join(found)}"

    transitions, exact, broken = graph["drift"]["transitions"], graph["drift"]["exact"], told["broken"][0].call
    drifted = [each for purpose in ("main", "broken", "retried") for each in told[purpose] if each.call["drift"]]
    drift = ""
    if drifted:
        causes = " and ".join(sorted({each.call["drift"]["cause"] for each in drifted}))
        verb = "drifts" if len(drifted) == 1 else "drift"
        drift = f" {len(drifted)} {verb} ({causes}), since agents send text back, and not tokens."
    return (
        f"What was seen: one agent with one key made {len(graph['calls'])} calls, and said of none what it was for. "
        f"The loop with tools is main; {numbers('title')} named the conversation beside it; {numbers('subagent')} "
        f"are a subagent, started by a tool in {numbers('asked')}. The connection broke in {numbers('broken')} "
        f"after {broken['n_sampled']} tokens, and {numbers('retried')} is its retry. {numbers('summary').capitalize()} "
        f"summed up the conversation, and {numbers('compacted')} goes on from that summary. Of {transitions} prompts "
        f"of main that continue an earlier call, {exact} begin with exactly the tokens that it read and "
        f"sampled.{drift} So the {sequences['n_trained_tokens']:,} tokens to train on lie in {sequences['n_rows']} "
        f"rows, each of them exactly what the engine scored, with the reward {sequences['reward']}."
    )


def look_around(found: Appliance, rollout: str) -> str:
    """Return the lines for a person who wants to see more of a running appliance."""
    paths = ("/rollouts", *(f"/rollouts/{rollout}/{each}" for each in ("graph", "findings", "sequences", "calls/0")))
    lines = [
        # The key stands behind `#`, which no browser sends to a server.
        f"The page is at {found.url}/#key={found.key_file.read_text().strip()}\n",
        f"The control plane is at {found.url}, its log in {found.log}. Ctrl-C ends it.\n",
        f"  KEY=$(cat {found.key_file})",
        *(f'  curl -sH "Authorization: Bearer $KEY" {found.url}{path}' for path in paths),
        f"  TREERING_ADMIN_KEY=$KEY bin/treering rollout graph {rollout} --evidence --url {found.url}",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 1 if one of the five kinds isn't named rightly or something failed, else 0."""
    parser = argparse.ArgumentParser(prog="bin/demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help='Print one object, {"graph", "sequences"}, to stdout.')
    parser.add_argument("--serve", action="store_true", help="Leave it running, and print where to look around.")
    asked = parser.parse_args(argv)
    # Ended by a signal, it stops the appliance and takes its folder away, as at its ordinary end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    people = sys.stderr if asked.json else sys.stdout
    try:
        with tempfile.TemporaryDirectory(prefix="treering-demo-") as folder, appliance(Path(folder)) as found:
            return run(found, Path(folder), asked, people)
    except (DemoError, AgentError, openai.OpenAIError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def run(found: Appliance, folder: Path, asked: argparse.Namespace, people: TextIO) -> int:
    """Register a rollout, let the agent work, close it with a reward, and print what the graph says."""
    # No task's text and no hints: what each call was for is for the graph to find.
    rollout = found.call("POST", "/rollouts", {})
    work = (folder / "work").resolve()
    work.mkdir()
    for name, text in FILES.items():
        (work / name).write_text(text)
    with openai.OpenAI(
        base_url=rollout["base_url"],
        api_key=rollout["secret"],
        timeout=ANSWER_LIMIT_S,
        # Nothing is tried again behind the agent's back, and no proxy stands between.
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        say("an agent is at work through it …")
        agent = Agent(client=client, model=rollout["model"], folder=work)
        agent.run()
    path = f"/rollouts/{rollout['id']}"
    found.call("POST", f"{path}/close", {"reward": float(run_tests(work)[0])})
    graph, sequences = found.call("GET", f"{path}/graph"), found.call("GET", f"{path}/sequences")
    if asked.json:
        print(json.dumps({"graph": graph, "sequences": sequences}), flush=True)
    else:
        for verb in ("graph", "findings", "sequences"):
            found.show("rollout", verb, rollout["id"])
            print(flush=True)
    told = look_up(graph, agent.seen)
    problems = misnamed(graph, told)
    for problem in problems:
        say(f"not named rightly: {problem}")
    if not problems:
        print(textwrap.fill(closing_words(graph, sequences, told), WIDTH), file=people, flush=True)
    if asked.serve:
        print(f"\n{look_around(found, rollout['id'])}", file=people, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
