"""The cost of traces in a drain: OpenTelemetry's API alone, and an SDK that exports nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

import shardq
from shardq.bench.drains import drain
from shardq.bench.line import Line, Pair, interleaved
from shardq.bench.puts import body_of
from shardq.tracing import Traces

if TYPE_CHECKING:
    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace

_RATIO = 0.8
_WHAT = "drain with traces"


def cost(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Drain a backlog with traces and without, in turn."""
    pair = _pair(place, sizes, Traces(), nullcontext())
    note = f"{sizes.drain:,} rows, one process; bare: without traces"
    lines = [Line(f"{_WHAT}, no SDK", pair.reached, "rows/s", f"{_RATIO} of that without",
                  pair.ratio >= _RATIO, pair.bare, pair.ratio, note)]  # fmt: skip
    if find_spec("opentelemetry.sdk") is not None:
        pair = _with_sdk(place, sizes)
        note += ". Each run has a span with a link, for an exporter that drops it"
        lines.append(Line(f"{_WHAT}, an SDK", pair.reached, "rows/s", bare=pair.bare,
                          ratio=pair.ratio, note=note))  # fmt: skip
    return lines


def _with_sdk(place: BenchPlace, sizes: Sizes) -> Pair:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    # The base class exports nothing.
    exporter = SpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=1 << 20))
    try:
        tracer = provider.get_tracer(__name__)
        within = tracer.start_as_current_span("put")
        return _pair(place, sizes, Traces(tracer_provider=provider), within)
    finally:
        provider.shutdown()


def _pair(
    place: BenchPlace, sizes: Sizes, traces: Traces, within: AbstractContextManager[object]
) -> Pair:
    bodies = [body_of(n) for n in range(sizes.drain)]

    def drained(traces: Traces | None) -> float:
        with shardq.connect(place.url(), traces=traces) as db:
            queue = place.queue(db, "traced")
            queue.put_many(bodies)
            return drain(place, queue, len(bodies))

    with within:
        return interleaved(
            sizes.repetitions, lambda _turn: drained(traces), lambda _turn: drained(None)
        )
