"""The text of a call's tokens: asked of the engine that sampled them, or of a tokeniser on this machine.

Rules
1. A token view is for people who look; it may be slow and it may fail, and it holds up no call: few questions, short
   waits, and what was learnt is kept for the next who looks.
2. Who is asked, in order: the engine that served the call; another that serves the rollout's model; the tokeniser of
   `--tokenizer`. Where none can say, the texts are null and `reason` says what to do.
3. Positions count prompt and sampled ids together. A text is of one id alone; half a character has none.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import web

from capture import answers
from capture.engines import spelling
from capture.engines.spelling import SPELLINGS, Marks, Spelling
from capture.errors import ClientError, EngineError
from capture.rerender import MissingError, decoder
from capture.upstream import Engine
from graph.graph import Graph

if TYPE_CHECKING:
    from capture.app import Appliance

MOST_TOKENS = 2_048
"""Of one answer: some screens of a page."""

MOST_KEPT = 400_000
"""Texts kept, of all engines together: two vocabularies of 150,000, at some 100 bytes each."""

MOST_QUESTIONS = 64
"""To an engine for one answer: 8 where all goes well."""

LIMIT_S = 8.0
"""For all of them."""

Pieces = dict[int, str | None]
"""By id; None for half a character."""


def routes(appliance: Appliance) -> list[web.RouteDef]:
    """Return the route."""
    texts = Texts(appliance)

    async def show(request: web.Request) -> web.StreamResponse:
        asked = answers.query(request, ASKED)
        graph = await appliance.rollouts.graph(request.match_info["id"])
        n = answers.number(request.match_info["n"])
        if n not in graph.forest.calls:
            raise ClientError("call_not_found", "This rollout has no such call.", hint="GET …/calls.", status=404)
        return answers.answer(request, await texts.of(graph, n, asked.get("start", 0), asked.get("end")))

    return [web.get("/rollouts/{id}/calls/{n}/text", show)]


ASKED: dict[str, answers.Reader] = {"start": answers.whole(0, 2**31 - 1), "end": answers.whole(0, 2**31 - 1)}


class Texts:
    """Asks for texts, and keeps them."""

    def __init__(self, appliance: Appliance) -> None:
        self._appliance = appliance
        # By who says it: an engine's URL, its model, and how often it came back (as another, perhaps).
        self._kept: OrderedDict[tuple[Any, ...], Pieces] = OrderedDict()
        self._marks: dict[tuple[Any, ...], Marks | None] = {}
        self._asking = asyncio.Lock()
        self._decode: Any = None

    def __repr__(self) -> str:
        return f"<Texts of {sum(map(len, self._kept.values()))} tokens>"

    async def of(self, graph: Graph, n: int, start: int, end: int | None) -> dict[str, Any]:
        """Return the form of a call's tokens from `start` on, up to `end` or `MOST_TOKENS`.

        Raises `ClientError` 422 `invalid_query` for a stretch that begins behind the call's end, or its own.
        """
        call, forest = graph.forest.calls[n], graph.forest
        prompt, sampled = forest.prompt_ids(n), forest.sampled_ids(n)
        n_prompt = 0 if prompt is None else len(prompt)
        ids = np.concatenate([each for each in (prompt, sampled) if each is not None] or [np.empty(0, np.int32)])
        last = min(len(ids) if end is None else end, len(ids), start + MOST_TOKENS)
        if start > len(ids) or last < start:
            raise ClientError(
                "invalid_query", f"This call has {len(ids)} tokens, and nothing from {start} to {end or len(ids)}.",
                hint="start and end count its prompt and sampled ids together, from 0.", status=422,
            )  # fmt: skip
        wanted = ids[start:last]
        scored = np.full(len(ids), np.nan, np.float32)
        if call.logprobs is not None and sampled is not None and len(call.logprobs) == len(sampled):
            scored[n_prompt:] = call.logprobs
        form: dict[str, Any] = {
            "start": start, "end": last, "n_tokens": len(ids), "n_prompt": n_prompt, "ids": wanted,
            "pieces": [None] * len(wanted), "logprobs": scored[start:last], "source": None, "reason": None,
        }  # fmt: skip
        if not len(ids):
            form["reason"] = (
                "No token ids were captured for this call: see its findings, and whether the engine gives any."
            )
            return form
        source, pieces, reason = await self._pieces(graph, call.engine, sorted(set(wanted.tolist())))
        form["pieces"] = [pieces.get(one) for one in wanted.tolist()]
        return {**form, "source": source, "reason": reason}

    async def _pieces(
        self, graph: Graph, engine: str | None, ids: Sequence[int]
    ) -> tuple[str | None, Pieces, str | None]:
        """Return who said it, the texts, and why some or all are missing."""
        model, why = graph.rollout.model, "No engine that serves this call's model is here."
        for one in self._candidates(engine, model):
            how = SPELLINGS.get(one.adapter.kind)
            if how is None:
                why = f"An engine of kind {one.kind} gives no text for ids."
                continue
            try:
                async with asyncio.timeout(LIMIT_S), self._asking:
                    return "engine", *await self._ask(one, how, model if model in one.models else None, ids)
            except TimeoutError:
                why = f"The engine at {one.url} did not say the tokens' text within {LIMIT_S:g} s."
            except EngineError as error:
                why = error.message
        folder = self._appliance.settings.tokenizer
        if folder is not None:
            try:
                found = await asyncio.to_thread(self._local, Path(folder), ids)
            except MissingError as error:
                why = f"--tokenizer {folder}: {error}."
            else:
                return "tokenizer", found, None
        todo = "Start the engine again" if engine is not None else "Start an engine that serves the model"
        return None, {}, f"{why} {todo}, or name a folder with the model's tokeniser: --tokenizer FOLDER."

    def _candidates(self, name: str | None, model: str | None) -> list[Engine]:
        """Return the engines to ask: the one that answered the call, then those that serve the rollout's model."""
        every = [engine for engine in self._appliance.fleet.all if engine.changed is None]
        own = [engine for engine in every if engine.name == name]
        others = [engine for engine in every if engine not in own and model is not None and model in engine.models]
        return own + sorted(others, key=lambda engine: not engine.healthy)

    async def _ask(
        self, engine: Engine, how: Spelling, model: str | None, ids: Sequence[int]
    ) -> tuple[Pieces, str | None]:
        """Return texts, as an engine says them, and why some are missing. Raises `EngineError`."""
        who = engine.url, model, engine.returns
        kept = self._kept.setdefault(who, {})
        self._kept.move_to_end(who)
        asked = _Questions(engine, how, model)
        missing = [one for one in ids if one not in kept]
        if missing and who not in self._marks:
            self._marks[who] = await asked.marks()
        marks = self._marks.get(who)
        # Halves of what didn't come apart come back to the end.
        batches = [missing[at : at + spelling.BATCH] for at in range(0, len(missing), spelling.BATCH)]
        while batches and asked.left:
            batch = batches.pop(0)
            found = await asked.pieces(batch, marks)
            if found is not None:
                kept.update(found)
            elif len(batch) > 1:
                batches += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
            else:
                # It has no such id, or can't say it.
                kept[batch[0]] = None
        reason = None
        if batches:
            some = sum(map(len, batches))
            reason = f"The text of {some} tokens was not asked for: too many questions at once. Ask again for the rest."
        pieces = {one: kept[one] for one in ids if one in kept}
        self._trim()
        return pieces, reason

    def _trim(self) -> None:
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_KEPT:
            who, _ = self._kept.popitem(last=False)
            self._marks.pop(who, None)

    def _local(self, folder: Path, ids: Sequence[int]) -> Pieces:
        """Return texts by the tokeniser in a folder. Raises `MissingError`."""
        if self._decode is None:
            self._decode = decoder(folder)
        return {one: spelling.shown(text) for one, text in zip(ids, self._decode(ids), strict=True)}


class _Questions:
    """Questions to one engine for one answer, counted."""

    def __init__(self, engine: Engine, how: Spelling, model: str | None) -> None:
        self._engine = engine
        self._how = how
        self._model = model
        self.left = MOST_QUESTIONS

    async def marks(self) -> Marks | None:
        """Learn how an engine spells a mark; None where it can't be asked for many ids at once."""
        body = await self._answer(self._how.tokenise(spelling.MARK, self._model))
        if body is None:
            return None
        ids = self._how.ids(body)
        twice = await self._text([*ids, *ids])
        return None if twice is None else spelling.marks(ids, twice)

    async def pieces(self, ids: Sequence[int], marks: Marks | None) -> Pieces | None:
        """Return the texts of some ids; None where that can't be told of them together.

        Raises `EngineError` where the engine has no such route.
        """
        if len(ids) == 1:
            text = await self._text(ids)
            return None if text is None else {ids[0]: spelling.shown(text)}
        if marks is None:
            return None
        text = await self._text(marks.question(ids))
        pieces = None if text is None else marks.pieces(text, len(ids))
        return None if pieces is None else dict(zip(ids, map(spelling.shown, pieces), strict=True))

    async def _text(self, ids: Sequence[int]) -> str | None:
        body = await self._answer(self._how.detokenise(ids, self._model))
        return None if body is None else self._how.told(body)

    async def _answer(self, ask: Any) -> bytes | None:
        """Return an answer, None where the engine refuses it. Raises `EngineError` where it has no such route."""
        self.left -= 1
        status, body = await self._engine.ask(ask)
        if status in (401, 403, 404, 405, 501):
            raise EngineError("engine_refused", f"The engine at {self._engine.url} answers {status} to {ask.path}.")
        return body if status < 400 else None
