"""From a registration's body to entries and the answer with their secrets."""

import hashlib

import pytest

from capture import registration
from capture.errors import ClientError
from capture.reach import Way
from capture.registration import Defaults, Place, check, read, register

PLACE = Place(
    model="tiny",
    tier="train",
    tier_reason="ids came back",
    logprobs_mode="processed",
)
WAY = Way(agent="http://127.0.0.1:8400", tools="http://127.0.0.1:8400")
NOW = "2026-01-02T03:04:05.006Z"


NO_DEFAULTS = Defaults()


def one(body: dict, *, place: Place = PLACE, defaults: Defaults = NO_DEFAULTS):
    news, _ = read(body)
    return register(check(news[0], place), place, WAY, defaults, now=NOW, body="digest")


def test_an_empty_body_makes_a_rollout() -> None:
    made = one({})
    rollout = made.entry.rollout
    assert (rollout.state, rollout.tier, rollout.model, rollout.logprobs_mode) == ("open", "train", "tiny", "processed")
    assert rollout.pins == {}
    assert rollout.limits == {}
    assert made.answer["base_url"] == "http://127.0.0.1:8400/v1"
    assert made.answer["expires_at"] == "2026-01-03T03:04:05.006Z"
    assert made.answer["env"]["OPENAI_API_KEY"] == made.answer["secret"]
    assert set(made.answer["env"]) == {
        "OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY",
        "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "NO_PROXY",
    }  # fmt: skip


def test_secrets_are_stored_as_their_hash_alone() -> None:
    made = one({})
    assert made.entry.secret == hashlib.sha256(made.answer["secret"].encode()).digest()
    assert made.entry.tools_secret == registration.digest(made.answer["tools_secret"])
    assert made.answer["secret"] not in repr(made.entry)
    assert one({}).answer["secret"] != made.answer["secret"]


def test_siblings_share_a_group() -> None:
    news, several = read({"id": "g7", "n": 3})
    assert several
    assert [(new.id, new.group) for new in news] == [("g7-0", "g7"), ("g7-1", "g7"), ("g7-2", "g7")]


def test_siblings_without_an_id_get_one() -> None:
    news, _ = read({"n": 2})
    stem = news[0].group
    assert stem
    assert [new.id for new in news] == [f"{stem}-0", f"{stem}-1"]


def test_several_are_listed_in_order() -> None:
    news, several = read({"rollouts": [{"id": "b"}, {"id": "a"}]})
    assert several
    assert [new.id for new in news] == ["b", "a"]


def test_what_a_rollout_says_goes_before_the_servers_defaults() -> None:
    defaults = Defaults(sampling={"temperature": 1.0, "top_p": 1.0}, limits={"max_calls": 10, "max_output_tokens": 5})
    made = one({"sampling": {"top_p": 0.9}, "limits": {"max_calls": 3, "max_output_tokens": None}}, defaults=defaults)
    assert made.entry.rollout.pins == {"temperature": 1.0, "top_p": 0.9}
    assert made.entry.rollout.limits == {"max_calls": 3}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ([], "object"),
        ({"rollouts": []}, "rollouts"),
        ({"rollouts": [{}], "group": "g"}, "rollouts"),
        ({"rollouts": [{"id": "a"}, {"id": "a"}]}, "same id"),
        ({"rollouts": [{"n": 2}]}, "`n`"),
        ({"rollouts": [{"nope": 1}]}, "rollouts[0]"),
        ({"n": 0}, "`n`"),
        ({"n": 1_000_000}, "`n`"),
        ({"nope": 1}, "nope"),
        ({"id": "../x"}, "`id`"),
        ({"id": ""}, "`id`"),
        ({"labels": {"a": 1}}, "labels"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"tokens": "loose"}, "tokens"),
        ({"sampling": {"max_tokens": 5}}, "sampling.max_tokens"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
        ({"sampling": {"temperature": True}}, "sampling.temperature"),
        ({"sampling": {"seed_exact": 1}}, "sampling.seed_exact"),
        ({"limits": {"deadline_s": 0}}, "limits.deadline_s"),
        ({"limits": {"max_turns": 5}}, "limits.max_turns"),
        ({"limits": {"max_calls": 0}}, "limits.max_calls"),
        ({"limits": {"max_calls": 1.5}}, "limits.max_calls"),
        ({"reach": {"agent": "far"}}, "reach.agent"),
        ({"task": {"txt": "x"}}, "txt"),
    ],
)
def test_what_is_wrong_is_named(body, names: str) -> None:
    with pytest.raises(ClientError) as caught:
        one(body)
    assert (caught.value.status, caught.value.code) == (422, "invalid_registration")
    assert names in caught.value.message


def test_a_tier_that_the_engine_lacks_is_refused_with_its_reason() -> None:
    place = Place(model="m", tier="eval", tier_reason="no ids", logprobs_mode="unknown")
    with pytest.raises(ClientError, match="no ids") as caught:
        one({"require_tier": "train"}, place=place)
    assert (caught.value.status, caught.value.code) == (409, "tier_too_low")
    assert one({}, place=place).entry.rollout.tier == "eval"


def test_each_consumer_is_told_its_own_way() -> None:
    way = Way(agent="https://t.example.org", tools="http://127.0.0.1:8400", public="https://t.example.org")
    made = register(check(read({"reach": {"agent": "remote"}})[0][0], PLACE), PLACE, way, NO_DEFAULTS, now=NOW, body="")
    assert (made.answer["url"], made.answer["base_url"]) == ("https://t.example.org", "https://t.example.org/v1")
    assert made.answer["env"]["ANTHROPIC_BASE_URL"] == "https://t.example.org"
    assert made.answer["tools_url"] == "http://127.0.0.1:8400"
    assert made.entry.registration.reach == {"agent": "remote"}
