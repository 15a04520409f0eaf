"""OpenTelemetry spans of requests, of their time in the queue, and of their batches.

OpenTelemetry's environment variables in the replica's process switch tracing on and configure it:
`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` … A request's span is a
child of the span in the caller's `traceparent` header. Spans contain no text and no token.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from jobs.errors import DeployError
from serve.version import ModelVersion

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables with the collector's URL; tracing is off if neither is set."""
SERVICE = "OTEL_SERVICE_NAME"
METHOD, PATH, STATUS = "http.request.method", "url.path", "http.response.status_code"
"""Attribute names. Source: OpenTelemetry's semantic conventions for HTTP."""
FIRST_ERROR = 500
"""Lowest HTTP status that marks a server's span as an error."""


class Tracing:
    """Records the spans of one replica and exports them."""

    def __init__(self, version: ModelVersion, path: str) -> None:
        """Sets up the exporter.

        Args:
            version: The model version; its name is the service's name unless `OTEL_SERVICE_NAME`
                is set.
            path: Path of predictions, which appears in span names; other paths do not, because
                span names must be few.

        Raises:
            DeployError: if the exporter's package is not installed.
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
        """Opens the span of a request; spans that start inside the block are its children."""
        with self._tracer.start_as_current_span(
            f"{method} {path}" if path == self._path else method,
            self._propagator.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={METHOD: method, PATH: path},
            record_exception=False,  # its message may contain a client's text
            set_status_on_exception=False,
        ) as span:
            yield span

    def record_status(self, span: Any, message: MutableMapping[str, Any]) -> None:
        """Sets a span's status from the ASGI message that starts the response."""
        if message["type"] == "http.response.start":
            span.set_attribute(STATUS, message["status"])
            if message["status"] >= FIRST_ERROR:
                span.set_status(self._trace.StatusCode.ERROR)

    def record_answer(self, texts: int, rows: int, queue_s: float, infer_s: float) -> None:
        """Records the spans `queue` and `batch` of a request whose batch has just ended."""
        end = time.time_ns()
        begin = end - int(infer_s * 1e9)
        queued = begin - int(queue_s * 1e9)
        self._tracer.start_span("queue", start_time=queued).end(begin)
        sizes = {"winnow.texts": texts, "winnow.batch.rows": rows}
        self._tracer.start_span("batch", start_time=begin, attributes=sizes).end(end)

    def close(self) -> None:
        """Exports the remaining spans."""
        self._provider.shutdown()


def tracing_of(version: ModelVersion, path: str) -> Tracing | None:
    """Returns the tracing that the environment configures; None if it configures none.

    Raises:
        DeployError: if the exporter's package is not installed.
    """
    return Tracing(version, path) if any(os.environ.get(name) for name in ENDPOINTS) else None
