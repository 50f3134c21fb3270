"""Use Treering as somebody who has installed it: run by a fresh environment's Python, away from any clone.

    python -W error packaged.py FOLDER       prints {"modules", "unmet", "files", "version", …} as JSON

The standard library and what the environment has; nothing of the tests.
"""

import importlib
import importlib.metadata
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOMS = ("capture", "graph", "tunnel", "treering_client")
START_S = 60


def modules():
    """Import every module of ours; return how many, and those that need what is not here."""
    count, unmet = 0, {}
    for room in ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.walk_packages(package.__path__, f"{room}."):
            # The programs among them end the process when they are imported as such.
            if found.name.rpartition(".")[2] in ("__main__",):
                continue
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                unmet[found.name] = error.name
            count += 1
    return count, unmet


def rollout(folder):
    """Serve with the scripted engine, have one call of one rollout, and read it back as a trainer does."""
    from treering_client import Client

    program = Path(sys.executable).with_name("treering")
    words = [
        "--engine",
        "scripted",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--log-level",
        "warning",
    ]
    environ = {**os.environ, "TREERING_ADMIN_KEY": "a-key", "PYTHONWARNINGS": "error"}
    served = subprocess.Popen([program, "serve", *words], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        said = [served.stderr.readline() for _ in range(3)]
        control = re.match(r"control\s+(\S+) ", said[2]).group(1)
        with Client(control, "a-key") as client, client.rollout(task="Say something.") as one:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Say something."}]}).encode()
            request = urllib.request.Request(
                one.env["OPENAI_BASE_URL"] + "/chat/completions",
                body,
                {"Content-Type": "application/json", "Authorization": f"Bearer {one.env['OPENAI_API_KEY']}"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                reply = json.load(answer)
            rows = one.sequences(format="native")
        with urllib.request.urlopen(control + "/", timeout=30) as answer:
            page = answer.read().decode()
    finally:
        served.send_signal(signal.SIGTERM)
        rest = served.communicate(timeout=START_S)[1]
    return {
        "said": said,
        "rest": rest,
        "code": served.returncode,
        "reply": reply["choices"][0]["message"]["content"],
        "trained": rows["n_trained_tokens"],
        "page": page,
    }


def main(folder):
    """Print what was found."""
    count, unmet = modules()
    told = {
        "python": "{}.{}".format(*sys.version_info[:2]),
        "modules": count,
        "unmet": unmet,
        "version": importlib.metadata.version("treering"),
        "client": importlib.import_module("treering_client").__version__,
        "from": [str(Path(importlib.import_module(room).__file__).parent.parent) for room in ROOMS],
        "files": sorted(str(file) for file in importlib.metadata.files("treering")),
        **rollout(folder),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
