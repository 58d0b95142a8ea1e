"""The names of OpenTelemetry's semantic conventions for messaging, and those of shardq beside them.

No other file spells them, so a change of the conventions is a change of this file.

Source:
    https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/, release 1.44.0, in which
    they are "Development".
"""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "shardq"
"""The name of the tracer."""

SYSTEM = "messaging.system"
SHARDQ = "shardq"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
CREATE, SEND, PROCESS = "create", "send", "process"
"""The operations; the type of each has the same name."""
QUEUE = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
MESSAGES = "messaging.batch.message_count"
ERROR_TYPE = "error.type"

TASK = "shardq.task"
ATTEMPT = "shardq.attempt"


def span_name(operation: str, queue: str) -> str:
    """The name of the span of an operation on a queue.

    >>> span_name(SEND, "mail")
    'send mail'
    """
    return f"{operation} {queue}"


def attributes_of(operation: str, queue: str) -> dict[str, str | int]:
    """The attributes that each span of an operation on a queue has."""
    return {SYSTEM: SHARDQ, OPERATION: operation, OPERATION_TYPE: operation, QUEUE: queue}
