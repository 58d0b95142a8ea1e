"""Log records that carry the ids of the run in which they were made."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING

from shardq.model.message import task_of

if TYPE_CHECKING:
    from shardq.model.message import Message

__all__ = ["RunIds"]

handled: ContextVar[Message | None] = ContextVar("shardq_message", default=None)
"""The message whose handler or task runs here; for a batch its first message."""


class RunIds(logging.Filter):
    """Adds to each log record the ids of the run in which it was made; drops no record.

    Add it to a handler of `logging`, so that it sees the records of all loggers. The records get:

    - `message_id`: the id of the message, or of the job;
    - `queue`: the name of its queue;
    - `task`: the name of the job's task, as it was put;
    - `trace_id`: the trace of the current span of OpenTelemetry, 32 hex digits.

    Each is empty if there is none. An id that a record already has, by `extra=`, is kept.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids to a record; returns True."""
        message = handled.get()
        own = record.__dict__
        own.setdefault("message_id", "" if message is None else message.id)
        own.setdefault("queue", "" if message is None else message.queue)
        own.setdefault("task", "" if message is None else task_of(message._row) or "")
        own.setdefault("trace_id", _trace_id())
        return True


def _trace_id() -> str:
    # If no part of the program has imported the API, no span is current.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""
