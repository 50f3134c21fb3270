"""Rendering on this machine: what is handed to transformers, and what is said where there is none."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from capture.rerender import MissingError, RefusedError, Rerenderer


class Tokenizer:
    def __init__(self, template="{{ messages }}"):
        self.chat_template = template
        self.asked = []
        self.special = []

    def __len__(self):
        return 3

    def apply_chat_template(self, messages, **how):
        self.asked.append((messages, how))
        if not messages:
            raise IndexError("list index out of range\nand more")
        return "text"

    def __call__(self, text, *, add_special_tokens):
        assert add_special_tokens is False
        return {"input_ids": [ord(char) for char in text]}

    def add_special_tokens(self, named):
        self.special.append(named)


@pytest.fixture
def install(monkeypatch):
    def install(found):
        def read(folder, *, local_files_only):
            if isinstance(found, Exception):
                raise found
            return found

        auto = SimpleNamespace(from_pretrained=read)
        monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=auto))

    return install


def test_it_renders_what_it_is_given(install, tmp_path):
    tokenizer = Tokenizer()
    install(tokenizer)
    one = Rerenderer(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert one.ids(messages, tools=[], arguments={"enable_thinking": False}) == [ord(char) for char in "text"]
    assert tokenizer.asked == [
        (messages, {"tools": None, "tokenize": False, "add_generation_prompt": True, "enable_thinking": False})
    ]
    one.text(messages, closed=True)
    assert tokenizer.asked[-1][1]["add_generation_prompt"] is False
    assert one.template == "{{ messages }}"


def test_what_a_template_raises_is_a_refusal(install, tmp_path):
    install(Tokenizer())
    with pytest.raises(RefusedError, match=r"^list index out of range$"):
        Rerenderer(tmp_path).ids([])


def test_of_several_templates_the_one_without_tools_is_shown(install, tmp_path):
    install(Tokenizer({"tool_use": "a", "default": "b"}))
    assert Rerenderer(tmp_path).template == "b"
    install(Tokenizer())
    assert Rerenderer(tmp_path, template="mine").template == "mine"


def test_special_tokens_are_added_by_name_too(install, tmp_path):
    tokenizer = Tokenizer()
    install(tokenizer)
    Rerenderer(tmp_path).add_special(["<end>"], bos_token="<bos>")
    assert tokenizer.special == [{"additional_special_tokens": ["<end>"]}, {"bos_token": "<bos>"}]


@pytest.mark.parametrize(
    ("found", "says"),
    [(OSError("no file named tokenizer.json"), "no file named"), (Tokenizer(None), "has no chat template")],
)
def test_a_folder_without_a_tokenizer_says_so(install, tmp_path, found, says):
    install(found)
    with pytest.raises(MissingError, match=says):
        Rerenderer(tmp_path)


def test_what_is_missing_is_said(install, tmp_path, monkeypatch):
    install(Tokenizer())
    with pytest.raises(MissingError, match="is no folder"):
        Rerenderer(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingError, match="transformers is not installed"):
        Rerenderer(tmp_path)
