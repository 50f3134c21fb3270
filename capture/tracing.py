"""A span for each call, by OpenTelemetry (the extra `otel`); off unless asked for.

Rules
1. A call's span goes on from the agent's `traceparent` (W3C Trace Context), and the engine is sent the span's own, so
   that agent, Treering and engine stand in one trace. Without this, an agent's header reaches the engine as it came.
2. Numbers and names alone: no content, no secret. Names are those of OpenTelemetry's conventions for generative models
   where it has one (`gen_ai.…`), else `treering.…`.
3. Nothing waits for an exporter: spans queue in memory, bounded, and are sent by a thread of the SDK's. What doesn't
   fit is dropped. Where they go is said by the environment, as for any program (`OTEL_EXPORTER_OTLP_ENDPOINT` and the
   like).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from capture.errors import UsageError
from capture.version import version

if TYPE_CHECKING:
    from capture.draft import Draft

Headers = list[tuple[str, str]]

_OURS = ("traceparent", "tracestate")


class Tracing:
    """Begins and ends the spans of calls."""

    def __init__(self, provider: Any = None) -> None:
        """`provider` is a `TracerProvider` of the SDK's; by default one that sends by OTLP over HTTP.

        Raises `UsageError` where the extra isn't installed.
        """
        try:
            # By name: type checkers needn't have an extra installed.
            trace = import_module("opentelemetry.trace")
            context = import_module("opentelemetry.trace.propagation.tracecontext")
            self._provider = provider if provider is not None else _provider()
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            raise UsageError(
                "--otel needs OpenTelemetry's SDK, which isn't installed.", hint="pip install 'treering[otel]'"
            ) from error
        self._tracer = self._provider.get_tracer("treering", version())
        self._propagator = context.TraceContextTextMapPropagator()
        self._kind, self._within = trace.SpanKind.SERVER, trace.set_span_in_context
        self._failed = trace.Status(trace.StatusCode.ERROR)

    def __repr__(self) -> str:
        return f"<Tracing {self._provider!r}>"

    def begin(self, draft: Draft, headers: Sequence[tuple[str, str]]) -> Headers:
        """Begin a call's span; return the headers for the engine with the span's own context in them."""
        came = {name.lower(): value for name, value in headers if name.lower() in _OURS}
        began = time.time_ns() - int((time.monotonic() - draft.start) * 1e9)
        request = draft.request
        draft.span = self._tracer.start_span(
            f"{draft.dialect} call",
            context=self._propagator.extract(came),
            kind=self._kind,
            start_time=began,
            attributes={
                "gen_ai.operation.name": "text_completion" if draft.dialect == "completions" else "chat",
                "gen_ai.request.model": (request.model if request else None) or "",
                "treering.rollout": draft.live.id,
                "treering.call": draft.n,
                "treering.dialect": draft.dialect,
                "treering.streamed": request.streamed if request else False,
            },
        )
        sent: dict[str, str] = {}
        self._propagator.inject(sent, self._within(draft.span))
        return [*(one for one in headers if one[0].lower() not in _OURS), *sent.items()]

    def end(self, draft: Draft) -> None:
        """End a call's span, if it has one."""
        span, draft.span = draft.span, None
        if span is None:
            return
        prompt, sampled = draft.n_tokens
        span.set_attribute("gen_ai.usage.input_tokens", prompt)
        span.set_attribute("gen_ai.usage.output_tokens", sampled)
        span.set_attribute("treering.status", draft.status)
        span.set_attribute("treering.queued_ms", draft.queued_ms or 0.0)
        if draft.engine is not None:
            span.set_attribute("treering.engine", draft.engine)
        if draft.first_token_ms is not None:
            span.set_attribute("treering.first_token_ms", draft.first_token_ms)
        if draft.status in ("error", "aborted"):
            span.set_status(self._failed)
        span.end()

    def close(self) -> None:
        """Send what is queued, within the exporter's own time limit; blocks, so it is called in a thread."""
        self._provider.shutdown()


def _provider() -> Any:
    resources, sdk = import_module("opentelemetry.sdk.resources"), import_module("opentelemetry.sdk.trace")
    exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
    told = resources.Resource.create({"service.name": "treering", "service.version": version()})
    provider = sdk.TracerProvider(resource=told)
    provider.add_span_processor(import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter))
    return provider
