"""Functions that the routes of jobs share: a job begins, is visible to a caller, or is unknown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from shardq.server.api.problem import Refused
from shardq.server.api.rights import allows
from shardq.server.grants import Level

if TYPE_CHECKING:
    from shardq.server.api.route import RouteCall
    from shardq.server.jobs import ServerJob, ServerJobs

W = TypeVar("W")
J = TypeVar("J", bound="ServerJob[Any]")

_WAIT_S = 1.0
"""A job that ends within this time is answered with its outcome."""


async def begun(call: RouteCall[Any, Any], jobs: ServerJobs[W, J], wish: W) -> J:
    """A job that begins now, or the running one with the same wish; as it is a moment later."""
    made = jobs.begin(wish, call.caller)
    if made.task is not None:
        await asyncio.wait([made.task], timeout=_WAIT_S)
    return made


def is_seen(call: RouteCall[Any, Any], job: ServerJob[Any]) -> bool:
    """True if the caller may see all queues of a job."""
    return all(allows(call.caller, Level.GET, name, call.site) for name in job.wish.queues)


def known(
    call: RouteCall[Any, Any], jobs: ServerJobs[Any, J], name: str, kind: str, more: str = ""
) -> J:
    """A job by its id.

    Args:
        call: The call.
        jobs: The jobs of its kind.
        name: Its id.
        kind: The name of the kind, for the error.
        more: The end of the error's text.

    Raises:
        Refused: If this process does not know it, or the caller may not see its queues.
    """
    found = jobs.get(name)
    if found is None or not is_seen(call, found):
        raise Refused(
            404,
            f"this process knows no {kind} {name!r}: it ended long ago, or runs in another one"
            f"{more}.",
        )
    return found
