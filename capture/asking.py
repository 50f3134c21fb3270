"""The engine's side of one call: asked once, or of several engines the first that takes it, and let go.

Rules
1. A call goes to another engine, or a second time, only before its first byte.
2. A reply that comes whole is fetched by a task from the beginning, head and body: it outlives who waits for it, since
   with the request all would be lost. A stream is opened by who waits for it, so that nothing stands in its way.
3. What broke on the way is told to the recorder here, and raised; a place at the engine is given back once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from capture.calls import Calls
from capture.draft import Draft
from capture.errors import EngineError, TreeringError
from capture.patience import Patience
from capture.queue import FULL
from capture.tasks import spawn
from capture.upstream import Engine, Reply, whole

CUT = (aiohttp.ClientPayloadError, aiohttp.ServerConnectionError)
"""How our HTTP library says that the engine's connection broke in an answer."""


class Asking:
    """One call's request to its engines, and what came back."""

    def __init__(self, calls: Calls, draft: Draft) -> None:
        self._calls = calls
        self._draft = draft
        # The engine's answer, once its head is here; and its body, where that isn't a stream.
        self.answer: Reply | None = None
        self.body: bytes | None = None
        self._headers: list[tuple[str, str]] = []
        # Fetches a reply that comes whole; gives back what went wrong.
        self._fetching: asyncio.Task[TreeringError | None] | None = None
        # Gives the place at the engine back.
        self._leave: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "new" if self.answer is None else str(self.answer.status)
        return f"<Asking {state}{', fetching' if self._fetching is not None else ''}>"

    @property
    def is_lost_when_left(self) -> bool:
        """Say whether all would have to be asked for anew if who waits for it leaves now."""
        return self.answer is None and self._fetching is None

    @property
    def is_stream(self) -> bool:
        """Say whether the answer is a reply that comes as a stream."""
        answer = self.answer
        return answer is not None and answer.status < 300 and answer.content_type == "text/event-stream"

    async def ask(self, headers: list[tuple[str, str]]) -> None:
        """Ask, until the answer's head is here, and of a whole reply the body; again, only for what is missing.

        Raises `TreeringError`.
        """
        if self.answer is not None and self._fetching is None:
            return
        self._headers = headers
        request = self._draft.request
        assert request is not None
        if request.streamed:
            await self._send()
            return
        if self._fetching is None:
            self._fetching = spawn(self._fetch(), name=f"fetch call {self._draft.live.id}/{self._draft.n}")
        error = await asyncio.shield(self._fetching)
        if error is not None:
            raise error

    async def read(self) -> bytes:
        """Return the answer's body. Raises `EngineError` where it breaks off, having told the recorder."""
        if self.body is not None:
            return self.body
        answer, recorder = self.answer, self._draft.recorder
        assert answer is not None
        assert recorder is not None
        try:
            with Patience(self._calls.silence_s):
                self.body = await whole(answer)
                return self.body
        except TimeoutError:
            broke = self._silent()
            said = broke.message
        except EngineError as error:
            broke, said = error, error.message
        except CUT as error:
            self.doubt()
            broke = EngineError("engine_cut", "The engine broke its answer off.", hint="Its log says why; try again.")
            broke.__cause__, said = error, str(error) or type(error).__name__
        recorder.answered(answer.status)
        recorder.cut(said)
        raise broke

    def doubt(self) -> None:
        """Note that the engine broke off: who answers there now is asked before its next call."""
        for engine in self._draft.engines:
            engine.doubted = engine.doubted or engine.name == self._draft.engine

    def drop(self) -> None:
        """Drop the request, whatever has come of it."""
        if self._fetching is not None:
            self._fetching.cancel()
        if self.answer is not None:
            self.answer.close()

    def give_back(self) -> None:
        """Give the place at the engine back, if there is one."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    async def _fetch(self) -> TreeringError | None:
        """Fetch an answer with its body; the error is given back, since nobody may be left to raise it to."""
        try:
            await self._send()
            if not self.is_stream:
                await self.read()
        except TreeringError as error:
            return error
        return None

    async def _send(self) -> None:
        """Send the request to the first engine that takes it. Raises `TreeringError`."""
        draft = self._draft
        for engine in draft.engines:
            try:
                self._leave = await self._calls.enter(draft, engine)
                self.answer = await self._post(engine)
            except EngineError as error:
                # A full line is no reason to go elsewhere: there the whole history would be read anew.
                if engine is draft.engines[-1] or error.code in FULL:
                    raise
                self.give_back()
                continue
            if self.answer.status in (400, 422) and await self._calls.without_refused(draft, engine, await self.read()):
                self.answer, self.body = await self._post(engine), None
            if self.answer.status in (401, 403):
                raise refusal(self.answer.status)
            if self.answer.status < 300:
                self._calls.inquire(draft, engine)
            return
        raise AssertionError("a call has at least one engine")

    async def _post(self, engine: Engine) -> Reply:
        """Send the request. Raises `EngineError`, also for an engine that takes it and says nothing."""
        request = self._draft.request
        assert request is not None
        body = await self._calls.body(self._draft, engine)
        try:
            with Patience(self._calls.silence_s):
                return await engine.send("POST", request.path, body=body, headers=self._headers)
        except TimeoutError:
            raise self._silent() from None

    def _silent(self) -> EngineError:
        self.doubt()
        return EngineError(
            "engine_silent",
            f"The engine said nothing for {self._calls.silence_s:g} s.",
            hint="It may hang: `treering doctor` says more. The limit is --engine-silence.",
            status=504,
        )


def refusal(status: int) -> EngineError:
    """Return the error for an engine's 401 or 403: the agent's own key was right."""
    return EngineError(
        "engine_refused",
        f"The engine refused Treering's own request with {status}; the agent's key was right.",
        hint="Give the engine's key with --engine-key-file.",
    )
