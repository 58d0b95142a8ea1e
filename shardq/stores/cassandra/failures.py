"""The driver's errors as ours: not applied, maybe applied, or refused for good.

```
 not sent, or refused for now by the server          ──► StoreUnavailable
 sent, and no answer or an uncertain one: a write    ──► StoreTimeout
                                          a read     ──► StoreUnavailable (a read changes nothing)
 a read of too many tombstones                       ──► StoreOverread
 refused for its content                             ──► StoreRefused
```
"""

from __future__ import annotations

from cassandra import (
    AuthenticationFailed,
    DriverException,
    FunctionFailure,
    InvalidRequest,
    ReadFailure,
    ReadTimeout,
    RequestValidationException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    UnsupportedOperation,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import (
    ConnectionBusy,
    ConnectionException,
    ConnectionShutdown,
    ProtocolVersionUnsupported,
)
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import (
    BadCredentials,
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    SyntaxException,
)

from shardq.errors import (
    SchemaError,
    SchemaMissing,
    StoreError,
    StoreOverread,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from shardq.stores.cassandra.nodes import NEEDED

DRIVER_ERRORS: tuple[type[Exception], ...] = (
    DriverException,
    NoHostAvailable,
    ConnectionException,
    ConnectionBusy,
    NoConnectionsAvailable,
    ErrorMessage,
    OSError,
)
"""All errors that a request can end with. `ErrorMessage` stands for errors without a class of their
own in the driver, such as 0x1700 (an undecided LWT, protocol v5)."""

READ_ERRORS = (ReadFailure, ReadTimeout)
"""Errors that a smaller read may avoid."""

_REFUSED = (
    RequestValidationException,
    SyntaxException,
    UnsupportedOperation,
    FunctionFailure,
    ProtocolVersionUnsupported,
)
_NOT_APPLIED = (
    Unavailable,
    OverloadedErrorMessage,
    IsBootstrappingErrorMessage,
    NoConnectionsAvailable,
    ConnectionBusy,
    UnresolvableContactPoints,
)
_TOO_MANY_TOMBSTONES = 1
"""A replica's code for the reason of a failed read, in protocol 5."""
_OLDER_PROTOCOL = "while using explicitly set client protocol_version"
_LOGIN = (AuthenticationFailed, BadCredentials)


def store_error(
    error: Exception, *, place: str, write: bool, conditional: bool = False
) -> StoreError | SchemaError:
    """The error of shardq to raise for an error of the driver.

    Args:
        error: One of `DRIVER_ERRORS`.
        place: The address shown to people.
        write: True if the request may have changed anything.
        conditional: True if it was an LWT, whose failed reads leave the outcome unknown too.
    """
    said = _sentence(error)
    failure = _for_good(error, place, said)
    if failure is not None:
        return failure
    if isinstance(error, _NOT_APPLIED) or _never_sent(error):
        return StoreUnavailable(f"{place} is not available: {said}.")
    # A conditional write begins with a read, which may fail after an earlier round was accepted.
    if write and (conditional or not isinstance(error, READ_ERRORS)):
        return StoreTimeout(f"{place} did not confirm a write; it may be applied: {said}.")
    if isinstance(error, ReadFailure) and _is_overread(error):
        return StoreOverread(f"{place} gives up a read: {said}.")
    return StoreUnavailable(f"{place} gave no answer: {said}.")


def _is_overread(error: ReadFailure) -> bool:
    return _TOO_MANY_TOMBSTONES in (error.error_code_map or {}).values()


def _for_good(error: Exception, place: str, said: str) -> StoreError | SchemaError | None:
    if _is_or_holds(error, _LOGIN):
        return StoreRefused(f"{place} refuses this user or password: {said}.")
    if isinstance(error, Unauthorized):
        return StoreRefused(f"{place} does not allow this user to do that: {said}.")
    if isinstance(error, InvalidRequest) and _names_no_table(str(error)):
        return SchemaMissing(f"{place} lacks shardq's tables ({said}); run `shardq init`.")
    if _speaks_older_protocol(error):
        return StoreRefused(
            f"{place} does not speak protocol 5 of Cassandra, and {NEEDED}; upgrade it."
        )
    if _is_or_holds(error, _REFUSED):
        return StoreRefused(f"{place} refuses this for good: {said}.")
    return None


def _speaks_older_protocol(error: Exception) -> bool:
    # The driver (3.30) has no class of its own for this error.
    return any(_OLDER_PROTOCOL in str(cause) for cause in [error, *_causes(error)])


def _names_no_table(text: str) -> bool:
    lowered = text.lower()
    return "unconfigured table" in lowered or (
        "keyspace" in lowered and "does not exist" in lowered
    )


def _never_sent(error: Exception) -> bool:
    """True if the request was certainly sent to no node.

    The driver (3.30) reports a node that it knows to be down by a plain `ConnectionException`.
    Every other error may follow after the request was sent. An empty table of errors results from a
    race within the driver and proves nothing.
    """
    causes = _causes(error)
    return bool(causes) and all(
        type(cause) is ConnectionException or isinstance(cause, _NOT_APPLIED) for cause in causes
    )


def _causes(error: Exception) -> list[object]:
    """The error of each node; empty if the error is not about nodes."""
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict):
        return list(error.errors.values())
    return []


def _is_or_holds(error: Exception, kinds: tuple[type[Exception], ...]) -> bool:
    return any(isinstance(cause, kinds) for cause in [error, *_causes(error)])


def _sentence(error: Exception) -> str:
    if isinstance(error, NoHostAvailable):
        causes = {str(cause) or type(cause).__name__ for cause in _causes(error)}
        text = "; ".join(sorted(causes)) or "no node answers"
    elif isinstance(error, ConnectionShutdown):
        text = "the connection broke"
    else:
        text = str(error) or type(error).__name__
    shown = " ".join(text.split()).rstrip(".")
    return shown if len(shown) <= 300 else shown[:297] + "..."
