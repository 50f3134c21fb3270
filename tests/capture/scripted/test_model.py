from typing import Any

import pytest

from capture.scripted.model import ScriptedModel
from capture.scripted.request import RequestError
from capture.scripted.rules import Rules
from capture.scripted.rulesfile import parse_rules

USER = {"role": "user", "content": "Tell me of the repository."}


def model(*rules: dict[str, Any], seed: int = 0, **options: Any) -> ScriptedModel:
    given: dict[str, Any] = {"name": "m", "max_model_len": 2000, "mode": "processed", "seed": seed} | options
    return ScriptedModel(parse_rules({"rule": list(rules)}) if rules else Rules(), **given)


def ids(of: ScriptedModel, **request: Any) -> list[list[int]]:
    """Give the ids of each choice."""
    asked = of.parse({"messages": [USER], "return_token_ids": True, **request})
    body = of.write(asked, of.prompt(asked), of.reply(asked), created=1, given_id=None).body()
    return [choice["token_ids"] for choice in body["choices"]]


def text(of: ScriptedModel, **request: Any) -> str:
    asked = of.parse({"messages": [USER], **request})
    body = of.write(asked, of.prompt(asked), of.reply(asked), created=1, given_id=None).body()
    return str(body["choices"][0]["message"]["content"])


def test_the_same_requests_in_the_same_order_give_the_same_replies():
    one, other = model(), model()
    assert [ids(one) for _ in range(3)] == [ids(other) for _ in range(3)]


def test_the_same_prompt_sampled_again_gives_the_same_text_in_other_ids():
    of = model()
    draws = [ids(of)[0] for _ in range(5)]
    assert len({tuple(draw) for draw in draws}) == 5
    assert len({of.tokeniser.decode(draw) for draw in draws}) == 1


def test_choices_differ_and_so_do_engines_of_another_seed():
    first, second = ids(model(), n=2)
    assert first != second
    assert ids(model(seed=1)) != ids(model(seed=2))


@pytest.mark.parametrize("request_", [{"seed": 5}, {"temperature": 0}, {"temperature": 0, "seed": 5}])
def test_a_seed_or_temperature_0_asks_for_the_same_again(request_):
    of = model()
    assert ids(of, **request_) == ids(of, **request_)


def test_another_seed_gives_other_ids_but_not_at_temperature_0():
    of = model()
    assert ids(of, seed=1) != ids(of, seed=2)
    assert ids(of, seed=1, temperature=0) == ids(of, seed=2, temperature=0)


def test_a_reply_that_comes_back_as_history_is_tokenised_anew():
    of = model()
    (sampled,) = ids(of, chat_template_kwargs={"enable_thinking": False})
    first = of.prompt(of.parse({"messages": [USER]})).ids
    history = [USER, {"role": "assistant", "content": of.tokeniser.decode(sampled[:-1])}, USER]
    again = of.prompt(of.parse({"messages": history})).ids
    assert again[: len(first)] == first
    assert again[: len(first) + len(sampled)] != first + sampled


def test_the_first_rule_that_matches_answers_and_the_built_in_ones_the_rest():
    of = model(
        {"match": {"text": "repository"}, "reply": {"text": "first"}, "times": 2},
        {"match": {"role": "user", "text": "repository", "turn": 0}, "reply": {"text": "second"}},
    )
    plain = {"chat_template_kwargs": {"enable_thinking": False}}
    assert [text(of, **plain) for _ in range(4)] == ["first", "first", "second", "second"]
    assert text(of, messages=[{"role": "user", "content": "else"}], **plain).startswith("You wrote this:")


def test_a_prompt_must_leave_room_for_a_token():
    of = model(max_model_len=40)
    fits = of.prompt(of.parse({"messages": [{"role": "user", "content": "a"}]}))
    of.fits(fits)
    with pytest.raises(RequestError, match="maximum context length is 40 tokens") as caught:
        of.fits(of.prompt(of.parse({"messages": [{"role": "user", "content": "word " * 40}]})))
    assert caught.value.body["error"]["param"] == "input_tokens"


def test_a_reply_ends_where_the_context_does():
    of = model({"reply": {"raw": "word " * 100}}, max_model_len=40)
    asked = of.parse({"messages": [USER], "max_tokens": 40})
    prompt = of.prompt(asked)
    body = of.write(asked, prompt, of.reply(asked), created=1, given_id=None).body()
    assert body["usage"]["total_tokens"] == 40
    assert body["choices"][0]["finish_reason"] == "length"


def test_an_image_is_refused_with_the_models_name():
    of = model()
    asked = of.parse({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})
    with pytest.raises(RequestError, match=r"^m is not a multimodal model$"):
        of.prompt(asked)


def test_the_fingerprint_is_the_scripts():
    prints = {
        m._fingerprint for m in (model(), model(), model({"reply": {"text": "a"}}), model({"reply": {"text": "b"}}))
    }
    assert len(prints) == 3
