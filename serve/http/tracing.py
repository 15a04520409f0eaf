"""Traces for OpenTelemetry, from a request to the batch that answered it.

Switched on and set up by OpenTelemetry's own variables, in the environment of the replica:
`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` … A caller's `traceparent`
is carried on. Spans hold no text and no token.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from jobs.errors import DeployError
from serve.version import ModelVersion

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Where spans go; without one of them there are none."""
SERVICE = "OTEL_SERVICE_NAME"
METHOD, PATH, STATUS = "http.request.method", "url.path", "http.response.status_code"
"""Names of attributes by OpenTelemetry's semantic conventions."""
FIRST_ERROR = 500
"""A server's span is an error from this status on."""


class Tracing:
    """Spans of one replica."""

    def __init__(self, version: ModelVersion, path: str) -> None:
        """`path`: of predictions, the one that spans are named for.

        Raises DeployError without the exporter.
        """
        self._path = path
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise DeployError(
                f"{' or '.join(ENDPOINTS)} is set, but the exporter is missing where the endpoint"
                " runs: pip install 'raywinnow[tracing]'"
            ) from None
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation import tracecontext

        service = os.environ.get(SERVICE) or version.name
        known = {"service.name": service, "service.version": version.id}
        self._provider = TracerProvider(resource=Resource.create(known))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("winnow.serve")
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._trace = trace

    @contextlib.contextmanager
    def request(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[Any]:
        """The span of a request, below the caller's; what is done inside the block is below it."""
        with self._tracer.start_as_current_span(
            f"{method} {path}" if path == self._path else method,  # names are to be few
            self._propagator.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={METHOD: method, PATH: path},
            record_exception=False,  # what it says may hold a text
            set_status_on_exception=False,
        ) as span:
            yield span

    def noted(self, span: Any, message: MutableMapping[str, Any]) -> None:
        """Note the status of an answer when an ASGI message has it."""
        if message["type"] == "http.response.start":
            span.set_attribute(STATUS, message["status"])
            if message["status"] >= FIRST_ERROR:
                span.set_status(self._trace.StatusCode.ERROR)

    def answered(self, texts: int, rows: int, queue_s: float, infer_s: float) -> None:
        """Spans of what ended just now: waiting in the queue, and the last batch."""
        end = time.time_ns()
        begin = end - int(infer_s * 1e9)
        asked = begin - int(queue_s * 1e9)
        self._tracer.start_span("queue", start_time=asked).end(begin)
        sizes = {"winnow.texts": texts, "winnow.batch.rows": rows}
        self._tracer.start_span("batch", start_time=begin, attributes=sizes).end(end)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def tracing_of(version: ModelVersion, path: str) -> Tracing | None:
    """None where the environment asks for no traces. Raises DeployError without the exporter."""
    return Tracing(version, path) if any(os.environ.get(name) for name in ENDPOINTS) else None
