"""Problems (RFC 9457): the answers to calls that fail, and which error has which status."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from shardq import errors
from shardq.errors import KeyTaken, ShardqError, StoreTimeout, UsageError
from shardq.server import refusals as access
from shardq.server.refusals import NotAuthenticated, Refusal
from shardq.server.web import Response, TooMany

if TYPE_CHECKING:
    from shardq.server.web import Headers

MEDIA = "application/problem+json"
REFERENCE = "/v1/reference"

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (errors.UnknownQueue, 404),
    (errors.UnknownSchedule, 404),
    (errors.UnknownAccount, 404),
    (errors.NoResult, 404),
    (errors.BadReceipt, 400),
    (errors.StaleReceipt, 409),
    (errors.KeyTaken, 409),
    (errors.HistoryOff, 409),
    (errors.BadBody, 422),
    (errors.BadArguments, 422),
    (errors.UsageError, 400),
    (errors.StoreTimeout, 503),
    (errors.StoreUnavailable, 503),
    (errors.StoreFull, 503),
    (errors.ClockError, 503),
    (errors.QueueFull, 429),
    (TooMany, 429),
)
"""The first line that an error is an instance of has its status; any other error is a failure."""
_RETRY_AFTER_S = "1"


class Problem(Struct, omit_defaults=True, kw_only=True):
    """A call that failed.

    Attributes:
        type: The address of the text about this kind of problem.
        title: Its name.
        status: The HTTP status.
        detail: The error, and how to fix it.
        field: The field of the body or the query that is wrong.
        id: The id of the message that has the key.
        maybe: True if the call may have been carried out; the same call again is safe.
    """

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    id: str | None = None
    maybe: bool = False


class Refused(Exception):
    """A call that is refused before it reaches a queue.

    Attributes:
        status: The HTTP status.
        detail: Why.
        field: The field that is wrong; None: no field.
        headers: Headers of the answer.
    """

    def __init__(
        self, status: int, detail: str, *, field: str | None = None, headers: Headers | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers: Headers = headers or []


def problem_of(error: ShardqError | Refused | TooMany) -> Problem:
    """The problem of an error.

    Raises:
        ShardqError: If it is a failure of the server, and not of the call.
    """
    if isinstance(error, Refused):
        return Problem(
            type=f"{REFERENCE}#status-{error.status}",
            title=HTTPStatus(error.status).phrase,
            status=error.status,
            detail=error.detail,
            field=error.field,
        )
    status = _status_of_kind(type(error))
    if status is None:
        raise error
    name = type(error).__name__
    taken = error.message if isinstance(error, KeyTaken) else None
    return Problem(
        type=f"{REFERENCE}#{name}",
        title=name,
        status=status,
        detail=" ".join([str(error), *getattr(error, "__notes__", ())]),
        field=_field(error) if isinstance(error, UsageError) else None,
        id=None if taken is None else taken.id,
        maybe=isinstance(error, StoreTimeout),
    )


def headers_of(error: ShardqError | Refused | TooMany) -> Headers:
    """The headers of the answer to an error."""
    if isinstance(error, Refused):
        return error.headers
    if isinstance(error, NotAuthenticated):
        return [("www-authenticate", "Bearer")]
    if isinstance(error, Refusal) and error.retry_after_s is not None:
        return [("retry-after", str(error.retry_after_s))]
    return []


def answer_of(problem: Problem, headers: Headers | None = None) -> Response:
    """The answer whose body is a problem."""
    sent = [("content-type", MEDIA), *(headers or [])]
    if problem.status in {429, 503} and not any(name == "retry-after" for name, _ in sent):
        sent.append(("retry-after", _RETRY_AFTER_S))
    return Response(problem.status, msgspec.json.encode(problem), sent)


def explained() -> list[tuple[str, int, str]]:
    """Each kind of error that a call may get: its name, status and meaning."""
    kinds = [getattr(errors, name) for name in errors.__all__]
    refusals = [kind for kind in vars(access).values() if _is_refusal(kind)]
    made = [(kind, _status_of_kind(kind)) for kind in (*kinds, TooMany, *refusals)]
    return [
        (kind.__name__, status, " ".join((kind.__doc__ or "").partition("\n\n")[0].split()))
        for kind, status in made
        if status is not None
    ]


def _status_of_kind(kind: type[Exception]) -> int | None:
    if issubclass(kind, Refusal):
        return kind.status
    return next((status for base, status in _STATUS if issubclass(kind, base)), None)


def _is_refusal(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Refusal) and hasattr(kind, "code")


_FIELDS = frozenset(
    {
        *(
            "due",
            "delay",
            "spread",
            "priority",
            "group",
            "headers",
            "key",
            "max_wait",
            "unique_for",
        ),
        *("max", "visibility", "wait", "per_group", "limit", "horizon", "since", "until"),
        *("every", "cron", "tz", "start", "end", "count", "on_conflict", "expires"),
        *("lanes", "bands", "minute", "offset", "attempts", "backoff", "backoff_max", "hold"),
        *("lease", "group_lanes", "history", "keyed"),
    }
)


def _field(error: UsageError) -> str | None:
    """The field that an error's text begins with; None where it begins otherwise."""
    first = str(error).partition(" ")[0].rstrip(":")
    return first if first in _FIELDS else None
