"""The text of a call's tokens: who is asked, what is kept, and what is said where there is none."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import aiohttp
import msgspec
import numpy as np
import pytest

from capture import answers, token_text
from capture.engines.llamacpp import Llamacpp
from capture.engines.openai import OpenAI
from capture.engines.sglang import Sglang
from capture.engines.vllm import Vllm
from capture.errors import ClientError, EngineError
from capture.rerender import MissingError
from capture.token_text import MOST_TOKENS, Texts
from capture.upstream import Engine
from graph.graph import read
from graph.records import Call, Rollout
from tests.capture.engines.test_spelling import ByteLevel
from tests.house import house
from tests.llamacpp_standin import llamacpp
from tests.sglang_standin import sglang


class Spoken:
    """An engine's side: a decoder behind vLLM's two routes, and what was asked."""

    def __init__(self, pieces=(), *, refuses=(), url="http://e", adapter=None, models=("tiny",)):
        self.decoder = ByteLevel(list(pieces))
        self.refuses = frozenset(refuses)
        self.asked = []
        self.url, self.adapter, self.models = url, adapter or Vllm(), models
        self.kind = self.adapter.kind
        self.name = f"{self.kind}={url}"
        self.changed, self.healthy, self.returns = None, True, 0
        self.status = 200

    async def ask(self, ask):
        body = json.loads(ask.body)
        self.asked.append(body)
        if self.status != 200:
            return self.status, b"{}"
        if ask.path == "/tokenize":
            return 200, json.dumps({"tokens": self.decoder.encode(body["prompt"])}).encode()
        if self.refuses & set(body["tokens"]):
            return 500, b"no such token"
        return 200, json.dumps({"prompt": self.decoder.decode(body["tokens"])}).encode()


def appliance(*engines, tokenizer=None):
    return SimpleNamespace(fleet=SimpleNamespace(all=list(engines)), settings=SimpleNamespace(tokenizer=tokenizer))


def graph(prompt, sampled, **fields):
    def ids(given):
        return None if given is None else np.array(given, np.int32)

    call = {
        "n": 0, "status": "complete", "arrived": 0, "ended": 1, "engine": "vllm=http://e", "prompt_ids": ids(prompt),
        "sampled_ids": ids(sampled),
    } | fields  # fmt: skip
    return read(Rollout(id="r", model="tiny"), [Call(**call)])


def plain(form):
    return json.loads(answers.encode(form, packed=False))


async def told(texts, of, start=0, end=None):
    return plain(await texts.of(of, 0, start, end))


async def test_prompt_and_sampled_ids_with_their_texts():
    engine = Spoken([b" the", b"gro", "é".encode(), "é".encode()[:1]])
    of = graph([256, 257], [258, 259, 10], logprobs=np.array([-1.0, np.nan, -0.5], np.float32))
    assert await told(Texts(appliance(engine)), of) == {
        "start": 0, "end": 5, "n_tokens": 5, "n_prompt": 2, "ids": [256, 257, 258, 259, 10],
        "pieces": [" the", "gro", "é", None, "\n"], "logprobs": [None, None, -1.0, None, -0.5],
        "source": "engine", "reason": None,
    }  # fmt: skip


async def test_what_is_known_is_not_asked_for_again():
    engine = Spoken()
    texts = Texts(appliance(engine))
    of = graph(list(range(97, 107)), [107, 108])
    first = await told(texts, of)
    assert len(engine.asked) == 3
    assert await told(texts, of) == first
    assert (await told(texts, of, 3, 5))["pieces"] == ["d", "e"]
    assert len(engine.asked) == 3
    # It came back, perhaps as another.
    engine.returns += 1
    assert await told(texts, of) == first
    assert len(engine.asked) == 6


async def test_a_stretch():
    texts = Texts(appliance(Spoken()))
    of = graph([97] * 3_000, [98] * 10)
    page = await told(texts, of)
    assert (page["start"], page["end"], page["n_tokens"], len(page["pieces"])) == (0, MOST_TOKENS, 3_010, MOST_TOKENS)
    rest = await told(texts, of, 2_998)
    assert (rest["end"], rest["pieces"]) == (3_010, ["a", "a", *["b"] * 10])
    assert (await told(texts, of, 3_010))["ids"] == []
    assert (await told(texts, of, 5, 10_000))["end"] == 5 + MOST_TOKENS
    for start, end in ((3_011, None), (5, 4)):
        with pytest.raises(ClientError) as caught:
            await texts.of(of, 0, start, end)
        assert (caught.value.code, caught.value.status) == ("invalid_query", 422)


async def test_a_token_with_the_sign_in_it_and_one_that_is_refused_are_found_out():
    engine = Spoken(["a¶b".encode(), b"x", b"y"], refuses=[258])
    found = await told(Texts(appliance(engine)), graph(list(range(97, 107)), [256, 257, 258]))
    assert found["pieces"] == [*"abcdefghij", "a¶b", "x", None]
    assert found["reason"] is None


async def test_questions_have_a_bound(monkeypatch):
    monkeypatch.setattr(token_text, "MOST_QUESTIONS", 6)
    engine = Spoken(refuses=[97])
    texts = Texts(appliance(engine))
    of = graph(list(range(97, 113)), [113])
    first = await told(texts, of)
    assert len(engine.asked) == 6
    assert "Ask again for the rest" in first["reason"]
    for _ in range(5):
        again = await told(texts, of)
    assert again["reason"] is None
    assert again["pieces"] == [None, *(chr(one) for one in range(98, 114))]


async def test_an_engine_without_marks_is_asked_one_by_one():
    engine = Spoken()
    engine.decoder.encode = lambda text: []
    found = await told(Texts(appliance(engine)), graph([97, 98], [99]))
    assert found["pieces"] == ["a", "b", "c"]


async def test_another_engine_with_its_model_says_it_too():
    gone, other = Spoken(url="http://other"), Spoken(url="http://third", models=("large",))
    found = await told(Texts(appliance(other, gone)), graph([97], [98]))
    assert (found["source"], found["pieces"], other.asked) == ("engine", ["a", "b"], [])


async def test_one_that_is_another_by_now_is_not_asked():
    engine = Spoken()
    engine.changed = "it serves another model"
    found = await told(Texts(appliance(engine)), graph([97], [98]))
    assert (found["source"], found["pieces"], engine.asked) == (None, [None, None], [])
    assert found["ids"] == [97, 98]
    assert "--tokenizer FOLDER" in found["reason"]


@pytest.mark.parametrize(
    ("engine", "word"),
    [(Spoken(adapter=OpenAI()), "kind openai"), (Spoken(models=("other",), url="http://x"), "No engine")],
)
async def test_why_there_is_no_text(engine, word):
    found = await told(Texts(appliance(engine)), graph([97], [98], engine=engine.name if "openai" in word else "v=u"))
    assert word in found["reason"]
    assert found["pieces"] == [None, None]


@pytest.mark.parametrize("status", [401, 404])
async def test_an_engine_without_the_route(status):
    engine = Spoken()
    engine.status = status
    found = await told(Texts(appliance(engine)), graph([97], [98]))
    assert f"answers {status} to /tokenize" in found["reason"]


async def test_an_engine_that_is_down_or_slow(monkeypatch):
    engine = Spoken()
    texts = Texts(appliance(engine))

    async def down(ask):
        raise EngineError("engine_unreachable", "The engine at http://e did not answer (refused).")

    engine.ask = down
    assert "did not answer" in (await told(texts, graph([97], [98])))["reason"]
    monkeypatch.setattr(token_text, "LIMIT_S", 0.01)

    async def slow(ask):
        await asyncio.Event().wait()

    engine.ask = slow
    assert "within 0.01 s" in (await told(texts, graph([97], [98])))["reason"]


async def test_a_call_without_ids():
    found = await told(Texts(appliance(Spoken())), graph(None, None))
    assert (found["n_tokens"], found["ids"], found["pieces"], found["source"]) == (0, [], [], None)
    assert "No token ids" in found["reason"]


async def test_a_tokeniser_on_this_machine(monkeypatch, tmp_path):
    read_folders = []

    def decoder(folder):
        read_folders.append(folder)
        if folder.name == "none":
            raise MissingError(f"{folder} is no folder")
        return lambda ids: ["\ufffd" if one == 98 else chr(one) for one in ids]

    monkeypatch.setattr(token_text, "decoder", decoder)
    texts = Texts(appliance(tokenizer=str(tmp_path)))
    for _ in range(2):
        found = await told(texts, graph([97], [98]))
        assert (found["source"], found["pieces"], found["reason"]) == ("tokenizer", ["a", None], None)
    assert read_folders == [tmp_path]
    found = await told(Texts(appliance(tokenizer=str(tmp_path / "none"))), graph([97], [98]))
    assert (found["source"], found["pieces"]) == (None, [None, None])
    assert "is no folder" in found["reason"]


async def test_what_is_kept_has_a_bound(monkeypatch):
    monkeypatch.setattr(token_text, "MOST_KEPT", 3)
    one, two = Spoken(url="http://e"), Spoken(url="http://f")
    texts = Texts(appliance(one, two))
    await told(texts, graph([97], [98]))
    await told(texts, graph([97], [98], engine="vllm=http://f"))
    assert [who[0] for who in texts._kept] == ["http://f"]


# -- as engines say it


async def test_the_scripted_engine_over_http(tmp_path):
    async with house("scripted", tmp_path) as home:
        made = await home.rollout(id="r")
        async with home.chat(made, messages=[{"role": "user", "content": "Grüße"}]) as answer:
            reply = (await answer.json())["choices"][0]["message"]["content"]
        await home.idle(made)
        found = await home.control("GET", "/rollouts/r/calls/0/text")
        assert (found["source"], found["reason"]) == ("engine", None)
        texts = found["pieces"]
        assert reply[:18] in "".join(text or "" for text in texts[found["n_prompt"] :])
        assert "Gr" in "".join(text or "" for text in texts[: found["n_prompt"]])
        call = await home.call(made, 0)
        assert found["ids"] == call["prompt_ids"] + call["sampled_ids"]
        assert found["logprobs"][found["n_prompt"] :] == call["logprobs"]
        cut = await home.control("GET", "/rollouts/r/calls/0/text?start=2&end=4")
        assert (cut["ids"], cut["pieces"]) == (found["ids"][2:4], texts[2:4])
        for path, status in (("9/text", 404), ("x/text", 404), ("0/text?start=-1", 422), ("0/text?n=1", 422)):
            await home.control("GET", f"/rollouts/r/calls/{path}", status=status)
        url = f"{home.appliance.control_url}/rollouts/r/calls/0/text"
        headers = {"Authorization": f"Bearer {home.appliance.admin_key}", "Accept": answers.MSGPACK}
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as got:
            packed = msgspec.msgpack.decode(await got.read())
        assert np.frombuffer(packed["ids"], "<i4").tolist() == found["ids"]


@contextlib.asynccontextmanager
async def opened(adapter, url):
    engine = Engine(adapter, url)
    await engine.open()
    try:
        await engine.identify()
        yield engine
    finally:
        await engine.close()


async def test_sglang_and_llamacpp_as_their_stand_ins_say_it():
    async with sglang() as server, opened(Sglang(), server.url) as engine:
        of = graph([1000 + ord("a"), 2], [1000 + ord("é")], engine=engine.name)
        found = await told(Texts(appliance(engine)), of)
        assert (found["pieces"], found["source"]) == (["a", "<end>", "é"], "engine")
    async with llamacpp() as server, opened(Llamacpp(), server.url) as engine:
        of = graph([1, 1000 + ord("a")], [1000 + ord("é")], engine=engine.name)
        found = await told(Texts(appliance(engine)), of)
        assert (found["pieces"], found["source"]) == (["<s>", "a", "é"], "engine")
