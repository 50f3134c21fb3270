"""Any endpoint that speaks OpenAI's wire and tells no token ids: texts are recorded, and nothing can be trained on.

Only usage is asked for, in streams, since that is OpenAI's own field. Logprobs are not: without ids they train nothing,
some endpoints refuse them, and others charge or slow down for them.
"""

from __future__ import annotations

from typing import Literal

from capture.dialects.base import Request
from capture.engines import vllm_completions
from capture.engines.base import A_FEW, Ask, Reader
from capture.engines.chat_reader import ChatReader
from capture.engines.sampled import NULL
from capture.engines.wire import with_usage
from capture.errors import EngineError


class Uncountable:
    """What an adapter says to a request to count tokens when its engine has no route that counts those of messages."""

    def count(self, request: Request, *, model: str | None) -> Ask:  # noqa: ARG002 - the interface's arguments
        """Raise `EngineError` `count_unsupported`.

        With 404, as if the route were not there: clients then count on their own, while they try a 5xx again.
        """
        raise EngineError(
            "count_unsupported",
            "The engine has no route that counts the tokens of messages, and Treering makes no estimates.",
            status=404,
        )

    def counted(self, body: bytes) -> int:  # noqa: ARG002 - the interface's argument
        """Raise `EngineError` `engine_garbled`: nothing was asked."""
        raise EngineError("engine_garbled", "The engine gave no count of tokens.")


class OpenAI(Uncountable):
    """The adapter `openai`."""

    kind = "openai"
    require_tier: Literal["train", "eval"] = "eval"
    no_ids: str | None = "an engine of kind openai is not asked for token ids"
    probe_tokens = A_FEW

    def inject(self, request: Request) -> dict[str, bytes | None]:
        """Return the field to set so that usage comes back."""
        return with_usage(request.fields.get("stream_options", NULL)) if request.streamed else {}

    def reader(self, request: Request, *, model: str | None = None) -> Reader:
        """Return a reader for the reply; with `model` the reply's model name is replaced by it."""
        if request.path == vllm_completions.PATH:
            return vllm_completions.VllmCompletionsReader(request, model=model)
        return OpenAIReader(request, model=model)


class OpenAIReader(ChatReader):
    """Reads one reply of chat completions, without ids; logprobs pass to the client that asked for them."""
