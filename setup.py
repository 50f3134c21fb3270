"""What pyproject.toml can't say: with COMPILE_TREERING=1 the lane of a stream's tokens is compiled.

Without it, as in a release, the wheel is one for every machine, and the lane in Python serves.
"""

import os

from setuptools import Extension, setup

COMPILE = os.environ.get("COMPILE_TREERING", "") not in ("", "0")

setup(ext_modules=[Extension("capture.engines._lane", ["capture/engines/_lane.c"])] if COMPILE else [])
