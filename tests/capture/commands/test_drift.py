"""`treering drift`: of rollouts at an appliance, and of an engine by itself."""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest

from capture import cli
from capture.commands.drift import _rerendered
from capture.rerender import Rerenderer
from tests import engine as fake
from tests.house import house
from tests.sglang_standin import SglangStandIn

USER = {"role": "user", "content": "Hello"}


@pytest.fixture
async def home(tmp_path):
    async with house("scripted", tmp_path) as one:
        yield one


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    async def run(*words):
        code = await asyncio.to_thread(cli.main, ["drift", *words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
async def url(home, monkeypatch):
    monkeypatch.setenv("TREERING_ADMIN_KEY", home.appliance.admin_key)
    return home.appliance.control_url


async def conversation(home, name, **options):
    """Three turns; the reply comes back without its thinking."""
    made = await home.rollout(id=name, **options)
    said = [USER]
    for _ in range(3):
        async with home.chat(made, messages=said, stream=False) as answer:
            reply = (await answer.json())["choices"][0]["message"]
        await home.idle(made)
        said += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "And?"}]


async def test_a_rollout_that_drifts_is_told_with_causes_and_what_would_end_it(home, run, url):
    await conversation(home, "r")
    code, out, err = await run("r", "--url", url)
    assert (code, err) == (0, "")
    assert "0 of 2 transitions exact (0%); 3 rows" in out
    assert "2 x reasoning_stripped" in out
    assert "tokens=pinned" in out
    code, out, _ = await run("r", "--url", url, "--json")
    told = json.loads(out)
    assert (told["drift"]["transitions"], told["drift"]["exact"]) == (2, 0)
    assert told["cases"][0]["name"] == "r"
    assert {"pinned", "template"} <= {advice["rule"] for advice in told["advice"]}


async def test_a_pinned_one_has_nothing_to_end(home, run, url):
    await conversation(home, "r", tokens="pinned")
    code, out, _ = await run("r", "--url", url)
    assert code == 0
    assert "2 of 2 transitions exact (100%); 1 rows" in out
    assert "would end it" not in out


async def test_a_group_is_measured_as_one(home, run, url):
    await conversation(home, "a", group="g")
    await conversation(home, "b", group="g")
    code, out, _ = await run("--group", "g", "b", "--url", url, "--json")
    told = json.loads(out)
    assert code == 0
    assert sorted(case["name"] for case in told["cases"]) == ["a", "b"]
    assert (told["drift"]["rollouts"], told["drift"]["transitions"]) == (2, 4)


async def test_the_threshold_says_what_a_fork_is(home, run, url):
    await conversation(home, "r")
    _, out, _ = await run("r", "--url", url, "--threshold", "1", "--json")
    assert json.loads(out)["drift"]["fork_frac"] == 1.0
    _, out, _ = await run("r", "--url", url, "--json")
    assert json.loads(out)["drift"]["fork_frac"] == 0.0


async def test_nothing_to_measure_exits_with_1(home, run, url):
    await home.rollout(id="empty")
    code, out, _ = await run("empty", "--url", url)
    assert (code, out) == (1, "nothing to measure: no call of a main conversation\n")
    code, _, err = await run("nobody", "--url", url)
    assert code == 1
    assert "There is no rollout 'nobody'" in err


async def test_an_engine_is_tried_by_itself_plain_and_pinned(run):
    code, out, err = await run("--engine", "scripted", "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    by_name = {case["name"]: case["measured"] for case in told["cases"]}
    assert by_name["thinking stripped, engine"]["exact"] < 3
    assert all(one["exact"] == one["transitions"] == 3 for name, one in by_name.items() if name.endswith("pinned"))
    # What would end the drift of the plain ones; the pinned ones have none.
    assert told["drift"]["transitions"] == 15
    assert told["unpinnable"] is None


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "nothing to measure"),
        (("r", "--engine", "scripted"), 2, "by itself"),
        (("--engine", "nonsense=x"), 2, "names no kind of engine"),
        (("--engine", "vllm=http://127.0.0.1:9"), 3, "127.0.0.1:9"),
        (("--engine", "scripted", "--tokenizer", "nowhere"), 2, "--tokenizer:"),
    ],
)
async def test_what_can_not_be_measured_is_said(run, words, code, says):
    found, out, err = await run(*words)
    assert (found, out) == (code, "")
    assert says in err


async def test_an_engine_that_can_not_be_pinned_at_is_told_so(run):
    standin = SglangStandIn()
    standin.ignores = True
    await standin.start()
    try:
        code, out, _ = await run("--engine", f"sglang={standin.url}")
    finally:
        await standin.close()
    assert code == 0
    assert "plain chat, engine" in out
    assert ", pinned" not in out
    assert "Nothing can be pinned at this engine: " in out
    assert "does not take ids" in out


async def test_a_scenario_that_an_engine_refuses_is_told_and_the_others_go_on(run):
    engine = fake.Engine(auto=_refuses_tools)
    await engine.start()
    try:
        code, out, err = await run("--engine", f"vllm={engine.url}")
    finally:
        await engine.close()
    assert code == 0
    assert "tool loop: vllm=" in err
    assert "answered 400" in err
    assert "cut by length, engine" in out


def _refuses_tools(exchange):
    if not fake._answer_probe(exchange):
        if exchange.body.get("tools"):
            exchange.answer({"error": {"message": "no tools here", "type": "BadRequestError"}}, status=400)
        else:
            exchange.answer(fake.whole([5, 6, 7]))
    return True


class Tokenizer:
    """transformers' tokeniser, as far as it is used: a word is an id."""

    chat_template = "{{ messages }}"

    def __len__(self):
        return 1

    def apply_chat_template(self, messages, *, tools, tokenize, add_generation_prompt, **arguments):
        assert tokenize is False
        if any(message["role"] == "odd" for message in messages):
            raise ValueError("no such role")
        return " ".join(str(message["content"]) for message in messages) + " assistant" * add_generation_prompt

    def __call__(self, text, *, add_special_tokens):
        assert add_special_tokens is False
        return {"input_ids": [len(word) for word in text.split()]}


@pytest.fixture
def tokenizer(monkeypatch, tmp_path):
    def read(folder, *, local_files_only):
        assert local_files_only is True
        return Tokenizer()

    monkeypatch.setitem(
        sys.modules, "transformers", SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=read))
    )
    return Rerenderer(tmp_path)


def call(prompt, sampled, *, role="user", reply="yes", **more):
    request = {"messages": [{"role": role, "content": "go on"}]}
    message = {"role": "assistant", "content": reply}
    return {
        "request": request, "sent": None, "prompt_ids": prompt, "sampled_ids": sampled, "choice": 0,
        "reply": {"choices": [{"message": message}]}, **more,
    }  # fmt: skip


def test_calls_are_rendered_again(tokenizer):
    found = _rerendered(
        tokenizer,
        [
            # Prompt "go on assistant", and behind it the reply, where the rendering has it in the header's place.
            call([2, 2, 9], [3]),
            call([2, 2, 8], [3]),
            call([2, 2, 9], [3], role="odd"),
            call(None, None),
            call([2], [3], request={"input": "of another dialect"}),
        ],
    )
    assert (found.turns, found.prompts_right, found.turns_right, found.left_out) == (3, 1, 0, 2)


def test_a_turn_is_right_if_its_reply_is_too(tokenizer):
    closed = call([2, 2, 9], [3])
    # A template without a header: what follows the prompt is the reply itself.
    tokenizer._tokenizer.apply_chat_template = lambda messages, **_: "go on assistant" + " yes" * (len(messages) - 1)
    assert _rerendered(tokenizer, [closed]).turns_right == 1
    assert _rerendered(tokenizer, [call([2, 2, 9], [4])]).turns_right == 0


async def test_with_a_tokenizer_the_table_has_one_more_column(home, run, url, tokenizer, tmp_path):
    await conversation(home, "r")
    code, out, _ = await run("r", "--url", url, "--tokenizer", str(tmp_path))
    assert code == 0
    assert "re-rendered right" in out
    assert "0 of 3" in out
