"""`treering rollout …`: rollouts, through the control plane.

Data goes to stdout, in tables or (`--json`) exactly as the control plane gave it; what is said to a person goes to
stderr.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from capture import terminal
from capture.cli import Given
from capture.client import Client, client, decode, segment
from capture.colour import Paint
from capture.errors import UsageError
from capture.values import plain
from graph import wording

OPENING_S = 150.0
"""Longer than any answer: a registration may have to open a tunnel, which is tried again for a minute."""

LEVELS = ("info", "warn", "error")

_PAIRS = {
    "--label": "split=train",
    "--sampling": "temperature=1.0",
    "--limit": "max_calls=17",
    "--reach": "agent=remote",
    "--per-call": "chatcmpl-1=0.5",
    "--detail": "grader=v2",
}
"""What a flag's pair looks like."""


def new(given: Given) -> int:
    """Register a rollout, or a group of them."""
    asked = given.arguments
    body = _registration(asked)
    if asked["env"] and isinstance(body, dict) and ("n" in body or "rollouts" in body):
        raise UsageError(
            "--env prints one rollout's variables, and this registers several", hint="leave --n out, or --env"
        )
    answer = _client(given).request("POST", "/rollouts", body=body, wait_s=OPENING_S)
    if asked["json"]:
        return _json(answer)
    told = decode(answer)
    made = told.get("rollouts", [told])
    if asked["env"]:
        _out("\n".join(f"export {name}={shlex.quote(value)}" for name, value in made[0]["env"].items()))
        sys.stderr.write(f"rollout {made[0]['id']}\n")
        return 0
    names = ("id", "secret", "tools_secret", "base_url", "tier", "model", "expires_at")
    _out("\n\n".join(terminal.table(("", ""), [(name, one[name]) for name in names]).strip("\n") for one in made))
    sys.stderr.write("The secrets are shown this once.\n")
    return 0


def list_(given: Given) -> int:
    """List rollouts."""
    asked = given.arguments
    names = ("state", "group", "label", "finding", "q", "order", "after", "limit")
    query = {**{name: asked[name] for name in names}, "trouble": 1 if asked["trouble"] else None}
    if query["order"] == "newest":
        # On a command line, the route's own word would be read as a flag.
        query["order"] = "-created"
    answer = _client(given).request("GET", "/rollouts", query=query)
    if asked["json"]:
        return _json(answer)
    page = decode(answer)
    columns = ("id", "group", "state", "tier", "n_calls", "n_sampled_tokens", "reward", "created_at")
    headers = ("id", "group", "state", "tier", ">calls", ">sampled", ">reward", "created")
    _out(terminal.table(headers, [[one[name] for name in columns] for one in page["rollouts"]]))
    if page["next"]:
        sys.stderr.write(f"more: --after {shlex.quote(page['next'])}\n")
    return 0


def show(given: Given) -> int:
    """Show a rollout's summary, after waiting for it if asked to; 1 if what was waited for didn't come."""
    asked = given.arguments
    wait_s = 0.0
    if asked["wait"]:
        wait_s = 60.0 if asked["timeout_s"] is None else asked["timeout_s"]
    elif asked["idle_s"] is not None or asked["timeout_s"] is not None:
        raise UsageError("--idle-s and --timeout-s go with --wait", hint="say what for: --wait closed, or --wait idle")
    query = {name: asked[name] for name in ("wait", "idle_s", "timeout_s")}
    answer = _client(given).request("GET", _path(asked), query=query, wait_s=wait_s)
    if not answer:
        sys.stderr.write(f"not {asked['wait']} after {wait_s:g} s\n")
        return 1
    return _json(answer) if asked["json"] else _summary(decode(answer))


def graph(given: Given) -> int:
    """Draw the forest."""
    asked = given.arguments
    plane, path = _client(given), _path(asked)
    if asked["json"]:
        return _json(plane.request("GET", f"{path}/{'forks' if asked['why'] else 'graph'}"))
    _out(terminal.forest(decode(plane.request("GET", f"{path}/graph")), evidence=asked["evidence"], paint=_paint()))
    if asked["why"] and (told := [*wording.lines(decode(plane.request("GET", f"{path}/forks")))]):
        # Agents' words stand in it.
        _out("\n" + "\n".join(map(terminal.clean, told)))
    return 0


def findings(given: Given) -> int:
    """List findings; 1 if one is at or above `--fail-on`."""
    asked = given.arguments
    answer = _client(given).request("GET", _path(asked) + "/findings")
    found = decode(answer)["findings"]
    if asked["json"]:
        _json(answer)
    else:
        _out(terminal.findings(found, paint=_paint()))
    if asked["fail_on"] is None:
        return 0
    least = LEVELS.index(asked["fail_on"])
    return int(any(LEVELS.index(each["level"]) >= least for each in found))


def sequences(given: Given) -> int:
    """Show the training sequences; in a trainer's own format, print them."""
    asked = given.arguments
    if asked["format"] == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet is no text for a terminal", hint="send it to a file: … > rows.parquet")
    query = {name: asked[name] for name in ("format", "roles", "drift", "threshold", "constrained", "aborted")}
    query["open"] = 1 if asked["open"] else None
    answer = _client(given).request("GET", _path(asked) + "/sequences", query=query)
    if asked["format"] == "parquet":
        sys.stdout.buffer.write(answer)
        return 0
    if asked["json"] or asked["format"] not in (None, "native", "tree"):
        return _json(answer)
    told = decode(answer)
    if "nodes" in told:
        names = ("node", "parent", "call", "kind", "trained", "start", "end")
        marks = (">node", ">parent", ">call", "kind", "trained", ">start", ">end")
        _out(terminal.table(marks, [[node[name] for name in names] for node in told["nodes"]]))
        counted = f"{told['n_nodes']} nodes, {told['n_tokens']:,} tokens"
    else:
        _out(_rows(told["sequences"]))
        counted = f"{told['n_rows']} rows"
        masked = told.get("realign_masked")
        if masked and masked["rows"]:
            counted += f", {masked['rows']} of them for {masked['tokens']:,} tokens behind a drift"
    for left in told["left_out"]:
        _out(f"left out: call {left['call']}: {left['reason']}")
    if empty := told.get("empty"):
        _out(f"{empty['message']}\n{empty['hint']}")
    _out(f"{counted}, {told['n_trained_tokens']:,} trained tokens" + ("" if told["final"] else "; not final"))
    return 0


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    headers = (">row", "conversation", "role", "calls", ">ids", ">trained", ">drifts", "truncated")
    cells = [
        (
            row["row"],
            row["conversation"],
            row["role"],
            _numbers(row["calls"]),
            len(row["input_ids"]),
            row["n_trained_tokens"],
            row["drift_crossed"] or None,
            row["truncated"] or None,
        )
        for row in rows
    ]
    return terminal.table(headers, cells)


def close(given: Given) -> int:
    """Seal a rollout."""
    asked = given.arguments
    wait_s = 30.0 if asked["wait_s"] is None else asked["wait_s"]
    body: dict[str, Any] = {"wait_s": wait_s}
    if asked["reward"] is not None:
        body["reward"] = _reward("--reward", asked["reward"])
    answer = _client(given).request("POST", _path(asked) + "/close", body=body, wait_s=wait_s)
    return _json(answer) if asked["json"] else _summary(decode(answer)["rollout"])


def reward(given: Given) -> int:
    """Attach a reward."""
    asked = given.arguments
    body: dict[str, Any] = {}
    if asked["reward"] is not None:
        body["reward"] = _reward("reward", asked["reward"])
    if asked["per_call"]:
        body["per_call"] = {
            name: _reward("--per-call", text) for name, text in _pairs("--per-call", asked["per_call"]).items()
        }
    if asked["detail"]:
        body["details"] = {name: plain(text) for name, text in _pairs("--detail", asked["detail"]).items()}
    if not body:
        raise UsageError("nothing to attach", hint="give a number, null, --per-call or --detail")
    if asked["force"]:
        body["force"] = True
    answer = _client(given).request("PUT", _path(asked) + "/reward", body=body)
    return _json(answer) if asked["json"] else _summary(decode(answer))


def delete(given: Given) -> int:
    """Remove a rollout."""
    _client(given).request("DELETE", _path(given.arguments))
    sys.stderr.write(f"deleted {given.arguments['id']}\n")
    return 0


def _client(given: Given) -> Client:
    return client(given.settings, given.arguments["url"])


def _paint() -> Paint:
    return Paint(sys.stdout, os.environ)


def _path(asked: Mapping[str, Any]) -> str:
    return f"/rollouts/{segment(asked['id'])}"


def _registration(asked: Mapping[str, Any]) -> Any:
    """Make the body of a registration from flags, or read it whole."""
    given = {name: asked[name] for name in ("id", "n", "group", "model", "require_tier", "ttl_s")}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if asked["label"]:
        body["labels"] = _pairs("--label", asked["label"])
    if asked["task"] is not None:
        body["task"] = {"text": asked["task"]}
    if asked["reach"]:
        body["reach"] = _pairs("--reach", asked["reach"])
    for flag, name in (("sampling", "sampling"), ("limit", "limits")):
        if asked[flag]:
            body[name] = {key: plain(text) for key, text in _pairs(f"--{flag}", asked[flag]).items()}
    if asked["body"] is None:
        return body
    if body:
        raise UsageError("--body is the whole registration", hint="leave the other flags out, or --body")
    try:
        text = sys.stdin.buffer.read() if asked["body"] == "-" else Path(asked["body"]).read_bytes()
        return msgspec.json.decode(text)
    except OSError as error:
        hint = "name a file that you may read, or - for standard input"
        raise UsageError(f"--body: can't read {asked['body']}: {error.strerror}", hint=hint) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = 'write a registration, such as {"id": "r1", "task": {"text": "…"}}; docs/api.md has its fields'
        raise UsageError(f"--body: {asked['body']} holds no JSON: {error}", hint=hint) from error


def _pairs(flag: str, items: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, equals, text = item.rpartition("=") if flag == "--per-call" else item.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag}: {item!r} is no KEY=VALUE", hint=f"write it like {_PAIRS.get(flag, 'key=value')}")
        pairs[name] = text
    return pairs


def _reward(flag: str, text: str) -> float | None:
    if text == "null":
        return None
    try:
        return float(text)
    except ValueError:
        hint = "give a number such as 0.5, or null for ungraded"
        raise UsageError(f"{flag}: {text!r} is neither a number nor null", hint=hint) from None


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(n) for n in numbers)


def _summary(rollout: Mapping[str, Any]) -> int:
    rows = [(name, value) for name, value in rollout.items() if value not in (None, {}, [], "")]
    _out(terminal.table(("", ""), rows).strip("\n"))
    return 0


def _out(text: str) -> None:
    sys.stdout.write(terminal.fit(text, sys.stdout.encoding) + "\n")


def _json(answer: bytes) -> int:
    sys.stdout.write(answer.decode().rstrip("\n") + "\n")
    return 0
