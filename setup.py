"""What pyproject.toml can't say: with COMPILE_TREERING=1 what is hot and small is compiled (`capture.compiled`).

Without it, as in a release, the wheel is one for every machine, and the same in Python serves.
"""

import os

from setuptools import Extension, setup

COMPILE = os.environ.get("COMPILE_TREERING", "") not in ("", "0")

NAMES = ("capture/_digests", "capture/dialects/_plain", "capture/engines/_lane", "capture/engines/_lists")

EXTENSIONS = [Extension(name.replace("/", "."), [f"{name}.c"], depends=["capture/_json.h"]) for name in NAMES]

setup(ext_modules=EXTENSIONS if COMPILE else [])
