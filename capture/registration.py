"""Registering rollouts: from a JSON body to entries for the store and the answer that shows their secrets. Pure.

A secret is shown once and stored as its SHA-256 (see `capture.keys`).
"""

from __future__ import annotations

import re
import secrets
from datetime import timedelta
from typing import Any, Literal

import msgspec

from capture import clock
from capture.admission import PINNABLE
from capture.errors import ClientError
from capture.keys import PREFIX, RANDOM_BYTES, digest
from capture.limits import fault
from capture.noproxy import no_proxy
from capture.reach import CONSUMERS, Way
from capture.store.base import Entry, Registration
from graph.records import Rollout

MAX_TOGETHER = 4096
"""Rollouts in one registration: a group is tens, a batch a few thousand; all of them are added in one transaction."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}\Z")


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task: its text, its public data, and what no agent may read."""

    text: str | None = None
    data: Any = None
    private: Any = None


class Reach(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a rollout's consumers run."""

    agent: Literal["local", "remote"] | None = None
    tools: Literal["local", "remote"] | None = None


class New(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a registration, as the contract has it."""

    id: str | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    task: Task = Task()
    model: str | None = None
    engine: str | None = None
    strict_model: bool = False
    tokens: Literal["engine", "pinned"] | None = None
    require_tier: Literal["train", "eval"] | None = None
    sampling: dict[str, Any] = {}
    allow: list[str] = []
    limits: dict[str, float | None] = {}
    ttl_s: float = 86_400.0
    reach: Reach = Reach()
    n: int | None = None


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the server lays down for rollouts that don't say otherwise."""

    sampling: dict[str, Any] = {}
    limits: dict[str, float] = {}
    tokens: Literal["engine", "pinned"] = "engine"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What serves a rollout: the model, and what the engine was found to be."""

    model: str | None
    tier: Literal["train", "eval"]
    tier_reason: str
    logprobs_mode: Literal["raw", "processed", "unknown"]


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout ready for the store, with what its owner is told once."""

    entry: Entry
    answer: dict[str, Any]

    def __repr__(self) -> str:
        # Not the answer: it holds the secrets.
        return f"<Registered {self.entry.rollout.id}>"


def read(body: Any) -> tuple[list[New], bool]:
    """Read a registration's body: the rollouts to make, and whether the answer is a list.

    Raises `ClientError` `invalid_registration` (422) that names the field.
    """
    if not isinstance(body, dict):
        raise _invalid("the body must be a JSON object")
    if "rollouts" in body:
        extra = [name for name in body if name != "rollouts"]
        if extra or not isinstance(body["rollouts"], list) or not body["rollouts"]:
            raise _invalid("`rollouts` must be a list with at least one rollout, and stand alone")
        news = [_convert(one, f"rollouts[{i}]") for i, one in enumerate(body["rollouts"])]
        if any(new.n is not None for new in news):
            raise _invalid("`n` can't be used inside `rollouts`")
        several = True
    else:
        new = _convert(body, "")
        several = new.n is not None
        news = [new] if new.n is None else _siblings(new, new.n)
    if len(news) > MAX_TOGETHER:
        raise _invalid(f"at most {MAX_TOGETHER} rollouts can be registered together")
    ids = [new.id for new in news if new.id is not None]
    if len(set(ids)) < len(ids):
        raise _invalid("two rollouts have the same id")
    return news, several


def check(new: New, place: Place) -> New:
    """Return what was asked for with an id. Raises `ClientError` (409 `tier_too_low`; 422 for what can't be met)."""
    _check(new, place)
    return new if new.id is not None else msgspec.structs.replace(new, id=f"r-{secrets.token_hex(8)}")


def register(new: New, place: Place, way: Way, defaults: Defaults, *, now: str, body: str) -> Registered:
    """Make one rollout that was checked: its entry, and the answer with its secrets.

    `way` are the addresses of its consumers; `body` is the digest of what was asked.
    """
    assert new.id is not None, "a checked registration has an id"
    name = new.id
    secret = f"{PREFIX}{secrets.token_urlsafe(RANDOM_BYTES)}"
    tools_secret = f"{PREFIX}tools-{secrets.token_urlsafe(RANDOM_BYTES)}"
    limits = {key: value for key, value in {**defaults.limits, **new.limits}.items() if value is not None}
    model = new.model or place.model
    rollout = Rollout(
        id=name,
        group=new.group,
        labels=new.labels,
        tier=place.tier,
        tier_reason=place.tier_reason,
        model=model,
        logprobs_mode=place.logprobs_mode,
        task=new.task.text,
        pins={**defaults.sampling, **new.sampling},
        limits=limits,
        created_at=now,
    )
    registration = Registration(
        engine=new.engine,
        strict_model=new.strict_model,
        tokens=new.tokens or defaults.tokens,
        require_tier=new.require_tier,
        allow=tuple(new.allow),
        task_data=new.task.data,
        task_private=new.task.private,
        ttl_s=new.ttl_s,
        reach={each: where for each in CONSUMERS if (where := getattr(new.reach, each)) is not None},
        public=way.public,
        body=body,
    )
    entry = Entry(rollout=rollout, registration=registration, secret=digest(secret), tools_secret=digest(tools_secret))
    base = f"{way.agent}/v1"
    answer: dict[str, Any] = {
        "id": name,
        "secret": secret,
        "tools_secret": tools_secret,
        "url": way.agent,
        "base_url": base,
        "tools_url": way.tools,
        "tier": place.tier,
        "model": model,
        # Moves with each call; this is where it stands if none comes.
        "expires_at": clock.text(clock.parse(now) + timedelta(seconds=new.ttl_s)),
        "env": {
            "OPENAI_BASE_URL": base,
            "OPENAI_API_KEY": secret,
            "ANTHROPIC_BASE_URL": way.agent,
            "ANTHROPIC_API_KEY": secret,
            "GOOGLE_GEMINI_BASE_URL": way.agent,
            "GEMINI_API_KEY": secret,
            "NO_PROXY": no_proxy(way.agent),
        },
    }
    return Registered(entry=entry, answer=answer)


def _check(new: New, place: Place) -> None:
    if new.id is not None and not _ID.match(new.id):
        raise _invalid("`id` takes 1 to 200 letters, digits and . _ : @ + -, beginning with a letter or digit")
    if not 0 < new.ttl_s <= 10 * 365 * 86_400:
        raise _invalid("`ttl_s` must be a positive number of seconds")
    for name in new.sampling:
        if name not in PINNABLE:
            raise _invalid(f"`sampling.{name}` can't be pinned; these can: {', '.join(PINNABLE)}")
    for name, value in new.sampling.items():
        wanted: tuple[type, ...] = (bool,) if name == "seed_exact" else (int, float)
        if not isinstance(value, wanted) or (isinstance(value, bool) and name != "seed_exact"):
            raise _invalid(f"`sampling.{name}` has the wrong type")
    for name, limit in new.limits.items():
        if (wrong := fault(name, limit)) is not None:
            raise _invalid(wrong)
    wanted_tier = new.require_tier
    if wanted_tier == "train" and place.tier != "train":
        raise ClientError(
            "tier_too_low",
            f"The engine reaches tier eval only: {place.tier_reason}.",
            hint="Register with require_tier eval if text alone is enough, or serve an engine that gives token ids.",
            status=409,
        )


def _siblings(new: New, n: int) -> list[New]:
    if not 1 <= n <= MAX_TOGETHER:
        raise _invalid(f"`n` must be between 1 and {MAX_TOGETHER}")
    stem = f"g-{secrets.token_hex(6)}" if new.id is None else new.id
    group = new.group or stem
    return [msgspec.structs.replace(new, id=f"{stem}-{i}", group=group, n=None) for i in range(n)]


def _convert(body: Any, where: str) -> New:
    try:
        return msgspec.convert(body, New)
    except msgspec.ValidationError as error:
        raise _invalid(f"{where + ': ' if where else ''}{error}") from error


def _invalid(message: str, *, hint: str = "The form of a registration stands in docs/api.md.") -> ClientError:
    return ClientError("invalid_registration", f"The registration can't be taken: {message}.", hint=hint, status=422)
