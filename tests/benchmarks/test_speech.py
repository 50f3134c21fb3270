import json

import pytest

from benchmarks.corpus import Corpus, request_body
from benchmarks.speech import SPEECHES, Speech
from capture.app import Appliance
from capture.dialects.base import Target
from capture.dialects.chat import Chat
from capture.dialects.gemini import Gemini
from capture.dialects.messages import Messages
from capture.dialects.responses import Responses
from capture.settings import Settings

CORPUS = Corpus(4_000)
BY_NAME = {speech.name: speech for speech in SPEECHES}


def test_every_dialect_that_is_served_is_spoken() -> None:
    served = Appliance(Settings(engine=("scripted",), store="sqlite:///unused.db")).dialects
    assert list(BY_NAME) == list(served)


@pytest.mark.parametrize("streamed", [False, True])
def test_chat_sends_what_the_other_measurements_send(streamed: bool) -> None:
    made = BY_NAME["chat"].request(CORPUS, 7, 2_000, streamed=streamed)
    assert made == request_body(CORPUS, 7, 2_000, streamed=streamed)


@pytest.mark.parametrize("dialect", [Responses(), Messages(), Gemini()], ids=lambda dialect: dialect.name)
def test_all_say_the_same(dialect: Responses | Messages | Gemini) -> None:
    chat = Chat().read(request_body(CORPUS, 7, 2_000, streamed=False))
    body = BY_NAME[dialect.name].request(CORPUS, 7, 2_000, streamed=False)
    read = dialect.read(body, target=Target(model="bench", streamed=False))
    assert read.messages == chat.messages
    assert read.tool_names == chat.tool_names
    assert read.tools == chat.tools
    assert read.repairs == ()


def test_a_completion_s_prompt_is_the_text_of_all() -> None:
    body = json.loads(BY_NAME["completions"].request(CORPUS, 7, 2_000, streamed=True))
    assert body["prompt"] == CORPUS.text(7, 2_007)
    assert body["stream"] is True


@pytest.mark.parametrize("speech", SPEECHES, ids=lambda speech: speech.name)
def test_a_stream_is_asked_for_in_the_body_or_the_path(speech: Speech) -> None:
    whole, streamed = (json.loads(speech.request(CORPUS, 7, 2_000, streamed=how)) for how in (False, True))
    assert (speech.target, whole) != (speech.streaming, streamed)
    assert "stream" not in whole
