"""What pyproject.toml can't say: with COMPILE_TREERING=1 a stream's lane and a reply's lists are compiled.

Without it, as in a release, the wheel is one for every machine, and the same in Python serves.
"""

import os

from setuptools import Extension, setup

COMPILE = os.environ.get("COMPILE_TREERING", "") not in ("", "0")

FOLDER, NAMES = "capture/engines", ("_lane", "_lists")

EXTENSIONS = [
    Extension(f"capture.engines.{name}", [f"{FOLDER}/{name}.c"], depends=[f"{FOLDER}/_json.h"]) for name in NAMES
]

setup(ext_modules=EXTENSIONS if COMPILE else [])
