"""The HTTP API, `/v1`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.server.web import Answer

if TYPE_CHECKING:
    from shardq.server.site import Site
    from shardq.server.web import Request


async def answer(request: Request, site: Site) -> Answer:  # noqa: ARG001
    """Answer a request."""
    return refusal(request, 404, "NotFound", "There is no such path.")


def refusal(request: Request, status: int, code: str, text: str) -> Answer:  # noqa: ARG001
    """The answer to a request that the server refuses, or fails at.

    Args:
        request: The request.
        status: The HTTP status.
        code: A name of the error, such as `InternalFailure`.
        text: A sentence for people.
    """
    return Answer(
        status,
        f'{{"title":"{text}","status":{status}}}'.encode(),
        [("content-type", "application/problem+json")],
    )
