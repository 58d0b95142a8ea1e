"""Spans around puts and runs, by the API of OpenTelemetry. Users bring the SDK and exporters."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from shardq.errors import BadSetting, MissingExtra, StoreCorrupt, UsageError, shown
from shardq.model.message import read_headers, task_of
from shardq.tracing import names
from shardq.tracing.carrier import TRACEPARENT, carried

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, TracerProvider

    from shardq.model.message import Message, Row

_NOTHING = nullcontext()


def check_traces(given: object) -> None:
    """Refuse an argument that is no `Traces`.

    Raises:
        BadSetting: If it is neither None nor a `Traces`.
    """
    if given is not None and not isinstance(given, Traces):
        raise BadSetting(f"traces must be a shardq.tracing.Traces(), not {shown(given)}.")


class Traces:
    """Spans of puts and runs: for `shardq.connect(url, traces=Traces())` and `App(traces=..)`.

    A put within a span has a span of its own, which the message carries in its headers
    `traceparent` and `tracestate`. A run is a trace of its own, with a link to that span.

    Args:
        parent: True to make the run a child of the put's span, within the trace of the put.
        tracer_provider: Makes the spans; None: OpenTelemetry's own setting.

    Raises:
        MissingExtra: If the extra `otel` is not installed.
    """

    def __init__(
        self, *, parent: bool = False, tracer_provider: TracerProvider | None = None
    ) -> None:
        # Imported here because the server passes traces of others on without OpenTelemetry.
        try:
            from opentelemetry import trace
            from opentelemetry.context import Context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingExtra(
                "traces need the API of OpenTelemetry: pip install 'shardq[otel]'"
            ) from error
        if type(parent) is not bool:
            raise BadSetting(f"parent must be True or False, not {shown(parent)}.")
        self._parent = parent
        self._provider = tracer_provider
        self._api = trace
        self._root = Context()
        """The context of a span that begins a trace: without a current span."""
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer(
            names.SCOPE, tracer_provider=tracer_provider, schema_url=names.SCHEMA_URL
        )

    # Puts -----------------------------------------------------------------------------------------

    @property
    def is_within(self) -> bool:
        """True if a span is current, so that puts belong to its trace."""
        return bool(self._api.get_current_span().get_span_context().is_valid)

    @property
    def current(self) -> dict[str, str]:
        """The headers of messages that are put within the current span; empty without one."""
        return self._carrier(None)

    @contextmanager
    def send(self, queue: str) -> Iterator[Span]:
        """A span around a put, within the current span."""
        attributes = names.attributes_of(names.SEND, queue)
        with self._span(names.SEND, queue, self._api.SpanKind.PRODUCER, attributes) as span:
            yield span

    def created(self, queue: str, message_id: str, headers: dict[str, str]) -> dict[str, str]:
        """The headers of a message that a schedule puts: its firing begins a trace."""
        attributes = names.attributes_of(names.CREATE, queue) | {names.MESSAGE_ID: message_id}
        kind = self._api.SpanKind.PRODUCER
        with self._span(names.CREATE, queue, kind, attributes, context=self._root) as span:
            return carried(self._carrier(self._api.set_span_in_context(span)), headers)

    def _carrier(self, context: Context | None) -> dict[str, str]:
        found: dict[str, str] = {}
        self._propagator.inject(found, context)
        return found

    # Runs -----------------------------------------------------------------------------------------

    def run(self, *messages: Message) -> AbstractContextManager[object]:
        """A span around work on a message; for several messages, one span with a link to each put.

        Consumers and workers make this span by themselves. Callers of `receive` make it so:

        ```python
        for message in mail.receive():
            with traces.run(message):
                send(message)
            mail.ack(message)
        ```

        Args:
            messages: The received messages.

        Raises:
            UsageError: If there is no message.
        """
        if not messages:
            raise UsageError("run takes the messages that are worked on; there are none.")
        return _NOTHING if self._is_idle else self._run(messages)

    @property
    def _is_idle(self) -> bool:
        """True if no span is recorded and no trace of a put is continued: no SDK is installed."""
        api = self._api
        provider = self._provider or api.get_tracer_provider()
        return not self._parent and isinstance(
            provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)
        )

    @contextmanager
    def _run(self, messages: tuple[Message, ...]) -> Iterator[Span]:
        row, count = messages[0]._row, len(messages)
        queue = row.shard.queue
        attributes = names.attributes_of(names.PROCESS, queue)
        if count > 1:
            attributes[names.MESSAGES] = count
        else:
            attributes |= {names.MESSAGE_ID: row.message_id, names.ATTEMPT: messages[0].attempt}
        if task := task_of(row):
            attributes[names.TASK] = task
        puts = [put for one in messages if (put := self._put_of(one._row)) is not None]
        context, links = self._root, []
        if self._parent and count == 1:
            context = puts[0] if puts else context
        else:
            spans = map(self._api.get_current_span, puts)
            links = [self._api.Link(span.get_span_context()) for span in spans]
        kind = self._api.SpanKind.CONSUMER
        with self._span(names.PROCESS, queue, kind, attributes, context, links) as span:
            yield span

    def _put_of(self, row: Row) -> Context | None:
        """The context of the put of a message; None if it carries none."""
        if row.headers is None or TRACEPARENT not in row.headers:
            return None
        try:
            headers = read_headers(row)
        except StoreCorrupt:
            # The handler gets this error, if it reads the headers.
            return None
        found = self._propagator.extract(headers)
        return found if self._api.get_current_span(found).get_span_context().is_valid else None

    @contextmanager
    def _span(
        self,
        operation: str,
        queue: str,
        kind: SpanKind,
        attributes: dict[str, str | int],
        context: Context | None = None,
        links: list[Any] | None = None,
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            names.span_name(operation, queue),
            context,
            kind,
            attributes,
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                # Some exceptions are no failures, for example a snooze.
                if getattr(error, "_is_failure", True):
                    kind_of_error = type(error)
                    named = f"{kind_of_error.__module__}.{kind_of_error.__qualname__}"
                    span.set_attribute(names.ERROR_TYPE, named.removeprefix("builtins."))
                    span.set_status(self._api.StatusCode.ERROR, named.removeprefix("builtins."))
                    span.record_exception(error)
                raise
