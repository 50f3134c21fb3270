"""The routes of both planes as an OpenAPI 3.1 document, made from one table (`capture.openapi_routes`).

The data plane's routes have a server of their own in the document, where agents connect. The bodies of its model routes
are the dialects' own, and are not described again here. Another test asks the running appliance by it (schemathesis).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from capture import answers
from capture import openapi_forms as forms
from capture.openapi_routes import TABLE, Route, Schema, ref
from capture.version import version

if TYPE_CHECKING:
    from capture.app import Appliance

_ANY = {"control": (400, 403, 404, 405, 408, 413, 415, 422, 500, 503, 507), "data": (400, 404, 408, 500)}
"""Errors that any route of a plane may have: a Host that isn't ours, a body that is none, a store that is down."""


def document(*, control_url: str = "/", data_url: str = "http://127.0.0.1:8400") -> dict[str, Any]:
    """Return the document; the URLs are where the two planes are reached."""
    paths: dict[str, dict[str, Any]] = {}
    for route in TABLE:
        item = paths.setdefault(route.path, {})
        if route.plane == "data":
            item["servers"] = [{"url": data_url}]
        item[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Treering",
            "version": answers.VERSION,
            "description": f"The HTTP interface of a token-capture proxy. This is Treering {version()}.",
        },
        "servers": [{"url": control_url}],
        "tags": [
            {"name": "control", "description": "For trainers and people, with the admin key."},
            {"name": "data", "description": "For agents and their tool servers, with a rollout's secrets."},
        ],
        "paths": paths,
        "components": {
            "schemas": forms.schemas(),
            "securitySchemes": {
                "admin": {"type": "http", "scheme": "bearer", "description": "The admin key."},
                "rollout": {"type": "http", "scheme": "bearer", "description": "The rollout's secret."},
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": f"{route.method.lower()} {route.path}",
        "summary": route.says,
        "tags": [route.plane],
        "security": [] if route.open else [{"admin" if route.plane == "control" else "rollout": []}],
        "responses": {},
    }
    if parameters := _parameters(route):
        said["parameters"] = parameters
    if route.body is not None:
        said["requestBody"] = {"required": route.needs_body, "content": {"application/json": {"schema": route.body}}}
    for status, (what, shape) in route.answers.items():
        said["responses"][str(status)] = {"description": what, **_content(shape)}
    unsafe = () if route.open else (401, 429)
    for status in sorted({*route.errors, *unsafe, *_ANY[route.plane]} - set(route.answers)):
        shape = ref("Error") if route.plane == "control" else {}
        said["responses"][str(status)] = {"description": "Refused; the answer says why.", **_content(shape)}
    return said


def _parameters(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in route.path.split("{")[1:]:
        name = part.partition("}")[0]
        schema = {"type": "integer", "minimum": 0} if name == "n" else {"type": "string", "minLength": 1}
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    for name, schema in route.query.items():
        many = {"schema": {"type": "array", "items": schema}} if name in route.repeatable else {"schema": schema}
        found.append({"name": name, "in": "query", **many})
    found += [{"name": name, "in": "header", "schema": schema} for name, schema in route.headers.items()]
    return found


def _content(shape: Schema | tuple[str, ...] | None) -> dict[str, Any]:
    if shape is None:
        return {}
    if isinstance(shape, tuple):
        return {"content": {kind: {} for kind in shape}}
    return {"content": {"application/json": {"schema": shape}}}


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the route."""

    async def show(request: web.Request) -> web.StreamResponse:
        answers.query(request, {})
        return answers.answer(request, document(data_url=appliance.data_url))

    return [web.get("/openapi.json", show)]
