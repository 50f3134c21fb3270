"""examples/broken.py as a process that stays: an appliance on which it has made its twelve rollouts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.examples.runs import LIMIT_S, environment
from tests.served import ROOT

SCRIPT = ROOT / "examples" / "broken.py"
RULES = ROOT / "examples" / "broken.toml"

BROKEN = {
    "files": "files-1", "greeting": "greeting-0", "report": "report-1", "changelog": "changelog-0", "pages": "pages-1",
    "callers": "callers-0",
}  # fmt: skip
HEALTHY = {group: f"{group}-{1 - int(name[-1])}" for group, name in BROKEN.items()}


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start it as a stranger does."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words], cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


class Made:
    """An appliance on which the script has made its twelve, as it left it."""

    def __init__(self, folder: Path) -> None:
        self.process = start(folder, "--serve", "--quiz")
        assert self.process.stdout is not None
        self.printed = ""
        for line in self.process.stdout:
            self.printed += line
            if line.startswith("Ctrl-C"):
                break
        found = re.search(r"(http://127\.0\.0\.1:\d+)/#key=(\S+)", self.printed)
        if found is None:
            pytest.fail(f"{self.printed}{self.process.communicate(timeout=LIMIT_S)}")
        self.url, self.key = found.groups()

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def findings(self, rollout: str) -> dict[str, dict[str, Any]]:
        return {each["code"]: each for each in self.get(f"/rollouts/{rollout}/findings")["findings"]}

    def told(self, group: str) -> dict[str, dict[str, Any]]:
        """What is said of the broken one of a group and not of its twin."""
        twin = self.findings(HEALTHY[group])
        return {code: each for code, each in self.findings(BROKEN[group]).items() if code not in twin}

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode
