"""The JSON forms that answers of the control plane have, as JSON Schema (2020-12), for the OpenAPI document.

Required is what a reader may rely on; fields may be added within a version, so no answer's form is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture.admission import PINNABLE
from capture.limits import NAMES

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MAYBE_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_YES: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}
_NUMBERS: Schema = {"type": "array", "items": {"type": "integer"}}
_LEVEL: Schema = {"type": "string", "enum": ["info", "warn", "error"]}
_TIER: Schema = {"type": "string", "enum": ["train", "eval"]}


def _form(properties: Mapping[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": dict(properties),
    }


def _closed(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _maybe(shape: Schema) -> Schema:
    return {"anyOf": [shape, {"type": "null"}]}


_NEW: dict[str, Schema] = {
    "id": {"type": ["string", "null"], "pattern": "^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}$"},
    "group": _MAYBE_TEXT,
    "labels": {"type": "object", "additionalProperties": _TEXT},
    "task": _closed({"text": _MAYBE_TEXT, "data": {}, "private": {}}),
    "model": _MAYBE_TEXT,
    "engine": _MAYBE_TEXT,
    "strict_model": _YES,
    "tokens": {"enum": ["engine", "pinned", None]},
    "require_tier": {"enum": ["train", "eval", None]},
    "sampling": _closed({name: {"type": "boolean" if name == "seed_exact" else "number"} for name in PINNABLE}),
    "allow": {"type": "array", "items": _TEXT},
    "limits": _closed({name: {"type": ["number" if name == "deadline_s" else "integer", "null"]} for name in NAMES}),
    "ttl_s": {"type": "number", "exclusiveMinimum": 0},
    "reach": _closed({name: {"enum": ["local", "remote", None]} for name in ("agent", "tools")}),
}

_CALL: dict[str, Schema] = {
    "n": _COUNT,
    "id": _MAYBE_TEXT,
    "choice": _COUNT,
    "status": {"type": "string", "enum": ["complete", "aborted", "undelivered", "error", "stopped", "running"]},
    "delivered": {"type": ["boolean", "null"]},
    "link": {"type": "string", "enum": ["root", "exact", "drift", "compaction"]},
    "parent": _MAYBE_COUNT,
    "carries": _NUMBERS,
    "conversation": _MAYBE_COUNT,
    "fork": {"enum": [None, "retry", "resample", "branch"]},
    "discarded": _YES,
    "n_prompt": _MAYBE_COUNT,
    "n_sampled": _MAYBE_COUNT,
    "n_shared": _MAYBE_COUNT,
    "drift": _maybe(_form({"tokens": _COUNT, "at": _COUNT, "where": _TEXT, "cause": _TEXT})),
    "pinned": _maybe(_form({"kept": _COUNT})),
    "finish_reason": _MAYBE_TEXT,
    "dialect": _TEXT,
    "streamed": _YES,
    "engine": _MAYBE_TEXT,
    "model_asked": _MAYBE_TEXT,
    "weights": _form({"start": _MAYBE_TEXT, "end": _MAYBE_TEXT, "spans": {"type": "array", "items": _OBJECT}}),
    "sampling": _form({"asked": _OBJECT, "sent": _OBJECT}),
    "constrained": _YES,
    "repairs": {"type": "array", "items": _TEXT},
    "started_at": _TEXT,
    "queued_ms": _MAYBE_NUMBER,
    "first_token_ms": _MAYBE_NUMBER,
    "ended_ms": _MAYBE_NUMBER,
    "hints": _OBJECT,
}


_HEALTH = _form(
    {
        "findings": {"type": "object", "additionalProperties": _COUNT},
        "drift": _form({"transitions": _COUNT, "drifted": _COUNT}),
        "errors": _COUNT,
        "warnings": _COUNT,
        "running": _COUNT,
    }
)

_OVERVIEW: dict[str, Schema] = {
    **dict.fromkeys(
        (
            "rollouts", "open", "closed", "running", "no_calls", "incomplete", "stopped", "graded", "ungraded",
            "drifted", "trouble", "calls", "sampled_tokens", "stale",
        ),
        _COUNT,
    ),
    "findings": {
        "type": "array",
        "items": _form({"code": _TEXT, "severity": _LEVEL, "rollouts": _COUNT, "n": _COUNT}),
    },
    "reward": _form({"n": _COUNT, "mean": _MAYBE_NUMBER, "min": _MAYBE_NUMBER, "max": _MAYBE_NUMBER}),
    "groups": {
        "type": "array",
        "items": _form(
            {"group": _TEXT, "rollouts": _COUNT, "open": _COUNT, "trouble": _COUNT, "reward_mean": _MAYBE_NUMBER}
        ),
    },
    "labels": {
        "type": "array",
        "items": _form({"name": _TEXT, "values": {"type": "array", "items": _TEXT}}),
    },
    "as_of": _TEXT,
}  # fmt: skip


_CHANGES: Schema = {"type": "array", "items": _form({"field": _TEXT, "was": {}, "is": {}})}
_FORK = _form(
    {
        "kind": {"enum": ["retry", "resample", "branch"]},
        "calls": _NUMBERS,
        "at": _MAYBE_COUNT,
        "kept": _MAYBE_COUNT,
        "words": _TEXT,
        "changes": _CHANGES,
    }
)
_BREAK = _form(
    {
        "call": _COUNT,
        "parent": _COUNT,
        "kind": {"enum": ["drift", "compaction"]},
        "cause": _TEXT,
        "at": _MAYBE_COUNT,
        "tokens": _MAYBE_COUNT,
        "words": _TEXT,
        "changes": _CHANGES,
    }
)


def schemas() -> dict[str, Schema]:
    """Return every form by name."""
    part = _form({"ok": _YES, "reason": _MAYBE_TEXT})
    rollout = {"$ref": "#/components/schemas/Rollout"}
    one = {"$ref": "#/components/schemas/RegisteredOne"}
    return {
        "Error": _form({"error": _form({"code": _TEXT, "message": _TEXT, "hint": _TEXT})}),
        "Alive": _form({"ok": {"const": True}, "nonce": _TEXT}),
        "Ready": _form({"ready": _YES, "engine": part, "store": part, "tunnel": part}),
        "Registration": {
            "anyOf": [
                _closed({**_NEW, "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 4096}}),
                {
                    **_closed({"rollouts": {"type": "array", "minItems": 1, "maxItems": 4096, "items": _closed(_NEW)}}),
                    "required": ["rollouts"],
                },
            ]
        },
        "RegisteredOne": _form(
            {
                "id": _TEXT,
                "secret": _TEXT,
                "tools_secret": _TEXT,
                "url": _TEXT,
                "base_url": _TEXT,
                "tools_url": _TEXT,
                "tier": _TIER,
                "model": _MAYBE_TEXT,
                "expires_at": _TEXT,
                "env": {"type": "object", "additionalProperties": _TEXT},
            }
        ),
        "Registered": {"anyOf": [one, _form({"rollouts": {"type": "array", "items": one}})]},
        "Rollout": _form(
            {
                "id": _TEXT,
                "group": _MAYBE_TEXT,
                "labels": {"type": "object", "additionalProperties": _TEXT},
                "state": {"type": "string", "enum": ["open", "closed"]},
                "tier": _TIER,
                "tier_reason": _TEXT,
                "model": _MAYBE_TEXT,
                "logprobs_mode": {"type": "string", "enum": ["raw", "processed", "unknown"]},
                "incomplete": _YES,
                "reward": _MAYBE_NUMBER,
                "per_call_rewards": {"type": "object", "additionalProperties": {"type": "number"}},
                "reward_details": _OBJECT,
                "stopped": _maybe(_form({"limit": _TEXT, "at_call": _COUNT, "stops": _COUNT})),
                "n_calls": _COUNT,
                "n_main_calls": _COUNT,
                "n_tool_calls": _COUNT,
                "n_conversations": _COUNT,
                "n_prompt_tokens": _COUNT,
                "n_sampled_tokens": _COUNT,
                "n_distinct_tokens": _COUNT,
                "created_at": _TEXT,
                "first_call_at": _MAYBE_TEXT,
                "last_call_at": _MAYBE_TEXT,
                "closed_at": _MAYBE_TEXT,
                "budget_left": _OBJECT,
            }
        ),
        "RolloutRow": {"allOf": [rollout, _form({"health": _HEALTH})]},
        "Overview": _form(_OVERVIEW),
        "Wording": _form({"forks": {"type": "array", "items": _FORK}, "breaks": {"type": "array", "items": _BREAK}}),
        "TokenText": _form(
            {
                "start": _COUNT,
                "end": _COUNT,
                "n_tokens": _COUNT,
                "n_prompt": _COUNT,
                "ids": _NUMBERS,
                "pieces": {"type": "array", "items": _MAYBE_TEXT},
                "logprobs": {"type": "array", "items": _MAYBE_NUMBER},
                "source": {"enum": ["engine", "tokenizer", None]},
                "reason": _MAYBE_TEXT,
            }
        ),
        "Call": _form(_CALL),
        "Finding": _form(
            {
                "code": _TEXT,
                "level": _LEVEL,
                "calls": _NUMBERS,
                "message": _TEXT,
                "data": _OBJECT,
                "means": _TEXT,
                "hint": _TEXT,
            }
        ),
        "Graph": _form(
            {
                "version": {"const": 1},
                "rollout": rollout,
                "calls": {"type": "array", "items": {"$ref": "#/components/schemas/Call"}},
                "conversations": {"type": "array", "items": _OBJECT},
                "forks": {"type": "array", "items": _OBJECT},
                "findings": {"type": "array", "items": {"$ref": "#/components/schemas/Finding"}},
                "drift": _OBJECT,
            }
        ),
        "Engine": _form(
            {
                "name": _TEXT,
                "kind": _TEXT,
                "url": _TEXT,
                "version": _MAYBE_TEXT,
                "models": {"type": "array", "items": _TEXT},
                "max_model_len": _MAYBE_COUNT,
                "tier": _TIER,
                "tier_reason": _TEXT,
                "logprobs_mode": _TEXT,
                "healthy": _YES,
                "reason": _MAYBE_TEXT,
                "in_flight": _COUNT,
                "queued": _COUNT,
                "held": _YES,
                "weights": _MAYBE_TEXT,
            }
        ),
        "Tunnel": _form(
            {
                "name": _TEXT,
                "kind": _TEXT,
                "url": _MAYBE_TEXT,
                "healthy": _YES,
                "reason": _TEXT,
                "rollouts": _COUNT,
                "stranded": _COUNT,
                "opened": _COUNT,
                "lost": _COUNT,
            }
        ),
    }
