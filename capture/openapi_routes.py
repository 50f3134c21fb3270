"""Every route of both planes, in one table: what the OpenAPI document (`capture.openapi`) is made from.

A test holds it against the router, and its query parameters against what the routes read. What an answer holds is said
as far as a reader relies on it; a request's body is closed, for a field that nobody reads is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from capture import answers
from capture.formats import FORMATS
from graph import sequences
from graph.findings import TABLE as TABLE_OF_FINDINGS

Schema = dict[str, Any]

PARQUET = FORMATS["parquet"].content_type
TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "string", "enum": ["0", "1"]}
SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": answers.MOST_SECONDS}


def one_of(*words: str) -> Schema:
    """Return the schema of one of these words."""
    return {"type": "string", "enum": list(words)}


def whole(least: int, most: int = 2**31 - 1) -> Schema:
    """Return the schema of a whole number in these bounds."""
    return {"type": "integer", "minimum": least, "maximum": most}


def ref(name: str) -> Schema:
    """Return a reference to a form of `capture.openapi_forms`."""
    return {"$ref": f"#/components/schemas/{name}"}


def listed(key: str, of: Schema) -> Schema:
    """Return the schema of an envelope of many."""
    return {
        "type": "object",
        "required": [key, "next"],
        "properties": {key: {"type": "array", "items": of}, "next": {"type": ["string", "null"]}},
    }


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route."""

    method: Literal["GET", "HEAD", "POST", "PUT", "DELETE"]
    path: str
    says: str
    query: Mapping[str, Schema] = {}
    # Of the query, those that may come more than once.
    repeatable: tuple[str, ...] = ()
    headers: Mapping[str, Schema] = {}
    # The body's schema; None where there is none.
    body: Schema | None = None
    needs_body: bool = False
    # Status → what it is and its schema (JSON), or its media types.
    answers: Mapping[int, tuple[str, Schema | tuple[str, ...] | None]]
    # Statuses of errors that are this route's own; those that any may have are added.
    errors: tuple[int, ...] = ()
    plane: Literal["control", "data"] = "control"
    # Without a key.
    open: bool = False


_SEQUENCES: dict[str, Schema] = {
    "format": one_of(*FORMATS),
    "roles": {"type": "string", "pattern": f"^({'|'.join(sequences.ROLES)})(,({'|'.join(sequences.ROLES)}))*$"},
    "drift": one_of(*sequences.DRIFTS),
    "threshold": whole(0),
    "constrained": one_of("train"),
    "aborted": one_of("train"),
}
_LABEL: Schema = {"type": "string", "pattern": "^[^:]+:.*$"}
_LOOK: dict[str, Schema] = {
    "group": TEXT,
    "label": _LABEL,
    "finding": one_of(*TABLE_OF_FINDINGS),
    "q": TEXT,
    "trouble": FLAG,
    "graded": FLAG,
}
_OBJECT: Schema = {"type": "object"}
_ENGINES = (200, ("The engines as they are now.", listed("engines", ref("Engine"))))


def closed(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    """Return the schema of a body with these fields and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
    }


TABLE: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/rollouts",
        says="Register one rollout, or several at once: all or none. Their secrets are shown this once.",
        headers={"Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": 255}},
        body=ref("Registration"),
        answers={201: ("Registered.", ref("Registered"))},
        errors=(409, 422),
    ),
    Route(
        method="GET",
        path="/rollouts",
        says="List rollouts by cursor; order=closed tails.",
        query={
            "state": one_of("open", "closed"),
            **_LOOK,
            "order": one_of("created", "closed", "-created"),
            "after": TEXT,
            "limit": whole(1, 1_000),
        },
        repeatable=("label",),
        answers={200: ("A page.", listed("rollouts", ref("RolloutRow")))},
    ),
    Route(
        method="GET",
        path="/overview",
        says="Sum up rollouts: how many there are of each kind, their findings, rewards, groups and labels.",
        query={"state": one_of("open", "closed"), **_LOOK},
        repeatable=("label",),
        answers={200: ("The sums.", ref("Overview"))},
    ),
    Route(
        method="GET",
        path="/rollouts/{id}",
        says="Show a rollout; with wait, when it has closed or is idle.",
        query={"wait": one_of("closed", "idle"), "idle_s": SECONDS, "timeout_s": SECONDS},
        answers={200: ("Its summary.", ref("Rollout")), 204: ("The time is over, and it has not come.", None)},
    ),
    Route(
        method="DELETE",
        path="/rollouts/{id}",
        says="Remove a rollout and what only it used.",
        answers={204: ("Gone.", None)},
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/graph",
        says="Show the forest.",
        answers={200: ("The graph.", ref("Graph"))},
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/findings",
        says="List the findings alone.",
        answers={200: ("The findings.", listed("findings", ref("Finding")))},
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/forks",
        says="Tell forks and breaks in words, with the fields that the agent changed.",
        answers={200: ("The words.", ref("Wording"))},
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/sequences",
        says="Give training sequences, in any trainer's format; with ids=0 the outline of the native rows.",
        query={**_SEQUENCES, "open": FLAG, "ids": FLAG},
        answers={200: ("In the format that was asked for.", ("application/json", PARQUET))},
        errors=(409,),
    ),
    Route(
        method="GET",
        path="/sequences",
        says="Give the training sequences of many rollouts, a line each, the last of which says that it is the last.",
        query={
            **_SEQUENCES,
            "open": FLAG,
            "state": one_of("open", "closed"),
            "group": TEXT,
            "label": _LABEL,
            "order": one_of("created", "closed"),
            "after": TEXT,
            "limit": whole(1, 2**31 - 1),
        },
        repeatable=("label",),
        answers={200: ("JSON lines, or a file.", ("application/x-ndjson", PARQUET))},
        errors=(409,),
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/replay",
        says="List the resume points; with saved=1, give the rollout as a line to keep.",
        query={"saved": FLAG},
        answers={200: ("The points.", _OBJECT)},
        errors=(409,),
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/replay/{k}",
        says="Give the seed at a resume point, or at `whole`.",
        query={"instruction": TEXT},
        answers={200: ("The seed.", _OBJECT)},
        errors=(409,),
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/state",
        says="Show what the rollout's tool servers keep with it.",
        answers={
            200: (
                "The state.",
                {
                    "type": "object",
                    "required": ["state", "version", "changed_at"],
                    "properties": {"version": whole(0), "changed_at": {"type": ["string", "null"]}},
                },
            )
        },
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/calls",
        says="List calls by their numbers; with ids=1, with their token arrays.",
        query={"after": whole(-1), "limit": whole(1, 10_000), "ids": FLAG},
        answers={200: ("A page.", listed("calls", ref("Call")))},
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/calls/{n}",
        says="Show one call whole: request and reply as they passed, ids, logprobs; with ids=0, without token arrays.",
        query={"ids": FLAG},
        answers={200: ("The call.", ref("Call"))},
    ),
    Route(
        method="GET",
        path="/rollouts/{id}/calls/{n}/text",
        says="Give the text of a call's tokens, 2,048 at most; null for half a character, and where nobody can say it.",
        query={"start": whole(0), "end": whole(0)},
        answers={200: ("The tokens from start to end.", ref("TokenText"))},
    ),
    *(
        Route(
            method="GET",
            path=path,
            says=says,
            query={"after": TEXT},
            headers={"Last-Event-ID": TEXT},
            answers={200: ("Server-sent events; docs/operations.md has their table.", ("text/event-stream",))},
            errors=(410,),
        )
        for path, says in (
            ("/rollouts/{id}/events", "Follow what happens in one rollout."),
            ("/events", "Follow what happens."),
        )
    ),
    Route(
        method="POST",
        path="/rollouts/{id}/close",
        says="Seal a rollout: wait for what runs, then cut it. Answers with its sequences, if they are asked for.",
        body=closed(
            {
                "wait_s": SECONDS,
                "reward": {"type": ["number", "null"]},
                "sequences": {"type": ["object", "null"]},
            }
        ),
        answers={
            200: (
                "Closed.",
                {
                    "type": "object",
                    "required": ["rollout", "sequences"],
                    "properties": {"rollout": ref("Rollout"), "refused": _OBJECT},
                },
            )
        },
        errors=(409,),
    ),
    Route(
        method="PUT",
        path="/rollouts/{id}/reward",
        says="Attach a reward; null is ungraded.",
        body={
            **closed(
                {
                    "reward": {"type": ["number", "null"]},
                    "per_call": {"type": "object", "additionalProperties": {"type": "number"}},
                    "details": _OBJECT,
                    "force": {"type": "boolean"},
                }
            ),
            "anyOf": [{"required": [name]} for name in ("reward", "per_call", "details")],
        },
        needs_body=True,
        answers={200: ("The rollout.", ref("Rollout"))},
        errors=(409,),
    ),
    Route(
        method="PUT",
        path="/rollouts/{id}/roles",
        says="Overrule what a conversation was for.",
        body=closed(
            {
                "conversation": {"type": "integer"},
                "role": one_of("main", "subagent", "auxiliary", "title", "summary", "probe", "other"),
            },
            ("conversation", "role"),
        ),
        needs_body=True,
        answers={200: ("The rollout.", ref("Rollout"))},
    ),
    Route(
        method="GET",
        path="/engines",
        says="List the engines.",
        answers=dict([_ENGINES]),
    ),
    Route(
        method="POST",
        path="/engine/pause",
        says="Hold new calls, and wait until none runs; 409 with those that do. Without engine, everywhere.",
        body=closed({"engine": {"type": ["string", "null"]}, "wait_s": SECONDS}),
        answers=dict([_ENGINES]),
        errors=(409,),
    ),
    Route(
        method="POST",
        path="/engine/resume",
        says="Let calls in again.",
        body=closed({"engine": {"type": ["string", "null"]}}),
        answers=dict([_ENGINES]),
    ),
    Route(
        method="POST",
        path="/engine/weights",
        says="Say the version of an engine's weights.",
        body=closed(
            {
                "engine": {"type": ["string", "null"]},
                "version": {"type": "string", "minLength": 1, "maxLength": 200},
            },
            ("version",),
        ),
        needs_body=True,
        answers=dict([_ENGINES]),
    ),
    Route(
        method="GET",
        path="/tunnels",
        says="List the tunnels and their health.",
        answers={200: ("The tunnels.", listed("tunnels", ref("Tunnel")))},
    ),
    Route(
        method="GET",
        path="/health",
        says="Say that the process is alive.",
        answers={200: ("It is.", ref("Alive"))},
        open=True,
    ),
    Route(
        method="GET",
        path="/ready",
        says="Say whether engine, store and tunnel can be used.",
        answers={200: ("All can.", ref("Ready")), 503: ("Some can't; each is named.", ref("Ready"))},
        open=True,
    ),
    Route(
        method="GET",
        path="/metrics",
        says="Give the numbers to Prometheus; docs/operations.md has their table.",
        answers={200: ("Text format 0.0.4.", ("text/plain",))},
    ),
    Route(
        method="GET",
        path="/openapi.json",
        says="Give this document.",
        answers={200: ("OpenAPI 3.1.", _OBJECT)},
    ),
    *(
        Route(method="POST", path=path, says=says, body={"type": "object"}, needs_body=True, plane="data",
              answers={200: ("As the engine answers, in this dialect; a stream where one was asked for.", {})},
              errors=(409, 413, 415, 502, 503, 504, 507))
        for path, says in (
            ("/v1/chat/completions", "OpenAI Chat."),
            ("/v1/completions", "OpenAI Completions."),
            ("/v1/responses", "OpenAI Responses."),
            ("/v1/messages", "Anthropic Messages."),
            ("/v1/messages/count_tokens", "Count tokens, for Anthropic's clients."),
            ("/v1beta/models/{model}:generateContent", "Gemini."),
            ("/v1beta/models/{model}:streamGenerateContent", "Gemini, as a stream."),
            ("/v1beta/models/{model}:countTokens", "Count tokens, for Gemini's clients."),
        )
    ),
    *(
        Route(method="GET", path=path, says=says, plane="data", answers={200: ("In the dialect's form.", _OBJECT)})
        for path, says in (
            ("/v1/responses/{id}", "An earlier response of the rollout."),
            ("/v1/models", "What the rollout may ask for."),
            ("/v1/models/{id}", "One of them."),
            ("/v1beta/models", "The same, for Gemini's clients."),
        )
    ),
    Route(
        method="GET",
        path="/task",
        says="Give the task's public part to the rollout's tool servers.",
        plane="data",
        answers={200: ("Text and data.", {"type": "object", "required": ["text", "data"]})},
        errors=(403,),
    ),
    Route(
        method="GET",
        path="/state",
        says="Give the tool servers their state, with its ETag.",
        plane="data",
        headers={"If-None-Match": TEXT},
        answers={200: ("Any JSON.", {}), 304: ("It is still that.", None)},
        errors=(403,),
    ),
    Route(
        method="PUT",
        path="/state",
        says="Set that state; If-Match guards it.",
        plane="data",
        headers={"If-Match": TEXT, "If-None-Match": TEXT},
        body={},
        needs_body=True,
        answers={204: ("Set; the ETag is the new one's.", None)},
        errors=(403, 412, 413),
    ),
    Route(
        method="GET",
        path="/healthz",
        says="Say that the process is alive, with its nonce.",
        plane="data",
        answers={200: ("It is.", ref("Alive"))},
        open=True,
    ),
)  # fmt: skip
"""Every route of our own."""
