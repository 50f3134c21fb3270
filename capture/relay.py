"""The relay: what becomes of an agent's request, step by step.

With `passage`, to which it hands a call, it is where agents' sockets and engines' sockets meet. What each step means is
decided elsewhere (`calls`, `admission`, `recorder`); here it is only carried out.
"""

from __future__ import annotations

from aiohttp import web

from capture import admission, intake, retries
from capture.aside import aside
from capture.asking import refusal
from capture.calls import Calls
from capture.dialects.base import Dialect, Request, Target
from capture.engines.base import Ask
from capture.errors import TreeringError
from capture.following import follow
from capture.live import Live
from capture.passage import Passage, is_gone, reply_headers
from capture.upstream import whole


async def serve(
    calls: Calls, incoming: web.BaseRequest, live: Live, dialect: Dialect, target: Target, *, max_body: int
) -> web.StreamResponse:
    """Serve one model call. Raises `TreeringError` for what gets an error instead."""
    await calls.ready()
    body = await intake.read(incoming, max_body)
    headers = list(incoming.headers.items())
    said = retries.claim(incoming.headers)
    try:
        draft = await calls.arrive(live, dialect, body, headers, target=target, said=said)
    except retries.Retried as again:
        if (response := await _again(calls, incoming, live, dialect, again)) is not None:
            return response
        # What it is a retry of has nothing to give.
        draft = await calls.arrive(live, dialect, body, headers, target=target)
    # It is the draft's, which lets go of it.
    del body
    limit = calls.reserve(draft)
    if limit is None:
        to_engine = await calls.admit(draft, dialect, headers)
        draft.passage = passage = Passage(calls, incoming, draft, keep_alive=dialect.bears_comments)
        calls.begin(draft, passage.cut, said)
        if (carried := await passage.run(to_engine)) is not None:
            return carried
        limit = draft.cut_by
    assert limit is not None
    kind, reply = await calls.stop(draft, dialect, limit)
    return web.Response(body=reply, headers={"Content-Type": kind})


async def _again(
    calls: Calls, incoming: web.BaseRequest, live: Live, dialect: Dialect, again: retries.Retried
) -> web.StreamResponse | None:
    """Answer a retry by the call that it is one of; None if that has nothing to give. Raises `TreeringError`."""
    tried, request = again.tried, again.request
    first = tried.draft
    if first is not None and first.request is not None:
        otherwise = first.request.streamed != request.streamed
        response = await follow(calls, incoming, first, keep_alive=dialect.bears_comments, otherwise=otherwise)
        if response is not None:
            return response
    # Who joined has waited for it; else a reply that arrived after all is nobody's but its key's.
    recorded = await calls.recorded(live, tried, dialect, request, lost=first is None and not again.by_key)
    if recorded is None:
        return None
    kind, reply = recorded
    answer = web.Response(body=reply, headers={"Content-Type": kind})
    try:
        await answer.prepare(incoming)
        await answer.write_eof()
    except ConnectionError:
        calls.mark_again(live, tried, delivered=False)
        return answer
    calls.mark_again(live, tried, delivered=not is_gone(incoming))
    return answer


async def forward(
    calls: Calls, incoming: web.BaseRequest, live: Live, path: str, *, max_body: int
) -> web.StreamResponse:
    """Relay a request that samples nothing, unrecorded; its `model` is replaced by the rollout's."""
    engine = calls.engine_of(live)
    body = await intake.read(incoming, max_body)
    headers, _ = admission.engine_headers(list(incoming.headers.items()), live.rules.allow)
    model = live.rules.model or next(iter(engine.models), None)
    asked = body and await aside(len(body), lambda: admission.relayed(body, model, live.rules.allow))
    answer = await engine.send(incoming.method, path, body=asked or None, headers=headers)
    async with answer:
        if answer.status in (401, 403):
            raise refusal(answer.status)
        reply = await whole(answer)
    return web.Response(body=reply, status=answer.status, headers=reply_headers(answer))


async def count(
    calls: Calls, incoming: web.BaseRequest, live: Live, dialect: Dialect, target: Target, *, max_body: int
) -> web.StreamResponse:
    """Answer how many tokens a request would have: the engine's own count of its own rendering, never an estimate."""
    engine = calls.engine_of(live)
    body = await intake.read(incoming, max_body)
    model = live.rules.model or next(iter(engine.models), None)

    def ask() -> tuple[Request, Ask]:
        request = dialect.read_count(body, target=target)
        admission.refuse_media_urls(request, live.rules.allow)
        return request, engine.adapter.count(request, model=model)

    request, asked = await aside(len(body), ask)
    status, reply = await engine.ask(asked)
    if status in (401, 403):
        raise refusal(status)
    if status >= 400:
        translator = dialect.translator(request)
        failed = reply if translator is None else translator.failed(status, reply)
        return web.Response(body=failed, status=status, headers={"Content-Type": "application/json"})
    return web.Response(
        body=dialect.counted(engine.adapter.counted(reply)), headers={"Content-Type": "application/json"}
    )


def error_response(error: TreeringError, dialect: Dialect) -> web.Response:
    """Return an error in a dialect's shape."""
    headers = {"Content-Type": "application/json", **error.headers()}
    return web.Response(body=dialect.error(error), status=error.status, headers=headers)
