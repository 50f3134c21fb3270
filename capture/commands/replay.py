"""`treering replay`: resume points and seeds, of a stored rollout or of saved ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from capture import replay as saved_rollouts
from capture import resume, terminal
from capture.cli import Given
from capture.client import client, decode, segment
from capture.errors import UsageError
from graph import saved

_WRITABLE = "name a file in a folder that is there and that you may write to"
_OF_SAVED = ("group", "rollout", "kind", "label", "least_reward", "most_reward")


def replay(given: Given) -> int:
    """List a rollout's resume points, print the seed at one, save it, or draw a seed from saved rollouts."""
    asked = given.arguments
    if (asked["id"] is None) == (asked["from"] is None):
        raise UsageError("replay takes a rollout's ID, or --from FOLDER", hint="treering replay --help says more")
    if asked["from"] is not None:
        if asked["at"] is not None or asked["save"] is not None:
            raise UsageError("--at and --save go with a rollout's ID", hint="give the ID in place of --from")
        if asked["group"] is None:
            raise UsageError("--from takes --group NAME", hint="name the group: a seed is drawn once for each")
        return _write(asked, _drawn(asked))
    if wrong := [name for name in _OF_SAVED if asked[name] is not None]:
        hint = "give --from FOLDER in place of the ID"
        raise UsageError(f"--{wrong[0].replace('_', '-')} goes with --from FOLDER", hint=hint)
    if asked["at"] is None and (asked["instruction"] is not None or asked["out"] is not None):
        raise UsageError("--instruction and --out go with --at", hint="name a point: --at K, or --at whole")
    plane = client(given.settings, asked["url"])
    path = f"/rollouts/{segment(asked['id'])}/replay"
    if asked["save"] is not None:
        line = msgspec.json.decode(plane.request("GET", path, query={"saved": 1}), type=saved.Saved)
        try:
            saved_rollouts.append(Path(asked["save"]), line)
        except OSError as error:
            raise UsageError(f"--save: {error}", hint=_WRITABLE) from error
        sys.stderr.write(f"{line.rollout}: {len(line.points)} points\n")
    if asked["at"] is not None:
        seed = plane.request("GET", f"{path}/{segment(asked['at'])}", query={"instruction": asked["instruction"]})
        return _write(asked, seed)
    if asked["save"] is None:
        answer = plane.request("GET", path)
        sys.stdout.write(answer.decode() + "\n" if asked["json"] else _table(decode(answer)))
    return 0


def _drawn(asked: dict[str, Any]) -> bytes:
    labels = None
    if asked["label"] is not None:
        pairs = [text.partition("=") for text in asked["label"]]
        if any(not sign for _, sign, _ in pairs):
            raise UsageError("--label is no KEY=VALUE", hint="write it like --label split=train")
        labels = tuple((name, value) for name, _, value in pairs)
    try:
        filter_ = saved_rollouts.Filter(
            rollouts=None if asked["rollout"] is None else tuple(asked["rollout"]),
            kinds=None if asked["kind"] is None else tuple(asked["kind"]),
            labels=labels,
            least_reward=asked["least_reward"],
            most_reward=asked["most_reward"],
        )
    except ValueError as error:
        raise UsageError(f"--kind: {error}", hint="docs/replay.md has the kinds of points") from error
    if not Path(asked["from"]).is_dir():
        hint = "save rollouts there first: treering replay ID --save FOLDER/FILE.jsonl"
        raise UsageError(f"--from: there is no folder {asked['from']}", hint=hint)
    buffer = saved_rollouts.Buffer(Path(asked["from"]), filter=filter_)
    return msgspec.json.encode(resume.form(buffer.draw(asked["group"], instruction=asked["instruction"])))


def _write(asked: dict[str, Any], seed: bytes) -> int:
    """Write a seed to a file, which has no limit of size as an environment variable has, or to stdout."""
    if asked["out"] is None:
        sys.stdout.write(seed.decode() + "\n")
        return 0
    try:
        Path(asked["out"]).write_bytes(seed + b"\n")
    except OSError as error:
        raise UsageError(f"--out: {error}", hint=_WRITABLE) from error
    told = decode(seed)
    sys.stderr.write(f"{told['rollout']} at {told['k']}: {len(told['messages'])} messages, awaits {told['awaits']}\n")
    return 0


def _table(told: dict[str, Any]) -> str:
    rows = [
        (str(each["k"]), ", ".join(each["kinds"]), each["call"], each["n_messages"], each["awaits"])
        for each in told["points"]
    ]
    return terminal.table((">k", "kinds", ">call", ">messages", "awaits"), rows) + "\n"
