"""Puts within a trace: the messages carry the trace in their headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardq.lifecycle.batch import iterator_of
from shardq.lifecycle.producer import Producer
from shardq.model.message import Message, Sealed, write_headers
from shardq.tracing import names
from shardq.tracing.carrier import TRACEPARENT, carried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq.errors import ShardqError
    from shardq.lifecycle.batch import Item
    from shardq.tracing import Traces


class TracedProducer(Producer):
    """A producer whose puts have spans of their own, if a span is current."""

    def __init__(self, *parts: Any, queue: str, traces: Traces) -> None:
        super().__init__(*parts)
        self._queue = queue
        self._traces = traces

    def put(
        self,
        body: bytes | str | Message,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Message:
        """See `Producer.put`."""
        if not self._traces.is_within:
            return super().put(body, headers=headers, **options)
        with self._traces.send(self._queue) as span:
            # Headers that are no mapping are refused later, where all headers are checked.
            if headers is None or isinstance(headers, Mapping):
                headers = carried(self._traces.current, headers or {})
            message = super().put(body, headers=headers, **options)
            span.set_attribute(names.MESSAGE_ID, message.id)
            return message

    def put_many(self, items: Iterable[Item], on_id: Callable[[str], object] | None = None) -> int:
        """See `Producer.put_many`; all puts have one span."""
        if not self._traces.is_within:
            return super().put_many(items, on_id)
        with self._traces.send(self._queue) as span:
            count = super().put_many(_carrying(items, self._traces.current), on_id)
            span.set_attribute(names.MESSAGES, count)
            return count

    def put_each(self, items: Iterable[Item]) -> list[Message | ShardqError]:
        """See `Producer.put_each`; all puts have one span."""
        if not self._traces.is_within:
            return super().put_each(items)
        with self._traces.send(self._queue) as span:
            answers = super().put_each(_carrying(items, self._traces.current))
            span.set_attribute(names.MESSAGES, len(answers))
            return answers


def _carrying(items: Iterable[Item], trace: Mapping[str, str]) -> Iterator[Item]:
    """Items of `put_many` that carry a trace, except items that carry one already."""
    iterator = iterator_of(items)
    text = write_headers(trace)

    def carrying() -> Iterator[Item]:
        for item in iterator:
            if type(item) is bytes:
                # `Sealed` is the fastest form of an item with headers.
                yield Sealed(item, text)
            elif isinstance(item, str):
                yield {"body": item, "headers": trace}
            elif type(item) is Sealed:
                is_kept = TRACEPARENT in item.headers
                yield item if is_kept else Sealed(item.body, f"{text[:-1]},{item.headers[1:]}")
            elif isinstance(item, Mapping) and isinstance(item.get("headers") or {}, Mapping):
                yield {**item, "headers": carried(trace, item.get("headers") or {})}
            else:
                yield item

    return carrying()
