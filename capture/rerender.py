"""Renders messages to ids on this machine, with transformers' `apply_chat_template`.

Nothing that Treering captures comes from here. It is the other way of getting a turn's ids, that of a trainer which
kept the messages: `treering drift --tokenizer` and `bin/bench drift` measure how often it gives what the engine had.

Rules
1. It renders as such a trainer would: the request's messages, tools and template arguments as they stand, handed to
   `apply_chat_template` of transformers 4.51 or later, and no word mended.
2. transformers is imported when the first tokeniser is read, and nothing else is imported that the standard library
   lacks: an environment that has transformers and nothing of Treering's can run this file.
3. Nothing is fetched: a tokeniser is a folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class RefusedError(Exception):
    """The template refused the messages, or broke on them; the message holds its own words."""


class MissingError(Exception):
    """There is no transformers, or no tokeniser with a chat template in the folder; the message is a sentence."""


def decoder(folder: Path) -> Callable[[Sequence[int]], list[str]]:
    """Return what gives the text of each id by itself, of the tokeniser in `folder`; it needs no template.

    Raises `MissingError`.
    """
    tokenizer = _read(folder)
    return lambda ids: [str(tokenizer.decode([one])) for one in ids]


class Rerenderer:
    """A tokeniser with its chat template."""

    def __init__(self, folder: Path, *, template: str | None = None) -> None:
        """Read the tokeniser in `folder`; `template` is Jinja text, used in the place of its own.

        Raises `MissingError`.
        """
        self._tokenizer = _read(folder)
        if template is not None:
            self._tokenizer.chat_template = template
        if not self._tokenizer.chat_template:
            raise MissingError(f"the tokeniser in {folder} has no chat template")

    def __repr__(self) -> str:
        return f"<Rerenderer {type(self._tokenizer).__name__}, {len(self._tokenizer)} ids>"

    @property
    def template(self) -> str:
        """The template's text; of several, the one that is used without tools."""
        found = self._tokenizer.chat_template
        return found if isinstance(found, str) else str(found.get("default", next(iter(found.values()))))

    def add_special(self, tokens: Sequence[str], **named: str) -> None:
        """Make tokens special, such as an end of a turn; `named` are tokens by their role (`bos_token`)."""
        self._tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
        if named:
            self._tokenizer.add_special_tokens(named)

    def text(
        self,
        messages: Sequence[Json],
        *,
        tools: Sequence[Json] | None = None,
        closed: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Render to text; `closed`: without a generation prompt. Raises `RefusedError`."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) if tools else None,
                    tokenize=False,
                    add_generation_prompt=not closed,
                    **(arguments or {}),
                )
            )
        except Exception as error:  # a template is a program of somebody else's: it raises what it likes
            raise RefusedError(_first_line(error)) from error

    def encode(self, text: str) -> list[int]:
        """Tokenise text as it stands, special tokens in it as what they are, and none added."""
        return [int(one) for one in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each id by itself."""
        return [str(self._tokenizer.decode([one])) for one in ids]

    def ids(
        self,
        messages: Sequence[Json],
        *,
        tools: Sequence[Json] | None = None,
        closed: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render to ids; as `text`."""
        return self.encode(self.text(messages, tools=tools, closed=closed, arguments=arguments))


def _read(folder: Path) -> Any:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise MissingError("transformers is not installed here") from error
    if not folder.is_dir():
        raise MissingError(f"{folder} is no folder")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MissingError(f"{folder} holds no tokeniser: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
