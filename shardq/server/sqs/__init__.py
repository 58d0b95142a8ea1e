"""The SQS endpoint: AWS JSON 1.0 and the query protocol, for clients that know no other queue.

```
 protocol   requests into inputs, outputs onto the wire     xml  forms and XML
 queues, messages, moves ──► actions   handlers, and the table to which each adds its action
 names      urls, names and ARNs ──► endpoints and queues
 contents   attributes, headers, sequence numbers, digests
 attributes the attributes of queues                        policy  rights of other accounts
 beyond     features that SQS lacks                         errors  types, codes and texts
```
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING

from shardq.errors import ShardqError, StoreError
from shardq.server.sqs import messages, moves, queues  # noqa: F401 - their handlers add themselves
from shardq.server.sqs.actions import ACTIONS
from shardq.server.sqs.call import ActionCall
from shardq.server.sqs.errors import SqsRefusal, refusal_of
from shardq.server.sqs.names import Directory
from shardq.server.sqs.protocol import Json, Query, protocol_of
from shardq.server.web import QUICK_BYTES, TooMany

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import msgspec

    from shardq.server.site import Site
    from shardq.server.web import Request, Response

_SCOPE = re.compile(r"Credential=[^/,\s]+/[0-9]{8}/([a-z0-9-]{1,40})/sqs/")


async def answer(request: Request, site: Site) -> Response:
    """Answer a request."""
    protocol = protocol_of(request)
    try:
        if isinstance(protocol, Query):
            if len(request.body) > QUICK_BYTES:
                await site.threads.call(protocol.read)
            else:
                protocol.read()
        return await _carry_out(request, site, protocol)
    except (SqsRefusal, TooMany, ShardqError) as error:
        refused = protocol.error(refusal_of(error), request.id)
        retry_s = 1 if isinstance(error, StoreError) else getattr(error, "retry_after_s", None)
        if retry_s is not None:
            refused.headers.append(("retry-after", str(retry_s)))
        return refused


async def _carry_out(request: Request, site: Site, protocol: Json | Query) -> Response:
    action = ACTIONS.get(protocol.action)
    if action is None:
        if not protocol.action:
            raise SqsRefusal("MissingAction", "The request must name an action.")
        raise SqsRefusal(
            "InvalidAction", f"The action {protocol.action[:100]} is not valid for this endpoint."
        )
    request.action = action.name
    caller = await site.caller_of(request)
    if len(request.body) > QUICK_BYTES:
        given = await site.threads.call(partial(protocol.input, action))
    else:
        given = protocol.input(action)
    call = ActionCall(
        request=request,
        site=site,
        directory=site.own(directory),
        action=action.name,
        level=action.level,
        account=site.options.account if caller.via == "open" else caller.account,
        region=caller.region or _region(request, site),
        caller=caller,
    )
    what = action.what
    work = action.handler(call, given)
    if what is not None:

        async def record(outcome: str) -> None:
            await site.record(caller, "sqs", what, call.about, outcome)

        work = site.command(work, record, _name_of)
    made = await _made(call, protocol, work)
    made.on_unsent = call.on_unsent
    return made


async def _made(
    call: ActionCall, protocol: Json | Query, work: Awaitable[msgspec.Struct | None]
) -> Response:
    """The answer. If the client leaves meanwhile, the messages claimed for it are released."""
    try:
        output = await work
        if call.is_large:
            return await call.site.threads.call(partial(protocol.answer, output))
        return protocol.answer(output)
    except asyncio.CancelledError:
        if call.on_unsent is not None:
            await call.on_unsent()
        raise


def _name_of(error: Exception) -> str:
    """The name of an error in the record of a command."""
    return error.kind if isinstance(error, SqsRefusal) else type(error).__name__


def _region(request: Request, site: Site) -> str:
    """The region of a request, which the scope of its signature names."""
    found = _SCOPE.match(request.headers.get("authorization", "").partition(" ")[2])
    return site.options.region if found is None else found[1]


def directory(site: Site) -> Directory:
    """The directory of a site's queues; for `Site.own`."""
    return Directory(site, moves.resume)


def refusal(request: Request, status: int, code: str, text: str) -> Response:
    """The answer to a request that the server refuses, or fails at.

    Args:
        request: The request.
        status: The HTTP status.
        code: A name of the error, such as `InternalFailure`.
        text: A sentence for people.
    """
    made = protocol_of(request).error(SqsRefusal(code, text), request.id)
    made.status = status
    return made
